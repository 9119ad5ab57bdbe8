"""The exceptions that callers see for each gRPC status, over a real socket."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

import lumigrad.client as lumigrad
from lumigrad.client import Client, Violation
from lumigrad.client.transport.addresses import Address, proxy_of
from lumigrad.client.transport.call import Call
from lumigrad.protos import details
from lumigrad.protos.service import WORKER_SERVICE
from lumigrad.v1 import errors_pb2, worker_pb2
from support.calls.handlers import handlers_of


class ScriptedWorker:
    """Answers Info with whatever the test says, and counts the calls."""

    def __init__(self) -> None:
        self.behavior: Callable[[Any], worker_pb2.InfoReply] = lambda context: worker_pb2.InfoReply()
        self.calls: list[float] = []

    def Info(self, _: Any, context: Any) -> worker_pb2.InfoReply:
        self.calls.append(time.monotonic())
        return self.behavior(context)

    def OpenLane(self, _: Any, context: Any) -> worker_pb2.OpenLaneReply:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "an older worker")
        raise AssertionError

    def fail(self, code: grpc.StatusCode, text: str = "because", *messages: Any) -> None:
        def behavior(context: Any) -> worker_pb2.InfoReply:
            context.set_trailing_metadata([details.pack(code.value[0], text, messages)])
            context.abort(code, text)

        self.behavior = behavior


@pytest.fixture
def scripted() -> Iterator[tuple[ScriptedWorker, str]]:
    servicer = ScriptedWorker()
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((handlers_of(WORKER_SERVICE, servicer),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    server.stop(None).wait()


def info_error(target: str, **options: Any) -> lumigrad.LumigradError:
    client = Client(target, **{"retry_s": 0.0, "timeout_s": 60.0, **options})
    with client, pytest.raises(lumigrad.LumigradError) as raised:
        client.info()
    return raised.value


def test_invalid_argument_lists_the_violations(scripted):
    servicer, target = scripted
    servicer.fail(grpc.StatusCode.INVALID_ARGUMENT, "bad", details.bad_request("spec.gamma", "a value in [0, 1]", 7))
    error = info_error(target)
    assert type(error) is lumigrad.InvalidArgument
    assert str(error) == "gamma: expected a value in [0, 1], got 7"
    assert error.violations == (Violation("gamma", "expected a value in [0, 1], got 7"),)


def test_resource_exhausted_says_when_to_come_back(scripted):
    servicer, target = scripted
    servicer.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", details.retry_info(0.25))
    error = info_error(target)
    assert type(error) is lumigrad.ResourceExhausted
    assert error.retry_after_s == 0.25
    assert str(error) == f"the worker at {target} is busy: the queue is full; try again in 0.25 s"
    servicer.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "too large")
    assert info_error(target).retry_after_s is None


def test_lost_things_are_named(scripted):
    servicer, target = scripted
    servicer.fail(grpc.StatusCode.NOT_FOUND, "none", errors_pb2.SceneNotFound(scene_id="abc"))
    error = info_error(target)
    assert isinstance(error, lumigrad.SceneNotFound) and isinstance(error, LookupError)
    assert error.scene_id == "abc"
    servicer.fail(grpc.StatusCode.FAILED_PRECONDITION, "lost", errors_pb2.ContextLost(context_id="c1"))
    error = info_error(target)
    assert isinstance(error, lumigrad.ContextLost)
    assert error.context_id == "c1"
    mismatch = errors_pb2.VersionMismatch(scene_id="abc", expected=2, actual=3)
    servicer.fail(grpc.StatusCode.FAILED_PRECONDITION, "old", mismatch)
    error = info_error(target)
    assert isinstance(error, lumigrad.VersionMismatch)
    assert (error.scene_id, error.expected, error.actual) == ("abc", 2, 3)
    assert "has version 3, not 2" in str(error)


@pytest.mark.parametrize(
    ("code", "kind", "builtin"),
    [
        (grpc.StatusCode.UNAVAILABLE, lumigrad.Unavailable, ConnectionError),
        (grpc.StatusCode.CANCELLED, lumigrad.Cancelled, Exception),
        (grpc.StatusCode.UNAUTHENTICATED, lumigrad.Unauthenticated, PermissionError),
        (grpc.StatusCode.PERMISSION_DENIED, lumigrad.Unauthenticated, PermissionError),
        (grpc.StatusCode.FAILED_PRECONDITION, lumigrad.InvalidArgument, ValueError),
        (grpc.StatusCode.INTERNAL, lumigrad.Internal, Exception),
        (grpc.StatusCode.UNIMPLEMENTED, lumigrad.Internal, Exception),
        (grpc.StatusCode.DATA_LOSS, lumigrad.Internal, Exception),
    ],
)
def test_every_status_is_a_typed_error_that_names_the_worker(scripted, code, kind, builtin):
    servicer, target = scripted
    servicer.fail(code, "because of reasons")
    error = info_error(target)
    assert type(error) is kind
    assert isinstance(error, builtin)
    assert target in str(error)
    assert "because of reasons" in str(error)
    assert isinstance(error.__cause__, grpc.RpcError)


def test_a_slow_worker_ends_in_deadline_exceeded(scripted):
    servicer, target = scripted
    released = threading.Event()

    def behavior(_: Any) -> worker_pb2.InfoReply:
        released.wait(200)
        return worker_pb2.InfoReply()

    servicer.behavior = behavior
    try:
        began = time.monotonic()
        error = info_error(target, timeout_s=0.3)
        assert time.monotonic() - began < 150
    finally:
        released.set()
    assert type(error) is lumigrad.DeadlineExceeded
    assert isinstance(error, TimeoutError)
    assert f"no answer from {target} within 0.3 s" in str(error)


def test_a_call_that_is_over_before_it_is_sent_names_its_worker(scripted, monkeypatch):
    begin = Call.__init__

    def begin_late(call: Call, timeout_s: float, **options: Any) -> None:
        begin(call, timeout_s, **options)
        call.end -= timeout_s

    monkeypatch.setattr(Call, "__init__", begin_late)
    servicer, target = scripted
    error = info_error(target, timeout_s=3)
    assert type(error) is lumigrad.DeadlineExceeded
    assert f"no answer from {target} within 3 s" in str(error)
    assert not servicer.calls


def test_no_worker_is_said_at_once_and_helpfully():
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{reserved.getsockname()[1]}"
        error = info_error(target)
    assert type(error) is lumigrad.Unavailable
    assert f"no worker at {target}" in str(error)
    assert "start one with `lumigrad serve`" in str(error)


def test_unavailable_is_repeated_with_growing_delays_until_it_works(scripted, caplog: pytest.LogCaptureFixture) -> None:
    servicer, target = scripted

    def behavior(context: Any) -> worker_pb2.InfoReply:
        if len(servicer.calls) < 5:
            context.abort(grpc.StatusCode.UNAVAILABLE, "draining")
        return worker_pb2.InfoReply(version="5th")

    servicer.behavior = behavior
    with caplog.at_level("INFO", "lumigrad"), Client(target, timeout_s=100, retry_s=60) as client:
        assert client.info().version == "5th"
    told = [float(seconds) for seconds in re.findall(r"a call is repeated in (\S+) s", caplog.text)]
    kept = [later - earlier for earlier, later in zip(servicer.calls, servicer.calls[1:], strict=False)]
    # 0.05 s, doubled each time, shortened by up to half; logged in hundredths of a second.
    for seconds, delay, nominal in zip(told, kept, (0.05, 0.1, 0.2, 0.4), strict=True):
        assert nominal / 2 - 0.01 <= seconds <= nominal + 0.01
        assert delay >= nominal / 2


def test_a_worker_without_room_is_waited_for_as_it_says(scripted):
    servicer, target = scripted

    def behavior(context: Any) -> worker_pb2.InfoReply:
        if len(servicer.calls) < 4:
            refuse(context, details.retry_info(0.3))
        return worker_pb2.InfoReply(version="4th")

    def refuse(context: Any, *messages: Any) -> None:
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        context.set_trailing_metadata([details.pack(code.value[0], "full", messages)])
        context.abort(code, "full")

    servicer.behavior = behavior
    with Client(target, timeout_s=100, retry_s=0.2) as client:
        assert client.info().version == "4th"
        delays = [later - earlier for earlier, later in zip(servicer.calls, servicer.calls[1:], strict=False)]
        assert all(delay >= 0.3 for delay in delays)
        # The worker will have room only after the call's deadline: the error comes at once.
        servicer.calls.clear()
        servicer.behavior = lambda context: refuse(context, details.retry_info(300.0))
        began = time.monotonic()
        with pytest.raises(lumigrad.ResourceExhausted):
            client.info(timeout_s=100)
        assert time.monotonic() - began < 80 and len(servicer.calls) == 1
        # A refusal without a delay means that the call never fits: it is not repeated.
        servicer.behavior = refuse
        with pytest.raises(lumigrad.ResourceExhausted):
            client.info()
    assert len(servicer.calls) == 2


def test_each_of_several_workers_is_waited_for_while_it_has_no_room(scripted):
    servicer, target = scripted

    def behavior(context: Any) -> worker_pb2.InfoReply:
        if len(servicer.calls) < 3:
            code = grpc.StatusCode.RESOURCE_EXHAUSTED
            context.set_trailing_metadata([details.pack(code.value[0], "full", [details.retry_info(0.1)])])
            context.abort(code, "full")
        return worker_pb2.InfoReply(version="3rd")

    servicer.behavior = behavior
    with Client([target, "127.0.0.1:1"], timeout_s=100) as client:
        assert [info.version for info in client.infos()] == ["3rd"]


def test_a_call_that_was_cancelled_on_its_way_is_repeated(scripted):
    servicer, target = scripted

    def behavior(context: Any) -> worker_pb2.InfoReply:
        if len(servicer.calls) < 4:
            # A proxy, or a worker under attack, cancels like this, without having sent anything.
            context.cancel()
        return worker_pb2.InfoReply(version="4th")

    servicer.behavior = behavior
    for targets in (target, [target, "127.0.0.1:1"]):
        servicer.calls.clear()
        with Client(targets, timeout_s=100, retry_s=60) as client:
            assert client.info().version == "4th"
        assert len(servicer.calls) == 4


def test_a_call_that_the_worker_ends_is_not_repeated(scripted):
    servicer, target = scripted
    begun, received = threading.Event(), threading.Event()

    def behavior(context: Any) -> worker_pb2.InfoReply:
        if not begun.is_set():
            # A worker ends a call that took too long like this: metadata first, then a cancellation.
            context.send_initial_metadata((("request", "1"),))
            begun.set()
            assert received.wait(60)
            context.cancel()
        return worker_pb2.InfoReply()

    servicer.behavior = behavior
    with Client(target, timeout_s=200) as client, ThreadPoolExecutor(1) as threads:
        call = threads.submit(client.info)
        assert begun.wait(60)
        # A connection delivers in order: when this reply is here, the metadata is, too.
        client.info()
        received.set()
        with pytest.raises(lumigrad.Cancelled):
            call.result(150)
    assert len(servicer.calls) == 2


def test_a_call_under_way_when_the_client_is_closed_is_not_repeated(scripted):
    servicer, target = scripted
    begun, released = threading.Event(), threading.Event()

    def behavior(_: Any) -> worker_pb2.InfoReply:
        begun.set()
        released.wait(60)
        return worker_pb2.InfoReply()

    servicer.behavior = behavior
    client = Client(target, timeout_s=100)
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(client.info)
        assert begun.wait(60)
        client.close()
        with pytest.raises(lumigrad.Cancelled, match="the client was closed"):
            call.result(150)
        released.set()
    assert len(servicer.calls) == 1


@pytest.mark.parametrize(
    ("field", "argument"),
    [
        ("spec.outputs", "outputs"),
        ("spec.scene.gaussians.means", "means"),
        ("spec.gaussians.sh_degree", "sh_degree"),
        ("spec.settings.max_distance", "max_distance"),
        ("spec.spheres.dtype", "spheres.dtype"),
        ("formats[0].format", "image_format"),
        ("start.spec.optimizer.rates", "rates"),
        ("start.views[3].camera", "cameras[3]"),
        ("start.views[3].target", "target_images[3]"),
        ("scene.target.color", "color"),
    ],
)
def test_invalid_arguments_have_the_names_of_the_callers(scripted, field, argument):
    servicer, target = scripted
    servicer.fail(grpc.StatusCode.INVALID_ARGUMENT, "bad", details.bad_request(field, "another", 7))
    assert info_error(target).violations == (Violation(argument, "expected another, got 7"),)


def test_repetitions_end_with_the_time_for_them(scripted):
    servicer, target = scripted
    servicer.fail(grpc.StatusCode.UNAVAILABLE)
    began = time.monotonic()
    assert isinstance(info_error(target, timeout_s=200, retry_s=0.5), lumigrad.Unavailable)
    assert time.monotonic() - began < 150
    assert len(servicer.calls) >= 2


@pytest.mark.parametrize("code", [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL])
def test_other_errors_are_not_repeated(scripted, code):
    servicer, target = scripted
    servicer.fail(code)
    info_error(target, retry_s=5.0)
    assert len(servicer.calls) == 1


def test_the_token_travels_as_a_bearer_token(scripted):
    servicer, target = scripted
    seen: list[dict[str, Any]] = []

    def behavior(context: Any) -> worker_pb2.InfoReply:
        seen.append(dict(context.invocation_metadata()))
        return worker_pb2.InfoReply()

    servicer.behavior = behavior
    with Client(target, token="secret") as client:
        client.info()
    with Client(target) as client:
        client.info()
    assert seen[0]["authorization"] == "Bearer secret"
    assert "authorization" not in seen[1]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_tls_trusts_the_authorities_of_the_file(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )  # fmt: skip
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((handlers_of(WORKER_SERVICE, ScriptedWorker()),))
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    target = f"localhost:{server.add_secure_port('127.0.0.1:0', credentials)}"
    server.start()
    try:
        with Client(target, tls=certificate) as client:
            assert client.info().target == target
        assert isinstance(info_error(target, tls=True), lumigrad.Unavailable)
        assert isinstance(info_error(target), lumigrad.Unavailable)
    finally:
        server.stop(None).wait()


def proxied(target: str, **variables: str) -> str:
    """The target that a worker tells of, or the error, with these variables in the environment."""
    script = (
        f"from lumigrad.client import Client, Unavailable\n"
        f"try: print(Client({target!r}, retry_s=0, timeout_s=100).info().target)\n"
        f"except Unavailable as error: print(error)"
    )
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env={**kept, **variables})
    return done.stdout.rstrip("\n")


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ipv4:127.0.0.1:{}", "LocalHost:{}", "0.0.0.0:{}"])
def test_a_web_proxy_does_not_come_between_a_client_and_this_machine(scripted, form):
    target = form.format(scripted[1].rpartition(":")[2])
    dead = "http://127.0.0.1:1"
    assert proxied(target, http_proxy=dead, grpc_proxy=dead, no_proxy="") == target


def test_a_web_proxy_that_does_not_reach_the_worker_is_named(scripted):
    """The scripted worker takes the place of a proxy that understands nothing."""
    target = "worker.example:50051"
    for variable, proxy in (("http_proxy", "127.0.0.1:1"), ("https_proxy", scripted[1])):
        said = proxied(target, **{variable: f"http://{proxy}"})
        assert said.startswith(f"no connection to the worker at {target} through the proxy of {variable} (failed to ")
        assert said.endswith("; add worker.example to no_proxy to reach it without the proxy")


def test_hosts_without_a_proxy_are_names_addresses_and_networks(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    for name in ("grpc_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for listed, target, direct in (
        ("", "10.1.2.3:5", False),
        ("10.0.0.0/8", "10.1.2.3:5", True),
        ("10.0.0.0/8", "ipv4:10.1.2.3:5", True),
        ("fd00::/8", "[fd00::7]:5", True),
        ("10.0.0.0/8", "[fd00::7]:5", False),
        ("corp", "gpu.CORP:5", True),
        ("a.b, *.example", "worker.example:5", True),
        ("*", "worker.example:5", True),
        ("corp", "gpu.notcorp:5", False),
        ("", "unix:/run/worker", True),
        ("", "vsock:2:50051", True),
    ):
        monkeypatch.setenv("no_proxy", listed)
        assert (proxy_of(Address(target)) is None) == direct, (listed, target)
    # The client looks these names up itself, and gRPC sees only addresses.
    monkeypatch.setenv("no_proxy", "corp")
    assert proxy_of(Address("10.1.2.3:5", "gpu.corp")) is None and proxy_of(Address("10.1.2.3:5")) == "https_proxy"


def test_a_worker_that_does_not_answer_is_not_said_to_want_tls():
    """A worker that is stopped, whose connections the system accepts."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for host in ("127.0.0.1", "localhost"):
            with (
                Client(f"{host}:{port}", retry_s=0, timeout_s=60) as client,
                pytest.raises(lumigrad.Unavailable, match=f"{host}:{port} accepts connections but does not answer"),
            ):
                client.info()


