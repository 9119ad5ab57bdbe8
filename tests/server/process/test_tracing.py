"""OpenTelemetry spans of a worker's calls, received by a collector of the tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from lumigrad.server.core.config import Config, ConfigError
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.rpc.tracing import tracer_of
from support.calls.raw_calls import RawClient, color_gradient, failure, opencv_camera, spec_of, sphere_cloud
from support.deploy.collector import Collector, ReceivedSpan, grpc_collector, http_collector
from support.workers.faults import faulty_worker
from support.workers.worker import WorkerProcess, worker

RENDER = "lumigrad.v1.RenderService/Render"
BACKWARD = "lumigrad.v1.RenderService/Backward"
PUT = "lumigrad.v1.SceneService/Put"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SOON = ("OTEL_BSP_SCHEDULE_DELAY", "50")


def environment(**variables: str) -> dict[str, str]:
    return {**dict([SOON]), **variables}


@contextmanager
def worker_with(variables: dict[str, str], *options: str) -> Iterator[WorkerProcess]:
    """A worker that starts with these variables, which are read after everything is loaded."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            process = stack.enter_context(worker(*options))
        yield process


def traced(trace_id: str = TRACE, flags: str = "01") -> dict[str, Any]:
    """Returns the options of a call whose caller traces."""
    return {"metadata": (("traceparent", f"00-{trace_id}-{PARENT}-{flags}"),)}


@pytest.fixture(scope="module")
def collector() -> Iterator[tuple[Collector, str]]:
    with grpc_collector() as made:
        yield made


@pytest.fixture(scope="module")
def process(collector: tuple[Collector, str]) -> Iterator[WorkerProcess]:
    options = ("--device", "cpu", "--log-format", "json", "--trace-endpoint", collector[1])
    with worker_with(environment(OTEL_EXPORTER_OTLP_HEADERS="api-key=hidden"), *options) as made:
        yield made


def check_stages(collector: Collector, span: ReceivedSpan, timings: object) -> list[str]:
    """Checks that the stages lie in the call and take the reported times; returns their names in order."""
    children = collector.children(span)
    for child in children:
        assert (child.trace_id, child.kind) == (span.trace_id, "INTERNAL")
        assert span.start_ns <= child.start_ns <= child.end_ns <= span.end_ns, (child, span)
    told = {stage.name: stage.milliseconds for stage in timings.stages}
    for name, milliseconds in told.items():
        measured = sum(child.ms for child in children if child.name == name)
        assert measured == pytest.approx(milliseconds, abs=0.01), name
    assert set(told) <= {child.name for child in children} <= {*told, "encode"}
    return [child.name for child in children]


def test_a_call_is_a_span_below_its_callers_with_its_stages_inside(
    collector: tuple[Collector, str], client: RawClient
) -> None:
    received, _ = collector
    cameras = [opencv_camera(320, 240), opencv_camera(320, 240, 0.1)]
    spec = spec_of(*cameras, scene_id=client.put(sphere_cloud(seed=1)).scene.scene_id)
    reply = client.render(spec, retain=True, **traced())
    (span,) = received.wait_for(RENDER, lumigrad__cameras=2)
    assert (span.kind, span.trace_id, span.parent_id, span.status) == ("SERVER", TRACE, PARENT, 0)
    stages = check_stages(received, span, reply.timings)
    kernel = [name for name in stages if name.startswith("kernel.")]
    assert kernel[0] == "kernel.setup" and kernel[-1] in ("kernel.blend", "kernel.finish")
    assert [name for name in stages if name not in kernel] == ["decode", "queue", "download", "encode"]
    expected = {
        "rpc.system.name": "grpc",
        "rpc.method": RENDER,
        "rpc.response.status_code": "OK",
        "lumigrad.engine": "spheres",
        "lumigrad.operation": "forward",
        "lumigrad.pixels": 2 * 320 * 240,
        "lumigrad.received_bytes": 0,
        "lumigrad.sent_bytes": 2 * 320 * 240 * 3 * 4,
    }
    assert expected.items() <= span.attributes.items()
    assert "error.type" not in span.attributes
    resource = span.resource
    assert (resource["service.name"], resource["lumigrad.device"]) == ("lumigrad", "cpu")
    assert {"service.version", "service.instance.id", "host.name", "process.pid"} <= set(resource)


