"""Clients that stop reading or sending hold little memory, and not for long."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import psutil
import pytest

from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import scene_pb2
from support.calls.raw_calls import RawClient, opencv_camera, scene_of, spec_of, sphere_cloud
from support.calls.raw_http2 import Unread
from support.calls.valid_requests import METHODS
from support.fault_proxy import FaultProxy
from support.workers.reader import Reader
from support.workers.slow_render import wait_for, wait_until
from support.workers.worker import WorkerProcess, worker, worker_fixture

MIB = 1 << 20
WIDTH, HEIGHT = 1920, 1080
REPLY = WIDTH * HEIGHT * 3 * 4
STALL_SECONDS = 1.5
WHY = "the caller {} nothing, or less than 64 KiB of a payload, in 1.5 s (--stall-seconds)"
# Memory that a stopped reader may hold besides the arrays of its reply.
ALLOWANCE = 16 * MIB
process = worker_fixture("--stall-seconds", str(STALL_SECONDS))


@contextmanager
def readers(process: WorkerProcess, count: int, target: str = "") -> Iterator[list[Reader]]:
    """Readers whose replies are ready to be read."""
    with ExitStack() as stack:
        with process.channel() as channel:
            scene_id = RawClient("", channel=channel).put(sphere_cloud(5)).scene.scene_id
        started = []
        for _ in range(count):
            started.append(Reader(target or process.target, scene_id, WIDTH, HEIGHT))
            stack.callback(started[-1].end)
        yield started


def stop(reader: Reader, _: FaultProxy) -> None:
    os.kill(reader.process.pid, signal.SIGSTOP)


def freeze(_: Reader, proxy: FaultProxy) -> None:
    proxy.down.frozen = True


def do_nothing(_: Reader, __: FaultProxy) -> None:
    """Asks for no more messages, while its gRPC goes on."""


HOW = [stop, freeze, do_nothing]


def settled_memory(process: WorkerProcess) -> int:
    """The resident bytes once they no longer change."""
    memory = psutil.Process(process.process.pid).memory_info
    last, now = 0, memory().rss
    while abs(now - last) > MIB:
        time.sleep(0.3)
        last, now = now, memory().rss
    return now


def test_a_stopped_reader_holds_little_beside_its_reply() -> None:
    # The first of several readers may wait long for the last one to start.
    with worker("--device", "cpu", "--stall-seconds", "600") as process:
        sizes = []
        for count in (1, 6):
            with readers(process, count) as started:
                for reader in started:
                    os.kill(reader.process.pid, signal.SIGSTOP)
                wait_for(process, "lumigrad_transit_bytes", count * REPLY)
                sizes.append(settled_memory(process))
            wait_for(process, "lumigrad_calls_in_progress", 0)
        each = (sizes[1] - sizes[0]) / 5
        print(f"a stopped reader holds {each / MIB:.1f} MiB, of which its reply {REPLY / MIB:.1f} MiB")
        assert each < REPLY + ALLOWANCE


@pytest.mark.parametrize("how", HOW)
def test_a_reader_that_stops_is_ended(process: WorkerProcess, how: Callable[[Reader, FaultProxy], None]) -> None:
    with (
        FaultProxy(process.target) as proxy,
        readers(process, 1, proxy.target) as (reader,),
        process.channel() as channel,
    ):
        how(reader, proxy)
        # The device stays free.
        RawClient("", channel=channel).render(spec_of(opencv_camera(32, 32)), cloud=sphere_cloud(5))
        process.wait_for_log(f"request_id={reader.request_id} method=RenderService.Render code=CANCELLED")
        assert WHY.format("took") in line_of(process, reader.request_id)
        wait_for(process, "lumigrad_transit_bytes", 0)
        if how is do_nothing:
            assert reader.go_on() == "CANCELLED"


def test_a_slow_reader_is_let_finish(process: WorkerProcess) -> None:
    end = ""
    # The reader may stand still for too long on a busy machine.
    for _ in range(5):
        with FaultProxy(process.target) as proxy, readers(process, 1, proxy.target) as (reader,):
            proxy.down.bytes_per_second = 5 * MIB
            started = time.monotonic()
            end = reader.go_on()
            if end == "done":
                break
    assert end == "done"
    assert time.monotonic() - started > STALL_SECONDS + 0.5, "longer than it may stand still"


def test_a_sender_that_stops_is_ended(process: WorkerProcess) -> None:
    payload = PayloadWriter()
    header = scene_pb2.PutRequest(scene=scene_of(sphere_cloud(200_000), payload))
    go_on = threading.Event()

    def frames() -> Iterator[Frame[Any]]:
        header.payload_bytes = payload.length
        yield Frame(header)
        yield Frame(None, memoryview(bytes(MIB)))
        go_on.wait(60)

    with process.channel() as channel:
        put = RawClient("", channel=channel).scene_stub.Put
        call = put.future(frames(), metadata=(("x-request-id", "stopped-sender"),))
        has_room = lambda: process.metric("lumigrad_transit_bytes") == payload.length or call.done()  # noqa: E731
        wait_until(has_room, "room for the payload")
        assert call.exception(timeout=150).code() == grpc.StatusCode.CANCELLED
        process.wait_for_log("request_id=stopped-sender")
        assert WHY.format("sent") in line_of(process, "stopped-sender")
        wait_for(process, "lumigrad_transit_bytes", 0)
        go_on.set()


def test_a_reply_that_nobody_takes_holds_memory_for_as_long_as_a_reader_may_stop(process: WorkerProcess) -> None:
    """The call itself ended long ago."""
    payload = PayloadWriter()
    header = scene_pb2.PutRequest(scene=scene_of(sphere_cloud(100_000), payload))
    header.payload_bytes = payload.length
    method = METHODS["SceneService/Put"]
    pieces = [memoryview(bytes(buffer)) for buffer in payload.buffers]
    frames = [Frame(header), *(Frame(None, piece) for piece in pieces)]
    unread = Unread(process.port, method.path, [method.serialize_request(each) for each in frames])
    try:
        process.wait_for_log("method=SceneService.Put code=OK")
        wait_for(process, "lumigrad_calls_in_progress", 0)
        assert process.health() == 1
        process.wait_for_log("did not take the end of the reply in 1.5 s (--stall-seconds)")
        wait_for(process, "lumigrad_transit_bytes", 0)
    finally:
        unread.close()


def line_of(process: WorkerProcess, request_id: str) -> str:
    return next(line for line in process.log.splitlines() if f"request_id={request_id} " in line)
