"""Calls that never send anything, and crowds of health checks: other callers are served all the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lumigrad.protos.service import SINGLE_REPLY
from support.calls.raw_calls import RawClient, spec_of, sphere_cloud
from support.calls.valid_requests import ALL_METHODS
from support.workers.tenant import tenant_client
from support.workers.worker import WorkerProcess, worker_fixture

TOKEN = "0123456789abcdef"
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
SERVING = health_pb2.HealthCheckResponse.SERVING
process = worker_fixture("--queue-size", "4", tokens={"alice": TOKEN})
# Silent calls are not ended here, however long the test takes.
few = worker_fixture(
    *("--queue-size", "4", "--max-streams", "16", "--max-trainings", "16", "--stall-seconds", "600"),
    tokens={"alice": TOKEN},
    before=("from lumigrad.server.core import progress", "progress._SILENT_SECONDS = 600.0"),
)


@contextmanager
def silent(target: str, path: str, count: int) -> Iterator[list[grpc.Call]]:
    """Open calls whose requests never arrive."""
    said_enough = threading.Event()

    def say_nothing() -> Iterator[bytes]:
        said_enough.wait()
        yield from ()

    # A separate connection.
    with grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        calls = [channel.stream_stream(path)(say_nothing()) for _ in range(count)]
        try:
            yield calls
        finally:
            said_enough.set()
            for call in calls:
                call.cancel()


def assert_alice_is_served(process: WorkerProcess) -> None:
    with process.channel() as channel:
        client: RawClient = tenant_client(channel, TOKEN)
        assert client.render(spec_of(), cloud=sphere_cloud(5), timeout=60).arrays


def test_a_stranger_who_says_nothing_is_sent_away_at_once(process: WorkerProcess) -> None:
    for method in ALL_METHODS:
        with silent(process.target, method.path, 20) as calls:
            assert {call.code() for call in calls} == {grpc.StatusCode.UNAUTHENTICATED}, method.path
    assert_alice_is_served(process)


def test_silent_health_checks_take_no_place_from_calls_nor_from_other_checks(process: WorkerProcess) -> None:
    with silent(process.target, CHECK, 150) as checks, silent(process.target, WATCH, 150) as watches:
        # The newest calls stay; older ones are ended as others come.
        until = time.monotonic() + 150
        while sum(call.done() for call in (*checks, *watches)) < 296:
            assert time.monotonic() < until
            time.sleep(0.01)
        for _ in range(5):
            assert process.health() == SERVING
            assert_alice_is_served(process)


def test_crowds_of_watchers_take_no_place_from_calls_nor_from_checks(process: WorkerProcess) -> None:
    with ExitStack() as stack:
        # Separate connections, since one may not have that many calls.
        own = [("grpc.use_local_subchannel_pool", 1)]
        channels = [stack.enter_context(grpc.insecure_channel(process.target, own)) for _ in range(4)]
        watchers = []
        for channel in channels:
            watch = health_pb2_grpc.HealthStub(channel).Watch
            for _ in range(100):
                watchers.append(watch(health_pb2.HealthCheckRequest()))
                assert next(watchers[-1]).status == SERVING
        assert process.health() == SERVING
        assert_alice_is_served(process)
        for watcher in watchers:
            watcher.cancel()


def test_watchers_that_leave_while_others_come_do_not_stop_the_server(process: WorkerProcess) -> None:
    def watch_and_leave(_: int) -> None:
        with grpc.insecure_channel(process.target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            for _ in range(200):
                watcher = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=150)
                assert next(watcher).status == SERVING
                watcher.cancel()

    # Fewer than the number of calls that may be silent at once.
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(watch_and_leave, range(3)))
    assert process.health() == SERVING
    assert_alice_is_served(process)


def test_a_health_check_without_a_message_is_refused(process: WorkerProcess) -> None:
    with grpc.insecure_channel(process.target) as channel, pytest.raises(grpc.RpcError) as error:
        list(channel.stream_stream(CHECK)(iter(()), timeout=60))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


# Methods whose requests C++ reads, with the metadata for it.
READERS = {"RenderService/Render": [SINGLE_REPLY], "RenderService/RenderStream": []}


@pytest.mark.parametrize("name", READERS)
def test_calls_that_are_cancelled_before_they_say_anything_leave_their_connection_usable(
    few: WorkerProcess, name: str
) -> None:
    """gRPC refuses all further calls of a connection once 128 of its calls are left on the worker."""
    said_enough = threading.Event()

    def say_nothing() -> Iterator[bytes]:
        said_enough.wait()
        yield from ()

    metadata = [("authorization", f"Bearer {TOKEN}"), *READERS[name]]
    with grpc.insecure_channel(few.target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        ask = channel.stream_stream(f"/lumigrad.v1.{name}")
        for _ in range(20):
            calls = [ask(say_nothing(), metadata=metadata, timeout=120) for _ in range(8)]
            wait_for_calls(few, 8)
            for call in calls:
                call.cancel()
            wait_for_calls(few, 0)
        client: RawClient = tenant_client(channel, TOKEN)
        assert client.render(spec_of(), cloud=sphere_cloud(5), timeout=60).arrays
    said_enough.set()


def wait_for_calls(process: WorkerProcess, count: int) -> None:
    until = time.monotonic() + 150
    while process.metric("lumigrad_calls_in_progress") != count:
        assert time.monotonic() < until
        time.sleep(0.01)
