"""The worker as operators see it: options, exit codes, logs, metrics, health, reflection."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import socket
import subprocess

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from lumigrad.protos.service import SERVICE_NAMES
from lumigrad.server.core.config import Config
from lumigrad.server.core.ports import unusable
from lumigrad.v1 import render_pb2, worker_pb2
from support.calls.raw_calls import RawClient, color_gradient, failure, spec_of, sphere_cloud
from support.workers.forks import ForkedProcess, lumigrad
from support.workers.slow_render import SlowRender, wait_for, wait_until
from support.workers.worker import WorkerProcess, worker


def serve(*options: str) -> subprocess.CompletedProcess[str]:
    return lumigrad("serve", *options)


@pytest.fixture(scope="module")
def rendered(client: RawClient, shared_worker: WorkerProcess) -> WorkerProcess:
    """The shared worker after a render and its gradients."""
    scene_id = client.put(sphere_cloud(seed=40)).scene.scene_id
    context_id = client.render(spec_of(scene_id=scene_id), retain=True).header.context_id
    client.backward({"color": color_gradient(1, 48, 64, 3)}, context_id=context_id)
    return shared_worker


@pytest.mark.parametrize("option", ["--port", "--metrics-port"])
def test_a_port_in_use_is_an_error_at_once(option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = {"--port": "0", "--metrics-port": "0", option: str(taken.getsockname()[1])}
        result = serve(*[word for pair in ports.items() for word in pair])
    assert result.returncode == 2
    where = f"127.0.0.1:{ports[option]}"
    what = f"{option}: cannot listen on {where}; is another process using it? {option} 0 takes a free one"
    assert what in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def has_taken(taken: socket.socket, port: int) -> bool:
    """Whether a socket could take a port of this machine."""
    # Workers do so, too: they take a port whose former connections linger.
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with contextlib.suppress(OSError):
        taken.bind(("127.0.0.1", port))
        taken.listen()
        return True
    return False


def test_the_default_port_of_the_metrics_gives_way() -> None:
    with socket.socket() as taken:
        # The port is taken just as well if another process has it, unless that is about to end.
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: has_taken(taken, 9464), "the default port", seconds=20.0)
        process = ForkedProcess(["serve", "--device", "cpu", "--port", "0"])
        announced = re.search(r"\(metrics (\d+)\)", process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert announced is not None and announced[1] != "9464"
    assert f"the default port of the metrics is in use: another one metrics_port={announced[1]}" in log


def test_a_second_worker_on_the_same_port_does_not_start(shared_worker: WorkerProcess) -> None:
    result = serve("--port", str(shared_worker.port), "--metrics-port", "0")
    assert result.returncode == 2
    assert "is another process using it?" in result.stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--host", "0.0.0.0"], "--host: 0.0.0.0 can be reached from other machines"),
        (["--host", "::"], "set --insecure if the network is trusted"),
        (["--insecure", "--host", "203.0.113.1"], "--host: expected a name or an address of this machine"),
        (["--insecure", "--host", "[::1]"], "such as 127.0.0.1 or ::1, got '[::1]'"),
        (["--host", "unix:/run/worker"], "--host: expected a name or an address of this machine, such as"),
        (["--insecure", "--host", "203.0.113.1", "--no-supervisor"], "got '203.0.113.1' (Cannot assign requested"),
        (["--metrics-host", "203.0.113.1"], "--metrics-host: expected a name or an address of this machine"),
        (["--device", "cuda:99"], "--device 'cuda:99': "),
        (["--device", "tpu"], "--device: expected 'auto', 'cpu' or 'cuda:N', got 'tpu'"),
        (["--port", "70000"], "--port: expected 0 to 65535, got 70000"),
        (["--queue-size", "0"], "--queue-size: expected a value > 0, got 0"),
        (["--transit-mib", "2047"], "--transit-mib: expected at least twice --max-payload-mib = 1024"),
        (["--max-payload-mib", "8192"], "--scene-mib: expected at least --max-payload-mib = 8192"),
        (["--context-seconds", "nan"], "--context-seconds: expected a value > 0, got nan"),
        (["--drain-seconds", "inf"], "--drain-seconds: expected at most 1000000000 s, got inf"),
        (["--lame-duck-seconds", "1e10"], "--lame-duck-seconds: expected at most 1000000000 s, got 10000000000.0"),
        (["--training-mib", "9000000000000"], "--training-mib: expected at most 1099511627776, got 9000000000000"),
        (["--scene-files", "/nowhere"], "lumigrad: error: --scene-files: expected a folder, got /nowhere"),
        (["--scene-urls", "http://a/b"], "lumigrad: error: --scene-urls: expected https://HOST/FOLDER, several"),
        (["--log-format", "xml"], "--log-format: expected one of plain, json, got xml"),
    ],
)
def test_a_configuration_that_cannot_work_ends_with_code_2(options: list[str], text: str) -> None:
    result = serve("--port", "0", "--metrics-port", "0", *options)
    assert result.returncode == 2
    assert text in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("threads", ["500m", "-1", "257", "all"])
def test_a_number_of_threads_that_the_kernels_would_misread_is_refused(
    threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUMIGRAD_NUM_THREADS", threads)
    result = serve("--port", "0", "--metrics-port", "0")
    assert result.returncode == 2
    text = f"LUMIGRAD_NUM_THREADS: expected a number of threads from 0 (all processors) to 256, got '{threads}'"
    assert text in result.stderr


def test_a_limit_of_open_files_is_no_fault_of_the_host() -> None:
    error = unusable("--port", "::1", 0, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    assert str(error) == "--port: cannot listen on [::1]:0: Too many open files"


def test_every_option_is_explained() -> None:
    text = " ".join(serve("--help").stdout.split())
    assert "--max-payload-mib MIB" in text
    assert "(default: 50051)" in text


def test_a_public_address_is_served_when_that_is_said_but_tells_nothing_of_itself() -> None:
    with worker("--device", "cpu", "--host", "0.0.0.0", "--insecure") as process:
        with grpc.insecure_channel(f"127.0.0.1:{process.port}") as channel:
            assert failure(lambda: list_services(channel)).code() == grpc.StatusCode.UNIMPLEMENTED
        assert RawClient(f"127.0.0.1:{process.port}").worker_stub.Info(worker_pb2.InfoRequest(), timeout=60)
        # Metrics name tenants, so only this machine can read them unless --metrics-host says otherwise.
        assert Config(host="0.0.0.0", insecure=True).metrics_address == "127.0.0.1"
        assert process.metric("lumigrad_call_threads") > process.metric("lumigrad_call_threads_busy")


def test_threads_are_busy_while_their_calls_run(shared_worker: WorkerProcess, client: RawClient) -> None:
    slow, count = SlowRender(client), 3
    try:
        for _ in range(count):
            slow.start()
        wait_until(lambda: shared_worker.metric("lumigrad_call_threads_busy") >= count, "busy threads of slow calls")
    finally:
        slow.cancel()
    wait_for(shared_worker, "lumigrad_call_threads_busy", 0)


def list_services(channel: grpc.Channel) -> set[str]:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    reply = next(reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]), timeout=60))
    return {service.name for service in reply.list_services_response.service}


def test_reflection_is_off_unless_that_is_said(client: RawClient) -> None:
    assert failure(lambda: list_services(client.channel)).code() == grpc.StatusCode.UNIMPLEMENTED


def test_reflection_lists_and_describes_the_services() -> None:
    with worker("--device", "cpu", "--reflection") as process:
        describes_the_services(RawClient(process.target))


def describes_the_services(client: RawClient) -> None:
    assert set(SERVICE_NAMES) | {"grpc.health.v1.Health"} <= list_services(client.channel)
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol="lumigrad.v1.RenderService")
    stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    reply = next(stub.ServerReflectionInfo(iter([request]), timeout=60))
    files = [FileDescriptorProto.FromString(raw) for raw in reply.file_descriptor_response.file_descriptor_proto]
    assert "lumigrad/v1/render.proto" in {file.name for file in files}


def test_health_is_told_for_each_service(shared_worker: WorkerProcess) -> None:
    assert {shared_worker.health(service) for service in ("", *SERVICE_NAMES)} == {1}


def test_info_describes_the_device(client: RawClient) -> None:
    info = client.worker_stub.Info(worker_pb2.InfoRequest(), timeout=60)
    assert info.device == "cpu"
    assert info.device_name
    assert info.instruction_set in ("avx512", "avx2", "portable")
    assert list(info.engines) == ["spheres", "gaussians", "meshes"]
    assert info.threads >= 1
    assert 0 < info.device_memory_free_bytes <= info.device_memory_bytes
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", info.version)
    assert info.uptime_seconds > 0


def test_metrics_show_the_time_of_every_kernel_stage_after_a_render(rendered: WorkerProcess) -> None:
    for op in ("forward", "backward"):
        for stage in ("setup", "sort", "bin", "blend"):
            labels = {"engine": "spheres", "op": op, "stage": stage}
            assert rendered.metric("lumigrad_kernel_seconds_count", **labels) >= 1, labels
        labels = {"engine": "spheres", "op": op, "stage": "blend"}
        mean = rendered.metric("lumigrad_kernel_seconds_sum", **labels) / rendered.metric(
            "lumigrad_kernel_seconds_count", **labels
        )
        assert 0 < mean < 10
        assert rendered.metric("lumigrad_kernel_seconds_bucket", engine="spheres", op=op, stage="blend", le="60.0") >= 1


def test_the_log_shows_the_settings_that_are_not_the_default(shared_worker: WorkerProcess) -> None:
    line = next(
        line for line in shared_worker.log.splitlines() if " INFO options that differ from their defaults" in line
    )
    assert " device=cpu " in line and " no_supervisor=True" in line
    assert "queue_size" not in line and len(line) < 300


def test_the_log_shows_the_settings_as_they_were_given() -> None:
    """Not the ports that the supervisor chose for its workers."""
    with worker("--device", "cpu", "--queue-size", "9", supervised=True) as process:
        lines = [line for line in process.log.splitlines() if " INFO options that differ from their defaults" in line]
    assert len(lines) == 1, lines
    told = lines[0].partition("defaults ")[2].split()
    assert {"device=cpu", "port=0", "metrics_port=0", "queue_size=9"} <= set(told), told


def test_metrics_show_calls_stages_bytes_and_what_is_stored(rendered: WorkerProcess) -> None:
    assert rendered.metric("lumigrad_calls_total", method="RenderService.Render", code="OK") >= 1
    assert rendered.metric("lumigrad_call_seconds_sum", method="RenderService.Render") > 0
    for stage in ("queue", "decode", "upload", "download"):
        assert rendered.metric("lumigrad_stage_seconds_count", stage=stage) >= 1, stage
    assert rendered.metric("lumigrad_payload_bytes_total", method="RenderService.Render", direction="sent") > 0
    assert rendered.metric("lumigrad_payload_bytes_total", method="SceneService.Put", direction="received") > 0
    assert rendered.metric("lumigrad_scenes") >= 1
    assert rendered.metric("lumigrad_scene_bytes") >= 200 * 7 * 4
    assert rendered.metric("lumigrad_contexts") >= 1
    assert rendered.metric("lumigrad_context_bytes") > 0
    assert rendered.metric("lumigrad_device_memory_free_bytes") > 0
    assert "lumigrad_queue_depth 0.0" in rendered.metrics()


def test_refusals_are_counted_by_reason(rendered: WorkerProcess, client: RawClient) -> None:
    before = rendered.metric("lumigrad_rejections_total", reason="invalid_argument")
    failure(lambda: client.render(render_pb2.RenderSpec()))
    assert rendered.metric("lumigrad_rejections_total", reason="invalid_argument") == before + 1


def test_a_call_is_one_plain_line(rendered: WorkerProcess, client: RawClient) -> None:
    client.worker_stub.Info(worker_pb2.InfoRequest(), timeout=60, metadata=(("x-request-id", "plain-1"),))
    rendered.wait_for_log("plain-1")
    line = next(line for line in rendered.log.splitlines() if "plain-1" in line)
    assert re.fullmatch(
        r"\S+T\S+ INFO call request_id=plain-1 method=WorkerService.Info code=OK ms=\d+\.\d{3} received=0 sent=0", line
    )


def test_a_worker_without_a_gpu_says_that_it_renders_on_the_cpu() -> None:
    with worker(variables={"CUDA_VISIBLE_DEVICES": ""}) as process:
        process.wait_for_log("no usable CUDA device, using the CPU")
        client = RawClient(process.target)
        assert client.worker_stub.Info(worker_pb2.InfoRequest(), timeout=60).device == "cpu"
        client.close()


def test_an_ipv6_address_is_served_too() -> None:
    with worker("--device", "cpu", "--host", "::1", is_balanced=False) as process:
        assert process.target == f"[::1]:{process.port}"
        assert process.health() == 1
