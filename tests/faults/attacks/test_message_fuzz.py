"""Arbitrary messages over a real socket: errors are the caller's fault, and the worker goes on.

Each method is tried for LUMIGRAD_FUZZ_SECONDS, 0.2 by default.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import grpc
import hypothesis.strategies as st
import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given

from lumigrad.protos.service import Method
from lumigrad.v1 import distance_pb2, render_pb2, scene_pb2, training_pb2, worker_pb2
from support.calls.message_strategies import changed, messages
from support.calls.raw_calls import RawClient, sphere_cloud
from support.calls.raw_messages import CALLERS_FAULT, status_of
from support.calls.repeats import BATCH, SECONDS, repeat
from support.calls.valid_requests import (
    ALL_METHODS,
    FRAME_OF,
    valid_distance_requests,
    valid_requests,
    valid_training_requests,
)
from support.workers.unharmed import unharmed_after
from support.workers.worker import WorkerProcess, worker_fixture

# Small limits: the machine has other tests to run.
LIMITS = ["--max-pixels", "20000", "--max-cameras", "8", "--max-payload-mib", "1"]
FILES = (render_pb2, distance_pb2, scene_pb2, training_pb2, worker_pb2)
INPUTS = {
    f"/{service.full_name}/{method.name}": method.input_type
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
process = worker_fixture(*LIMITS)


@pytest.fixture(autouse=True)
def unharmed(process: WorkerProcess, client: RawClient) -> Iterator[None]:
    with unharmed_after(process, client):
        yield


def chunk_of(method: Method, payload: bytes) -> list[bytes]:
    """The payload in a separate message."""
    return [FRAME_OF[method.path](data=payload).SerializeToString()] if payload else []


def expected(message: Any) -> Collection[grpc.StatusCode]:
    """The statuses that a request may get; a frame's request may contain a deadline."""
    is_timed = getattr(message, "timeout_ms", 0) > 0
    return {*CALLERS_FAULT, *([grpc.StatusCode.DEADLINE_EXCEEDED] if is_timed else ())}


@pytest.mark.parametrize("method", ALL_METHODS, ids=lambda method: method.path)
def test_any_message_is_the_callers_fault(client: RawClient, method: Method) -> None:
    words = (client.put(sphere_cloud(3)).scene.scene_id,)
    streams = method.path in FRAME_OF

    @BATCH
    @given(messages(INPUTS[method.path], words), st.binary(max_size=200), st.booleans())
    def run(message: Any, payload: bytes, is_honest: bool) -> None:
        if streams and is_honest:
            message.payload_bytes = len(payload)
        requests = [message.SerializeToString(), *(chunk_of(method, payload) if streams else ())]
        assert status_of(client.channel, method, requests) in expected(message)

    repeat(run, SECONDS)


def test_valid_messages_with_some_fields_changed_are_the_callers_fault(client: RawClient) -> None:
    words = (client.put(sphere_cloud(3)).scene.scene_id,)
    valid = [*valid_requests(client), *valid_distance_requests(client), *valid_training_requests(client)]
    for method, header, payload in valid:
        repeat(fuzz_around(client, method, header, payload, words), SECONDS / 2)


def fuzz_around(
    client: RawClient, method: Method, header: bytes, payload: bytes, words: tuple[str, ...]
) -> Callable[[], None]:
    """A function that sends changed copies of a valid request."""

    @BATCH
    @given(changed(GetMessageClass(INPUTS[method.path]).FromString(header), words))
    def run(message: Any) -> None:
        requests = [message.SerializeToString(), *chunk_of(method, payload)]
        assert status_of(client.channel, method, requests) in expected(message)

    return run
