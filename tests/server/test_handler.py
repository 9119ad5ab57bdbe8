"""The handler of every call, on a real socket with servicers that misbehave."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from lumigrad.protos.service import RENDER_SERVICE, SINGLE_REPLY, Stub
from lumigrad.protos.wire import Frame
from lumigrad.server.core import logs
from lumigrad.server.core.accounts import Account, places
from lumigrad.server.core.call import Call
from lumigrad.server.core.config import Config
from lumigrad.server.core.limits import Limits
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.core.notes import Notes
from lumigrad.server.core.progress import Patience
from lumigrad.server.rpc.handler import CallHandler
from lumigrad.server.rpc.methods import Methods
from lumigrad.server.rpc.request_check import RequestCheck
from lumigrad.v1 import render_pb2
from support.calls.raw_calls import failure, violation

# The threads of the server.
THREADS = 8
SECRET = "/home/someone/secret.txt at 0x7f00"


class Misbehaving:
    """A servicer that fails in the way that `how` defines."""

    def __init__(self) -> None:
        self.how: Callable[[], object] = lambda: None
        self.calls: list[weakref.ref[Call]] = []
        # The threads on which calls ran.
        self.threads: set[int] = set()

    def _note(self, call: Call) -> None:
        self.calls.append(weakref.ref(call))
        self.threads.add(threading.get_ident())

    def Release(self, _: render_pb2.ReleaseRequest, call: Call) -> render_pb2.ReleaseReply:
        self._note(call)
        self.how()
        return render_pb2.ReleaseReply()

    def Render(self, frames: Iterator[Frame[Any]], call: Call) -> Iterator[Frame[Any]]:
        self._note(call)
        next(frames)
        yield Frame(render_pb2.RenderReply(payload_bytes=2))
        self.how()
        yield Frame(None, memoryview(b"ab"))

    Backward = RenderBatch = RenderStream = Render


@pytest.fixture
def call_seconds() -> float:
    """How long a call may take."""
    return 0.2


@pytest.fixture
def service(call_seconds: float) -> Iterator[SimpleNamespace]:
    servicer, metrics = Misbehaving(), Metrics()
    notes = Notes(metrics)
    check = RequestCheck(Limits.of(Config()))
    handler = CallHandler(
        notes,
        places("places for calls in progress", 2, has_tenants=False),
        Patience(call_seconds, stall_seconds=250),
        Account("trainings", 1, "--max-trainings"),
    )
    server = grpc.server(ThreadPoolExecutor(THREADS))
    server.add_generic_rpc_handlers((Methods(handler, check).serve(RENDER_SERVICE, servicer),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield SimpleNamespace(
            servicer=servicer,
            handler=handler,
            notes=notes,
            metrics=metrics,
            channel=channel,
            stub=Stub(channel, RENDER_SERVICE),
        )
    server.stop(None).wait()
    notes.close()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    logs.logger.addHandler(caplog.handler)
    with caplog.at_level(logging.INFO, logs.logger.name):
        yield caplog
    logs.logger.removeHandler(caplog.handler)


def raise_secret() -> None:
    raise RuntimeError(SECRET)


def sample(service: SimpleNamespace, name: str, **labels: str) -> float:
    return service.metrics.registry.get_sample_value(name, labels) or 0.0


def write_records(service: SimpleNamespace) -> None:
    """Write the records of all calls, of which the last may be recorded after its caller has the reply."""
    assert service.handler.wait_idle(60)
    service.notes.write()


def release(service: SimpleNamespace, **options: Any) -> Any:
    return service.stub.Release(render_pb2.ReleaseRequest(), timeout=60, **options)


def render(service: SimpleNamespace) -> list[Any]:
    return list(service.stub.Render(iter([Frame(render_pb2.RenderRequest())]), timeout=60))


@pytest.mark.parametrize("call", [release, render])
def test_an_unexpected_error_tells_the_caller_its_request_id_and_nothing_else(
    service: SimpleNamespace, log: pytest.LogCaptureFixture, call: Callable[[SimpleNamespace], Any]
) -> None:
    service.servicer.how = raise_secret
    error = failure(lambda: call(service))
    assert error.code() == grpc.StatusCode.INTERNAL
    request_id = dict(error.trailing_metadata())["x-request-id"]
    assert error.details() == f"internal error, request id {request_id}"
    assert "secret" not in str(error.trailing_metadata())
    write_records(service)
    record = next(record for record in log.records if record.fields.get("code") == "INTERNAL")
    assert record.fields["request_id"] == request_id
    assert record.exc_info[1].args == (SECRET,)


def test_a_decent_request_id_is_kept_and_any_other_is_replaced(service: SimpleNamespace) -> None:
    for given, kept in (("trace-1.2:3", True), ("x" * 65, False), ("a b=c", False), ("", False)):
        _, call = service.stub.Release.with_call(
            render_pb2.ReleaseRequest(), timeout=60, metadata=(("x-request-id", given),)
        )
        echoed = dict(call.trailing_metadata())["x-request-id"]
        assert (echoed == given) == kept
        assert echoed


def test_every_call_is_a_line_and_a_sample(service: SimpleNamespace, log: pytest.LogCaptureFixture) -> None:
    render(service)
    write_records(service)
    fields = next(record.fields for record in log.records if record.fields.get("method") == "RenderService.Render")
    assert (fields["code"], fields["sent"]) == ("OK", 2)
    assert sample(service, "lumigrad_calls_total", method="RenderService.Render", code="OK") == 1
    assert sample(service, "lumigrad_call_seconds_count", method="RenderService.Render") == 1
    assert sample(service, "lumigrad_payload_bytes_total", method="RenderService.Render", direction="sent") == 2


def test_a_call_may_ask_for_a_single_reply(service: SimpleNamespace) -> None:
    once = service.stub.Render.once
    error = failure(lambda: once(Frame(render_pb2.RenderRequest()), timeout=60, metadata=(SINGLE_REPLY,)))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "lumigrad-single-reply: expected a reply with at most 65536 bytes of payload" in error.details()


def test_calls_beyond_the_limit_are_refused_at_once(service: SimpleNamespace) -> None:
    go = threading.Event()
    service.servicer.how = lambda: go.wait(60)
    held = [service.stub.Render(iter([Frame(render_pb2.RenderRequest())]), timeout=60) for _ in range(2)]
    for call in held:
        next(call)
    error = failure(lambda: release(service))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details() == (
        "2 of 2 places for calls in progress are taken (--queue-size), and 1 more is needed; try again later"
    )
    assert sample(service, "lumigrad_rejections_total", reason="busy") == 1
    go.set()
    for call in held:
        list(call)
    service.servicer.how = lambda: None
    release(service)


def test_calls_that_take_too_long_are_ended(service: SimpleNamespace) -> None:
    go = threading.Event()
    service.servicer.how = lambda: go.wait(60)
    # The caller sets no deadline.
    call = service.stub.Render(iter([Frame(render_pb2.RenderRequest())]))
    next(call)
    time.sleep(0.3)
    service.handler.end_overdue()
    assert failure(lambda: next(call)).code() == grpc.StatusCode.CANCELLED
    go.set()


def test_a_caller_can_tell_that_the_worker_itself_ended_the_call(service: SimpleNamespace) -> None:
    """Clients repeat calls that something between them and the worker ended; only workers send a request id."""
    go = threading.Event()
    service.servicer.how = lambda: go.wait(60)
    call = service.stub.Release.future(render_pb2.ReleaseRequest())
    until = time.monotonic() + 60
    while not call.done():
        service.handler.end_overdue()
        assert time.monotonic() < until
        time.sleep(0.05)
    assert call.code() == grpc.StatusCode.CANCELLED
    assert dict(call.initial_metadata())["x-request-id"]
    go.set()


# The call is not to be ended, however long the test takes.
@pytest.mark.parametrize("call_seconds", [250.0])
def test_a_caller_that_waits_long_knows_that_its_call_has_begun(
    service: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lumigrad.server.rpc.handler._ANNOUNCING_SECONDS", 0.0)
    go, told = threading.Event(), threading.Event()
    service.servicer.how = lambda: go.wait(60)
    # Python's clients get the metadata of a single reply only together with its end.
    call = service.channel.unary_stream(f"/{RENDER_SERVICE}/Release")(b"", timeout=120)
    threading.Thread(target=lambda: (call.initial_metadata(), told.set()), daemon=True).start()
    until = time.monotonic() + 60
    while not service.handler.in_progress:
        assert time.monotonic() < until
        time.sleep(0.01)
    service.handler.end_overdue()
    assert told.wait(60)
    assert dict(call.initial_metadata())["x-request-id"]
    go.set()
    assert list(call) == [b""]


@pytest.mark.parametrize("path", ["Render", "Release"])
def test_a_malformed_message_is_an_invalid_argument(service: SimpleNamespace, path: str) -> None:
    make = service.channel.stream_stream if path == "Render" else service.channel.unary_unary
    call = make(f"/{RENDER_SERVICE}/{path}", lambda raw: raw, lambda raw: raw)
    raw = b"\xff\xff\xff"
    error = failure(lambda: list(call(iter([raw]), timeout=60)) if path == "Render" else call(raw, timeout=60))
    assert violation(error) == (f"{path}Request", "expected a well-formed message, got 3 bytes that are not")


def test_a_call_that_says_nothing_is_ended(service: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lumigrad.server.core.progress._SILENT_SECONDS", 0.05)
    forever = threading.Event()

    def say_nothing() -> Iterator[bytes]:
        forever.wait()
        yield from ()

    for method in ("Release", "Render"):
        call = service.channel.stream_stream(f"/{RENDER_SERVICE}/{method}")(say_nothing(), timeout=60)
        until = time.monotonic() + 60
        while service.handler.in_progress or not call.done():
            service.handler.end_overdue()
            assert time.monotonic() < until
            time.sleep(0.01)
        assert call.code() == grpc.StatusCode.CANCELLED
    forever.set()


def test_a_request_that_does_not_come_is_named(service: SimpleNamespace) -> None:
    error = failure(lambda: list(service.channel.stream_stream(f"/{RENDER_SERVICE}/Release")(iter(()), timeout=60)))
    assert violation(error) == ("stream", "expected one message, got none")


@pytest.mark.parametrize("call", [release, render])
def test_a_call_that_has_ended_goes_without_garbage_collection(
    service: SimpleNamespace, call: Callable[[SimpleNamespace], Any]
) -> None:
    """The call's stream is freed too; gRPC refuses streams on a connection where a thousand of them remain."""
    gc.disable()
    try:
        for _ in range(3 * THREADS):
            call(service)
        until = time.monotonic() + 60
        # A thread keeps its last call until it has another one.
        while sum(ref() is not None for ref in service.servicer.calls) > len(service.servicer.threads):
            assert time.monotonic() < until, "calls that have ended are left"
            time.sleep(0.01)
    finally:
        gc.enable()