def test_a_backward_shows_both_of_its_passes(collector: tuple[Collector, str], client: RawClient) -> None:
    received, _ = collector
    gradient = {"color": color_gradient(1, 48, 64, 3)}
    reply = client.backward(gradient, spec=spec_of(), cloud=sphere_cloud(seed=2))
    (span,) = received.wait_for(BACKWARD, lumigrad__operation="backward")
    assert span.parent_id == ""
    stages = check_stages(received, span, reply.timings)
    assert stages.count("kernel.blend") == 2
    assert stages.count("upload") == 2
    assert span.attributes["lumigrad.received_bytes"] >= 200 * 7 * 4 + 48 * 64 * 3 * 4


def test_a_caller_who_does_not_keep_its_trace_has_none_kept_here(
    collector: tuple[Collector, str], process: WorkerProcess, client: RawClient
) -> None:
    received, _ = collector
    unkept, kept = "1" * 32, "2" * 32
    client.render(spec_of(), cloud=sphere_cloud(), **traced(unkept, flags="00"))
    client.render(spec_of(), cloud=sphere_cloud(), **traced(kept))
    received.wait_for(RENDER, trace_id=kept)
    assert unkept not in {span.trace_id for span in received.spans}
    process.wait_for_log(f'"trace_id": "{unkept}"')


def test_every_call_of_the_log_names_its_span(
    collector: tuple[Collector, str], process: WorkerProcess, client: RawClient
) -> None:
    received, _ = collector
    trace = "3" * 32
    client.render(spec_of(), cloud=sphere_cloud(), **traced(trace))
    process.wait_for_log(trace)
    (span,) = received.wait_for(RENDER, trace_id=trace)
    lines = [json.loads(line) for line in process.log.splitlines()]
    (entry,) = [line for line in lines if line.get("trace_id") == trace]
    assert (entry["span_id"], entry["request_id"]) == (span.span_id, span.attributes["lumigrad.request_id"])
    assert (entry["message"], entry["method"], entry["code"]) == ("call", "RenderService.Render", "OK")


def test_a_refused_call_tells_why_in_one_word_and_quotes_nobody(
    collector: tuple[Collector, str], process: WorkerProcess, client: RawClient
) -> None:
    received, _ = collector
    secret = "do-not-quote-this"
    failure(lambda: client.render(spec_of(scene_id=secret)))
    failure(lambda: client.render(spec_of(outputs=[secret]), cloud=sphere_cloud()))
    (missing,) = received.wait_for(RENDER, lumigrad__reason="scene_not_found")
    (invalid,) = received.wait_for(RENDER, lumigrad__reason="invalid_argument")
    for span, code in ((missing, "NOT_FOUND"), (invalid, "INVALID_ARGUMENT")):
        # The caller's fault is no error of the worker.
        assert (span.status, span.attributes["error.type"]) == (0, code)
        assert span.attributes["rpc.response.status_code"] == code
    assert not [raw for raw in received.raw if secret.encode() in raw]
    assert received.headers[0]["api-key"] == "hidden"
    assert "hidden" not in process.log


def test_an_error_of_the_worker_is_one_in_its_trace_without_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*SOON)
    with (
        grpc_collector() as (received, url),
        faulty_worker(tmp_path, "--trace-endpoint", url) as (process, faults),
    ):
        faults.arm("error")
        client = RawClient(process.target)
        error = failure(lambda: client.render(spec_of(), cloud=sphere_cloud()))
        client.close()
        assert error.code() == grpc.StatusCode.INTERNAL
        (span,) = received.wait_for(RENDER)
        assert (span.status, span.attributes["error.type"]) == (2, "INTERNAL")
        process.wait_for_log("something passes")
        assert not [raw for raw in received.raw if b"something passes" in raw]


