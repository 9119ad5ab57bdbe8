"""No bytes that arrive on the port end the worker, reveal more than a status, or harm another call."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from lumigrad.protos.service import Method
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import errors_pb2, scene_pb2
from support.calls.raw_calls import (
    RawClient,
    color_gradient,
    detail,
    failure,
    scene_of,
    spec_of,
    sphere_cloud,
    violation,
)
from support.calls.raw_messages import CALLERS_FAULT, status_of
from support.calls.valid_requests import ALL_METHODS
from support.workers.unharmed import unharmed_after
from support.workers.worker import WorkerProcess, worker_fixture

Code = grpc.StatusCode
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# Small limits: a flipped bit can ask for a large picture, and the machine has other tests to run.
process = worker_fixture("--max-pixels", "20000", "--max-cameras", "8", "--max-payload-mib", "8")


@pytest.fixture(autouse=True)
def unharmed(process: WorkerProcess, client: RawClient) -> Iterator[None]:
    with unharmed_after(process, client):
        yield


@pytest.mark.parametrize(
    "junk",
    [
        b"\x00" * 64,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        PREFACE[:10],
        PREFACE + b"\xff" * 200,
        PREFACE + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
        random.Random(1).randbytes(10_000),
        b"",
    ],
)
def test_junk_on_the_port_is_shrugged_off(process: WorkerProcess, junk: bytes) -> None:
    with socket.create_connection(("127.0.0.1", process.port), timeout=60) as connection:
        connection.sendall(junk)


def test_junk_on_the_metrics_port_is_shrugged_off(process: WorkerProcess) -> None:
    for junk in (b"\xff" * 100, b"BREW /coffee HTCPCP/1.0\r\n\r\n", b""):
        with socket.create_connection(("127.0.0.1", process.metrics_port), timeout=60) as connection:
            connection.sendall(junk)
    assert "lumigrad_calls_total" in process.metrics()


@pytest.mark.parametrize("method", ALL_METHODS, ids=lambda method: method.path)
def test_malformed_messages_are_the_callers_fault(client: RawClient, method: Method) -> None:
    rng = random.Random(method.path)
    for length in (1, 2, 3, 5, 10, 30, 100, 300) * 3:
        assert status_of(client.channel, method, [rng.randbytes(length)]) in CALLERS_FAULT


def put_frames(client: RawClient, frames: list[Frame[Any]]) -> Any:
    return client.scene_stub.Put(iter(frames), timeout=60)


def header_and_data(count: int = 30) -> tuple[scene_pb2.PutRequest, bytes]:
    payload = PayloadWriter()
    header = scene_pb2.PutRequest(scene=scene_of(sphere_cloud(count, seed=52), payload))
    header.payload_bytes = payload.length
    return header, b"".join(payload.buffers)


def test_streams_that_do_not_start_with_a_header_are_refused(client: RawClient) -> None:
    for frames, got in (([], "nothing"), ([Frame(None, memoryview(b"abc"))], "data")):
        error = failure(lambda frames=frames: put_frames(client, frames))
        assert violation(error) == ("stream", f"expected a header first, got {got}")


def test_too_few_bytes_are_refused(client: RawClient) -> None:
    header, data = header_and_data()
    error = failure(lambda: put_frames(client, [Frame(header), Frame(None, memoryview(data[:-1]))]))
    assert violation(error) == ("data", f"expected payload_bytes = {len(data)} bytes in all, got {len(data) - 1}")


@pytest.mark.parametrize("together", [True, False])
def test_too_many_bytes_are_refused(client: RawClient, together: bool) -> None:
    header, data = header_and_data()
    tail = [data + b"x"] if together else [data, b"x"]
    error = failure(lambda: put_frames(client, [Frame(header), *(Frame(None, memoryview(piece)) for piece in tail)]))
    field, description = violation(error)
    assert (field, description.split(",")[0]) == ("data", f"expected payload_bytes = {len(data)} bytes in all")


@pytest.mark.parametrize("after", [True, False])
def test_a_second_header_is_refused(client: RawClient, after: bool) -> None:
    header, data = header_and_data()
    chunk = Frame(None, memoryview(data))
    frames = [Frame(header), chunk, Frame(header)] if after else [Frame(header), Frame(header), chunk]
    assert violation(failure(lambda: put_frames(client, frames))) == (
        "scene",
        "expected only data after the header, got a second header",
    )


def test_tensors_outside_of_the_payload_are_refused(client: RawClient) -> None:
    header, data = header_and_data()
    header.scene.spheres.radii.payload.offset = len(data) - 4
    error = failure(lambda: put_frames(client, [Frame(header), Frame(None, memoryview(data))]))
    assert violation(error)[0] == "scene.spheres.radii.payload"


def test_a_message_above_grpcs_limit_is_refused_by_it(client: RawClient) -> None:
    header, _ = header_and_data()
    header.payload_bytes = 5 << 20
    error = failure(lambda: put_frames(client, [Frame(header), Frame(None, memoryview(bytes(5 << 20)))]))
    assert error.code() == Code.RESOURCE_EXHAUSTED


def test_what_is_echoed_in_errors_is_cut_short(client: RawClient) -> None:
    long = "Ω" * 1_000_000
    error = failure(lambda: client.render(spec_of(outputs=[long]), cloud=sphere_cloud(3)))
    assert violation(error)[1].endswith("Ω… (1000000 characters)")
    for call in (lambda: client.render(spec_of(scene_id=long)), lambda: client.get(scene_id=long)):
        assert violation(failure(call))[1] == "expected at most 256 bytes, got 2000000"
    gradient = {"color": color_gradient(1, 2, 2, 3)}
    error = failure(lambda: client.backward(gradient, context_id="x" * 256))
    assert error.code() == Code.FAILED_PRECONDITION
    assert len(detail(error, errors_pb2.ContextLost).context_id) < 230


def test_unknown_methods_are_unimplemented(client: RawClient) -> None:
    call = client.channel.unary_unary("/lumigrad.v1.RenderService/Paint")
    assert failure(lambda: call(b"", timeout=60)).code() == Code.UNIMPLEMENTED