def test_a_closed_client_says_so(scripted):
    client = Client(scripted[1])
    client.close()
    with pytest.raises(lumigrad.LumigradError, match="this client is closed"):
        client.info()


def test_the_target_comes_from_the_argument_the_environment_or_the_default(monkeypatch):
    monkeypatch.delenv("LUMIGRAD_TARGET", raising=False)
    assert Client().target == "localhost:50051"
    monkeypatch.setenv("LUMIGRAD_TARGET", "renderer:1234")
    assert Client().target == "renderer:1234"
    assert Client("other:1").target == "other:1"


def test_client_arguments_are_checked(tmp_path):
    with pytest.raises(lumigrad.InvalidArgument, match=r"^target: "):
        Client("local host:1")
    with pytest.raises(lumigrad.InvalidArgument, match=r"^timeout_s: expected seconds >= 0.001, got 0"):
        Client(timeout_s=0)
    with pytest.raises(lumigrad.InvalidArgument, match=r"^tls: expected a PEM file"):
        Client(tls=tmp_path / "absent.pem")


@pytest.mark.parametrize(
    "error",
    [
        lumigrad.InvalidArgument.of("width", "expected > 0"),
        lumigrad.ResourceExhausted("busy", retry_after_s=2.0),
        lumigrad.VersionMismatch("updated", scene_id="a", expected=1, actual=2),
        lumigrad.Unavailable("away", is_lasting=True),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_reaches_another_process_whole(error: lumigrad.LumigradError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
