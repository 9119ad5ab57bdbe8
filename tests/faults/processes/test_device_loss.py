"""A device that is lost or hangs ends its worker at once: callers get errors, and the next worker serves."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lumigrad.client import Client
from lumigrad.client.errors import Internal
from lumigrad.protos.lanes import PACKET_BYTES, Packet, ToCaller, ToWorker
from lumigrad.protos.wire import Frame
from lumigrad.v1 import render_pb2
from support.calls.raw_calls import RawClient, failure, opencv_camera, spec_of, sphere_cloud
from support.calls.raw_lane import RawLane
from support.workers.client_load import CAMERA, cloud
from support.workers.faults import Faults, faulty_worker
from support.workers.slow_render import wait_for
from support.workers.worker import WorkerProcess

# The supervisor leaves a silent worker to the worker's own watchdog, and a lost worker waits for as long as its callers
# need to hear of it.
PATIENT = (
    "from lumigrad.server.process import liveness, slot",
    "slot._LEAST_SILENCE_SECONDS, liveness._REFUSING_SECONDS = 120.0, 60.0",
)
# A process whose stacks are to be logged has time for that on a busy machine.
SLOW_TO_KILL = ("from lumigrad.server.process import child", "child._DUMP_SECONDS = 10.0")


class Calls:
    """The same render from several clients at once, and how each ended."""

    def __init__(self, target: str, count: int) -> None:
        self.codes: list[grpc.StatusCode] = []
        self._target = target
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        client = RawClient(self._target)
        try:
            client.render(spec_of(), cloud=sphere_cloud(3))
            self.codes.append(grpc.StatusCode.OK)
        except grpc.RpcError as error:
            self.codes.append(error.code())
        finally:
            client.close()

    def wait(self) -> list[str]:
        for thread in self._threads:
            thread.join(150)
        return sorted(code.name for code in self.codes)


def test_after_a_sticky_error_the_culprit_is_told_and_those_who_wait_may_try_again(tmp_path: Path) -> None:
    with (
        faulty_worker(tmp_path, before=PATIENT) as (process, faults),
        Client(process.target, timeout_s=240, retry_s=120) as client,
    ):
        expected = client.render(cloud(), CAMERA).color
        faults.arm("not yet")
        faults.arm("sticky")
        calls = Calls(process.target, count=3)
        wait_for(process, "lumigrad_queue_depth", 2)
        faults.disarm("not yet")
        assert calls.wait() == ["INTERNAL", "UNAVAILABLE", "UNAVAILABLE"]
        process.wait_for_log("worker ended device=cpu code=3 reason=device_lost")
        assert np.array_equal(client.render(cloud(), CAMERA).color, expected)
        assert process.metric("lumigrad_worker_last_exit", reason="device_lost") == 1
    assert "an illegal memory access was encountered" in process.log


@pytest.mark.parametrize("fault", ["sticky", "hang"])
def test_health_says_so_before_the_worker_ends(tmp_path: Path, fault: str) -> None:
    with faulty_worker(tmp_path, "--hang-seconds", "5", before=PATIENT) as (process, faults):
        with grpc.insecure_channel(process.target) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=150)
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            faults.arm(fault)
            calls = Calls(process.target, count=1)
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert calls.wait() == ["INTERNAL"]
        process.wait_for_log("restarts=1")
        process.wait_for_health(health_pb2.HealthCheckResponse.SERVING)


def test_an_error_that_passes_ends_nothing(tmp_path: Path) -> None:
    with faulty_worker(tmp_path) as (process, faults), Client(process.target, timeout_s=240, retry_s=120) as client:
        faults.arm("error")
        with pytest.raises(Internal):
            client.render(cloud(), CAMERA)
        time.sleep(2.5)
        client.render(cloud(), CAMERA)
        assert process.metric("lumigrad_worker_restarts_total") == 0


def test_a_device_that_fails_a_trial_is_lost(tmp_path: Path) -> None:
    with faulty_worker(tmp_path) as (process, faults), Client(process.target, timeout_s=240, retry_s=120) as client:
        faults.arm("trial")
        faults.arm("error")
        with pytest.raises(Internal):
            client.render(cloud(), CAMERA)
        process.wait_for_log("the device failed a test render")
        process.wait_for_log("code=3 reason=device_lost")
        client.render(cloud(), CAMERA)


def test_a_device_that_does_not_come_back_ends_the_worker_with_its_stacks(tmp_path: Path) -> None:
    # The limit is long enough for the second call to arrive on a busy machine.
    with (
        faulty_worker(tmp_path, "--hang-seconds", "5", before=PATIENT) as (process, faults),
        Client(process.target, timeout_s=240, retry_s=120) as client,
    ):
        faults.arm("hang")
        calls = Calls(process.target, count=2)
        started = time.monotonic()
        assert calls.wait() == ["INTERNAL", "UNAVAILABLE"]
        assert time.monotonic() - started < 150
        process.wait_for_log("code=4 reason=hang")
        client.render(cloud(), CAMERA)
        assert process.metric("lumigrad_worker_last_exit", reason="hang") == 1
    assert "the device did not come back within 5 s (--hang-seconds)" in process.log
    assert re.search(r"File .*faults.py\", line \d+ in forward", process.log)


def test_memory_that_a_lost_device_may_write_to_is_leased_to_nobody(tmp_path: Path) -> None:
    with (
        faulty_worker(tmp_path, "--hang-seconds", "5", before=PATIENT) as (process, faults),
        RawClient(process.target) as client,
        RawLane(client) as lane,
    ):
        scene_id = client.put(sphere_cloud(3)).scene.scene_id
        spec = spec_of(opencv_camera(400, 300), scene_id=scene_id)
        request = Frame(render_pb2.RenderRequest(spec=spec))
        header, *_ = client.render_stub.Render(iter([request]), metadata=lane.metadata(1), timeout=60)
        region = header.message.outputs[0].tensor.region.region
        lane.release(1)
        faults.arm("hang")
        call = client.render_stub.Render(iter([request]), metadata=lane.metadata(2), timeout=60)
        assert failure(lambda: list(call)).code() == grpc.StatusCode.INTERNAL
        answer = None
        # A worker that has ended sends nothing; its connection is broken, or reset if it had not read the request.
        with suppress(BrokenPipeError, ConnectionResetError):
            lane.send(ToWorker.LEASE, 3, lane.regions[region].nbytes)
            answer = Packet.unpack(lane.link.recv(PACKET_BYTES))
        assert answer in (None, Packet(ToCaller.LEASED, 3, 0))


def hold(process: WorkerProcess, faults: Faults) -> None:
    faults.arm("hold")
    threading.Thread(target=Calls, args=(process.target, 1)).start()


def stop(process: WorkerProcess, _: Faults) -> None:
    os.kill(process.worker_pid, signal.SIGSTOP)


@pytest.mark.parametrize("freeze", [hold, stop])
def test_a_worker_that_gives_no_sign_of_life_is_killed(tmp_path: Path, freeze: object) -> None:
    with (
        faulty_worker(tmp_path, "--hang-seconds", "2", before=SLOW_TO_KILL if freeze is hold else ()) as (
            process,
            faults,
        ),
        Client(process.target, timeout_s=240, retry_s=120) as client,
    ):
        expected = client.render(cloud(), CAMERA).color
        assert callable(freeze)
        freeze(process, faults)
        process.wait_for_log("the worker does not respond: killing it")
        assert np.array_equal(client.render(cloud(), CAMERA).color, expected)
        assert process.metric("lumigrad_worker_last_exit", reason="hang") == 1
    # A process whose lock is held still logs its stacks; a stopped process does nothing at all.
    assert bool(re.search(r"File .*faults.py\", line \d+ in forward", process.log)) == (freeze is hold)
