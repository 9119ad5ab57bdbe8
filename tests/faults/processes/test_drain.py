"""SIGTERM: a worker announces its end, finishes its calls, and exits with code 0; a second signal ends it at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lumigrad.protos.wire import Frame
from lumigrad.v1 import render_pb2
from support.calls.raw_calls import RawClient, failure, opencv_camera, spec_of, sphere_cloud
from support.ports import reserved_port
from support.workers.load import Load
from support.workers.slow_render import SlowRender, wait_for, wait_for_work, wait_until
from support.workers.worker import WorkerProcess

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@contextmanager
def draining_worker(lame_duck: float, drain: float, **settings: Any) -> Iterator[tuple[WorkerProcess, RawClient]]:
    times = ("--lame-duck-seconds", str(lame_duck), "--drain-seconds", str(drain), "--stall-seconds", "600")
    process = WorkerProcess("--device", "cpu", *times, **settings)
    client = RawClient(process.target)
    try:
        yield process, client
    finally:
        client.close()
        if process.process.poll() is None:
            process.process.kill()
        process.wait()


def renders(client: RawClient) -> Callable[[], object]:
    spec, cloud = spec_of(opencv_camera(256, 256)), sphere_cloud(2000)
    return lambda: client.render(spec, cloud=cloud)


def start_without_reading(client: RawClient) -> Any:
    """A call that is in progress until its reply, of which the first message is read, is read to its end."""
    spec = spec_of(opencv_camera(2048, 2048))
    spec.scene_ref.scene_id = client.put(sphere_cloud(10)).scene.scene_id
    call = client.render_stub.Render(iter([Frame(render_pb2.RenderRequest(spec=spec))]), timeout=180)
    next(call)
    return call


@pytest.mark.parametrize(("number", "supervised"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
def test_a_drain_under_load_breaks_no_call(number: signal.Signals, supervised: bool, tmp_path: Path) -> None:
    over = tmp_path / "over"
    # The lame-duck time ends once a call was answered in it.
    before = (
        "import os, time",
        "from lumigrad.server.rpc.handler import CallHandler",
        "close = CallHandler.close",
        "def close_late(self):",
        f"    while not os.path.exists({str(over)!r}): time.sleep(0.01)",
        "    close(self)",
        "CallHandler.close = close_late",
    )
    with draining_worker(lame_duck=0, drain=240, supervised=supervised, before=before) as (process, client):
        clients = [RawClient(process.target) for _ in range(3)]
        # The worker stays until this call ends, and refuses others meanwhile.
        unread = start_without_reading(client)
        with Load([renders(client) for client in clients], rate=30) as load:
            load.wait_for_progress()
            process.signal(number)
            process.wait_for_health(NOT_SERVING)
            renders(client)()
            over.touch()
            wait_until(lambda: load.outcomes["UNAVAILABLE"] > 0, "a refused call")
            assert len(list(unread)) > 0
            assert process.wait() == 0
        for client in clients:
            client.close()
    # The refused calls were never begun, and their error says that they may be repeated.
    assert set(load.outcomes) == {"ok", "UNAVAILABLE"}
    codes = {line.split("code=")[1].split()[0] for line in process.log.splitlines() if " call " in line}
    assert codes == {"OK", "UNAVAILABLE"}
    assert "stopped calls=0" in process.log


def test_a_long_call_is_let_finish() -> None:
    with draining_worker(lame_duck=0, drain=60) as (process, client):
        call = SlowRender(client).start(views=16)
        wait_for_work(process)
        process.signal()
        assert sum(frame.data.nbytes for frame in call) == 16 * 256 * 256 * 4
        assert process.wait() == 0


def test_a_call_beyond_the_time_to_drain_is_ended() -> None:
    with draining_worker(lame_duck=0, drain=0.5) as (process, client):
        # The call would take a minute and more.
        call = SlowRender(client, apart=True).start(views=256)
        wait_for_work(process)
        started = time.monotonic()
        process.signal()
        assert process.wait() == 0
        assert time.monotonic() - started < 60
        assert failure(lambda: list(call)).code() == grpc.StatusCode.UNAVAILABLE
        process.wait_for_log("stopped with calls in progress")


def test_a_health_watcher_is_told_and_does_not_delay_the_end() -> None:
    with draining_worker(lame_duck=0.3, drain=240) as (process, client):
        watch = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        started = time.monotonic()
        process.signal()
        assert next(watch).status == NOT_SERVING
        assert process.wait() == 0
        assert time.monotonic() - started < 120


def test_a_reader_that_stands_still_does_not_hold_the_end_up() -> None:
    with draining_worker(lame_duck=0, drain=1) as (process, client):
        call = start_without_reading(client)
        process.signal()
        assert process.wait() == 0
        call.cancel()


@pytest.mark.parametrize("supervised", [False, True])
def test_a_second_signal_forces_the_end(supervised: bool) -> None:
    with draining_worker(lame_duck=0, drain=60, supervised=supervised) as (process, client):
        call = SlowRender(client).start()
        wait_for(process, "lumigrad_calls_in_stage", 1, stage="device")
        process.signal()
        process.wait_for_log("draining")
        started = time.monotonic()
        process.signal()
        assert process.wait() == 128 + signal.SIGTERM
        assert time.monotonic() - started < 60
        assert failure(lambda: list(call)).code() == grpc.StatusCode.UNAVAILABLE


def test_both_ports_are_free_after_the_end() -> None:
    with reserved_port() as port, reserved_port() as metrics_port:
        for _ in range(2):
            with draining_worker(lame_duck=0, drain=1, port=port, metrics_port=metrics_port) as (process, _):
                assert (process.port, process.metrics_port) == (port, metrics_port)
                assert process.stop() == 0