@pytest.mark.parametrize(
    "metadata",
    [
        (("traceparent", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"),),
        (("traceparent", "ff-" + TRACE + "-" + PARENT + "-01"),),
        (("traceparent", "x" * 5000),),
        (("traceparent", ""), ("tracestate", "a=b")),
        (("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "=,;" * 500)),
        (("traceparent", f"00-{TRACE}-{PARENT}-01"), ("traceparent", f"00-{TRACE}-{PARENT}-00")),
    ],
    ids=["zeros", "version", "long", "empty", "state", "twice"],
)
def test_nonsense_in_place_of_a_trace_costs_no_call(
    client: RawClient, process: WorkerProcess, metadata: tuple[tuple[str, str], ...]
) -> None:
    reply = client.render(spec_of(), cloud=sphere_cloud(), metadata=metadata)
    assert reply.arrays["color"].shape == (1, 48, 64, 3)
    assert "opentelemetry" not in process.log.lower()


def test_the_variables_of_opentelemetry_do_as_well_as_the_option_and_strangers_leave_no_trace(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("lab: a-token-of-the-lab\n")
    bearer = ("authorization", "Bearer a-token-of-the-lab")
    with http_collector() as (received, url):
        told = environment(
            OTEL_EXPORTER_OTLP_ENDPOINT=url,
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
            OTEL_SERVICE_NAME="renderer",
            OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test",
            OTEL_TRACES_SAMPLER="parentbased_always_off",
        )
        with worker_with(told, "--device", "cpu", "--tokens-file", str(tokens)) as process:
            client = RawClient(process.target)
            stranger = failure(lambda: client.render(spec_of(), cloud=sphere_cloud(), **traced()))
            client.render(spec_of(), cloud=sphere_cloud(), metadata=(bearer,))
            client.render(spec_of(), cloud=sphere_cloud(), metadata=(bearer, *traced()["metadata"]))
            client.close()
            # A worker that ends leaves out what it cannot export within a moment.
            received.wait_for(RENDER, trace_id=TRACE)
    assert stranger.code() == grpc.StatusCode.UNAUTHENTICATED
    (span,) = [span for span in received.spans if span.name == RENDER]
    assert (span.trace_id, span.attributes["lumigrad.tenant"]) == (TRACE, "lab")
    assert span.resource["service.name"] == "renderer"
    assert span.resource["deployment.environment.name"] == "test"
    assert not [raw for raw in received.raw if b"a-token-of-the-lab" in raw]


@pytest.mark.parametrize(
    ("endpoint", "text"),
    [
        ("localhost:4317", "--trace-endpoint: expected http://HOST:PORT or https://HOST:PORT, got localhost:4317"),
        ("http://localhost:4317/v1/traces", "--trace-endpoint: expected http://HOST:PORT or https://HOST:PORT, got"),
        ("http://user:word@host:1", "--trace-endpoint: expected a URL without a password"),
    ],
)
def test_an_endpoint_that_cannot_work_is_refused(endpoint: str, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Config(trace_endpoint=endpoint)
    assert str(refused.value).startswith(text)
    assert "word@" not in str(refused.value)


def test_a_protocol_that_nobody_speaks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "soap")
    with pytest.raises(ConfigError, match="expected grpc or http/protobuf, got soap"):
        tracer_of(Config(trace_endpoint="http://host:1"), "cpu", Metrics())


def said(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout


SETTING = """
import os, sys
from lumigrad.server.core import logs
from lumigrad.server.core.config import Config, ConfigError
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.rpc.tracing import tracer_of
def make(endpoint="", **variables):
    os.environ.update(variables)
    return type(tracer_of(Config(trace_endpoint=endpoint), "cpu", Metrics())).__name__
"""
WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] == 'opentelemetry':
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)
sys.meta_path.insert(0, Absent())
"""


def test_a_worker_that_does_not_trace_imports_nothing_for_it() -> None:
    script = SETTING + (
        "import lumigrad.server.process.main\n"
        "print(make(), make(OTEL_EXPORTER_OTLP_ENDPOINT='http://host:1', OTEL_TRACES_EXPORTER='none'))\n"
        "print(make('http://host:1', OTEL_TRACES_EXPORTER='otlp', OTEL_SDK_DISABLED='true'))\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
        "print(make(OTEL_SDK_DISABLED=''))\n"
    )
    assert said(script).split() == ["NoneType", "NoneType", "NoneType", "[]", "SpanTracer"]


def test_without_the_packages_the_option_is_an_error_and_a_variable_is_not() -> None:
    script = (
        WITHOUT
        + SETTING
        + (
            "sys.stderr = sys.stdout\nlogs.configure('plain')\n"
            "try: make('http://host:1')\nexcept ConfigError as error: print(error)\n"
            "print(make(OTEL_EXPORTER_OTLP_ENDPOINT='http://host:1'))"
        )
    )
    option, variable, made = said(script).splitlines()
    hint = 'needs more packages; install them with: pip install "lumigrad[trace]"'
    assert option.startswith(f"--trace-endpoint: {hint} (No module named 'opentelemetry")
    assert variable.endswith(f"WARNING traces are disabled: OTEL_EXPORTER_OTLP_ENDPOINT {hint}")
    assert made == "NoneType"
