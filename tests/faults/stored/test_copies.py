"""Copies from the device that are late, fail, or have lost their target, on the emulated device, which can wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.server.core.errors import DEVICE_LOST, HANG
from lumigrad.v1 import render_pb2
from support.calls.raw_calls import Array, RawClient, opencv_camera, reply_of, spec_of, sphere_cloud, with_scene
from support.calls.raw_lane import RawLane
from support.workers.cuda_machines import EMULATION
from support.workers.faults import Faults
from support.workers.slow_render import wait_for, wait_until
from support.workers.worker import WorkerProcess

CLOUD = sphere_cloud(50)
SMALL = spec_of(opencv_camera(32, 32))
# 768 KiB of colours.
LARGE = spec_of(opencv_camera(256, 256))


class Emulated:
    """A worker on the emulated device, its faults, and a client."""

    def __init__(self, process: WorkerProcess, folder: Path) -> None:
        self.process = process
        self.faults = Faults(folder)
        self.client = RawClient(process.target)

    def start(self, spec: Any, **options: Any) -> Any:
        """Begin a call whose replies are read later."""
        payload = PayloadWriter()
        request = render_pb2.RenderRequest(spec=with_scene(spec, CLOUD, payload))
        return self.client.render_stub.Render(frames_of(request, payload), **{"timeout": 60, **options})

    def hold_copies(self) -> None:
        """Lets no more copies reach the host."""
        self.faults.arm("hold copies")


def color_of(call: Any) -> Array:
    array: Array = reply_of(call, lambda header: header.outputs).arrays["color"]
    return array


@pytest.fixture
def emulated(tmp_path: Path) -> Iterator[Emulated]:
    with EMULATION.worker(faults=tmp_path) as process:
        made = Emulated(process, tmp_path)
        yield made
        made.client.close()


def test_the_device_works_while_results_are_copied(emulated: Emulated) -> None:
    expected = color_of(emulated.start(SMALL))
    emulated.hold_copies()
    call = emulated.start(SMALL)
    wait_for(emulated.process, "lumigrad_predicted_bytes", 0)
    wait_for(emulated.process, "lumigrad_calls_in_progress", 1)
    # A scene is built on the device without copies to the host.
    busy = emulated.process.metric("lumigrad_device_busy_seconds_total")
    emulated.client.put(sphere_cloud(20, seed=5))
    wait_until(lambda: emulated.process.metric("lumigrad_device_busy_seconds_total") > busy, "work of the device")
    assert not call.done()
    emulated.faults.disarm("hold copies")
    assert color_of(call).tobytes() == expected.tobytes()


def test_a_cancelled_call_gives_its_memory_back_after_the_copy(emulated: Emulated) -> None:
    emulated.hold_copies()
    call = emulated.start(SMALL)
    wait_until(lambda: emulated.process.metric("lumigrad_pinned_bytes") > 0, "the copy")
    call.cancel()
    # The copy of the cancelled call goes on, and others wait for it.
    other = emulated.start(SMALL)
    emulated.faults.disarm("hold copies")
    expected = color_of(emulated.start(SMALL))
    assert color_of(other).tobytes() == expected.tobytes()
    # The memory is unpinned after ten seconds.
    wait_for(emulated.process, "lumigrad_pinned_bytes", 0)


def test_a_device_that_is_lost_during_a_copy_ends_the_worker_and_the_call_may_be_repeated(emulated: Emulated) -> None:
    emulated.faults.arm("copy")
    with pytest.raises(grpc.RpcError) as error:
        list(emulated.start(SMALL))
    # The kernels had finished, so they are not to blame.
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    emulated.process.wait_for_log("the device is lost")
    assert emulated.process.wait() == DEVICE_LOST


def test_a_copy_that_does_not_end_ends_the_worker(tmp_path: Path) -> None:
    with EMULATION.worker("--hang-seconds", "5", faults=tmp_path) as process:
        emulated = Emulated(process, tmp_path)
        emulated.hold_copies()
        with pytest.raises(grpc.RpcError) as error:
            list(emulated.start(SMALL))
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
        process.wait_for_log("the device did not come back within 5 s")
        assert process.wait() == HANG
        emulated.client.close()


def test_a_lane_may_close_while_a_reply_is_written_to_it(emulated: Emulated) -> None:
    lane = RawLane(emulated.client)
    emulated.hold_copies()
    call = emulated.start(LARGE, metadata=lane.metadata(1))
    wait_until(lambda: emulated.process.metric("lumigrad_lane_bytes") > 768 << 10, "a region of the reply")
    lane.close()
    wait_for(emulated.process, "lumigrad_lanes", 0)
    emulated.faults.disarm("hold copies")
    list(call)
    color_of(emulated.start(LARGE))


def test_where_memory_cannot_be_pinned_replies_arrive_all_the_same(emulated: Emulated) -> None:
    expected = color_of(emulated.start(LARGE))
    emulated.faults.arm("refuse to pin")
    with RawLane(emulated.client) as lane:
        call = emulated.start(LARGE, metadata=lane.metadata(1))
        assert lane.arrays(call)["color"].tobytes() == expected.tobytes()
