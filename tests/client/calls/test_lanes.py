"""Payloads through shared memory: equal to streamed ones while they are in use, and freed afterwards."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import partial

import numpy as np
import psutil
import pytest
import torch
from google.protobuf.message import Message

from lumigrad.client import Camera, Client, Gaussians, InvalidArgument, Mesh, Spheres, World
from lumigrad.client.transport.lane import Lane, LaneFailed
from lumigrad.client.transport.lanes import LaneTrip
from lumigrad.client.values.world import Obstacle, VoxelGrid
from lumigrad.protos.lanes import Packet, ToCaller
from lumigrad.protos.tensors import PayloadReader
from support.gaussians.clouds import post
from support.meshes.shapes import torus
from support.threads import run_at_once
from support.workers.client_load import client_fixture, descriptors, wait_for_lane
from support.workers.slow_render import wait_until
from support.workers.worker import WorkerProcess, worker

CAMERA = Camera.orbit((0, 0, 0), distance=4, azimuth_degrees=30, elevation_degrees=20, width=320, height=288)
# Bytes of CAMERA's colours: more than 1 MiB, the size from which replies use a lane.
BYTES = 320 * 288 * 3 * 4


def cloud(count: int = 30_000, seed: int = 0) -> Spheres:
    rng = np.random.default_rng(seed)
    return Spheres(rng.normal(0, 0.5, (count, 3)), rng.uniform(0, 1, (count, 3)), np.full(count, 0.02))


SMALL = cloud(100)


shared = client_fixture("worker_process", lane="shared")
stream = client_fixture("worker_process", lane="stream")


def everything(client: Client) -> Iterator[tuple[str, np.ndarray]]:
    """Large results of all calls, by name."""
    gaussians = Gaussians(**{name: np.repeat(array, 20, axis=0) for name, array in post().tensors.items()})
    for scene, outputs in ((cloud(), ("color", "depth", "hits")), (gaussians, ("color", "radii", "expected_depth"))):
        for subject in (scene, client.put(scene)):
            for retain in (False, True):
                frame = client.render(subject, [CAMERA, CAMERA], outputs=outputs, retain=retain)
                yield from frame.items()
                for sparse in (False, True):
                    gradients = frame.backward(color=np.ones_like(frame.color), sparse=sparse)
                    yield from gradients.items()
        yield from client.get(client.put(scene).scene_id, with_tensors=True).scene.tensors.items()
        name = next(iter(scene.tensors))
        moved = client.update(client.put(scene), **{name: scene.tensors[name] + 1})
        yield from client.get(moved.scene_id, with_tensors=True).scene.tensors.items()
        client.delete(moved)
    shape = torus(200, 100)
    mesh = client.put(Mesh(shape.vertices, shape.faces))
    yield from client.get(mesh.scene_id, with_tensors=True).scene.tensors.items()
    grid = VoxelGrid(np.random.default_rng(1).normal(size=(60, 50, 40)), 0.05)
    spheres = np.random.default_rng(2).uniform(-1, 1, (2, 10, 2000, 4)).astype(np.float32)
    for world in (mesh, World([Obstacle(grid)])):
        found = client.query(world, spheres, outputs=("distance", "normal", "cost", "beyond"), retain=True)
        yield from found.items()
        yield from found.backward(np.ones_like(found.cost)).items()
        yield "field", client.field(world, size=(2, 2, 2), voxel_size=0.04).distances


def test_results_are_the_same_bit_for_bit(worker_process: WorkerProcess, stream: Client, shared: Client) -> None:
    assert (stream.lane, shared.lane) == ("stream", "shared")
    before = worker_process.metric("lumigrad_lane_fallbacks_total")
    compared = 0
    for (name, expected), (_, got) in zip(everything(stream), everything(shared), strict=True):
        assert got.dtype == expected.dtype and got.shape == expected.shape, name
        assert got.tobytes() == expected.tobytes(), name
        assert got.flags.writeable == expected.flags.writeable, name
        compared += got.nbytes >= 1 << 18
    assert compared > 40
    assert worker_process.metric("lumigrad_lane_bytes") > 0
    assert worker_process.metric("lumigrad_lane_fallbacks_total") == before


def test_gradients_of_gaussians_are_computed_where_the_client_reads_them(shared: Client) -> None:
    gaussians = Gaussians(**{name: np.repeat(array, 200, axis=0) for name, array in post().tensors.items()})
    frame = shared.render(gaussians, CAMERA, retain=True)
    plain, halved = (frame.backward(frame.color, gradient_format=form) for form in ("float32", "float16"))
    # "encode" is the stage that copies gradients to shared memory.
    assert "encode" not in plain.timings.stages and "encode" in halved.timings.stages
    assert all(array.nbytes >= 1 << 18 for array in plain.values())


@pytest.mark.parametrize(
    ("nbytes", "seals", "is_mapped"),
    [(8192, fcntl.F_SEAL_SHRINK, True), (4096, fcntl.F_SEAL_SHRINK, False), (8192, fcntl.F_SEAL_GROW, False)],
    ids=["sealed", "short", "unsealed"],
)
def test_memory_that_could_vanish_is_not_mapped(nbytes: int, seals: int, is_mapped: bool) -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    descriptor = os.memfd_create("region", os.MFD_ALLOW_SEALING)
    with here, there:
        os.ftruncate(descriptor, nbytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        lane = Lane(here, b"0" * 16)
        socket.send_fds(there, [Packet(ToCaller.REGION, 1, 8192).pack()], [descriptor])
        os.close(descriptor)
        if is_mapped:
            assert lane.memory(1, 5.0).nbytes == 8192
            return
        with pytest.raises(LaneFailed, match="could vanish"):
            lane.memory(1, 5.0)
        assert not lane.is_alive
        # Later calls do not wait for what does not come.
        with pytest.raises(LaneFailed, match="has ended"):
            lane.memory(2, 5.0)


def test_a_lane_is_opened_once_a_payload_is_large() -> None:
    # A worker of its own, since the lines of other tests' lanes may still be on their way to the log.
    with worker("--device", "cpu") as process, Client(process.target) as client:
        for _ in range(3):
            client.render(SMALL, Camera.orbit((0, 0, 0), 4, 0, 0, width=16, height=16))
        assert client._workers.members()[0].connection.lanes._lane is None
        client.render(SMALL, CAMERA)
        client.render(SMALL, CAMERA)
        wait_for_lane(client)
        opened = client._workers.members()[0].connection.lanes._lane
        client.render(SMALL, CAMERA)
        assert opened is not None
        assert client._workers.members()[0].connection.lanes._lane is opened
        process.wait_for_log("lane opened")
        assert process.metric("lumigrad_lanes") == 1


def test_arrays_stay_as_they_are_while_anybody_has_them(worker_process: WorkerProcess, shared: Client) -> None:
    handle = shared.put(SMALL)
    frames = [shared.render(handle, CAMERA, background=value / 10) for value in range(5)]
    kept = [frame.color.copy() for frame in frames]
    views = [frame.color[10:, :, 1] for frame in frames]
    tensors = [torch.from_numpy(frame.color[::2]) for frame in frames]
    del frames
    gc.collect()
    for _ in range(20):
        shared.render(handle, CAMERA)
    for copy, view, tensor in zip(kept, views, tensors, strict=True):
        assert np.array_equal(view, copy[10:, :, 1])
        assert np.array_equal(tensor.numpy(), copy[::2])


def test_arrays_outlive_their_client() -> None:
    # A worker of its own, since the lanes of other tests may end meanwhile.
    with worker("--device", "cpu") as process:
        with Client(process.target, lane="shared") as client:
            wait_for_lane(client)
            frame = client.render(SMALL, CAMERA)
            copy = frame.color.copy()
        del client
        gc.collect()
        assert np.array_equal(frame.color, copy)
        wait_until(lambda: process.metric("lumigrad_lanes") == 1, "the memory is still in use")
        del frame
        gc.collect()
        wait_until(lambda: process.metric("lumigrad_lanes") == 0)


def test_a_full_lane_falls_back_to_the_stream() -> None:
    with worker("--device", "cpu", "--lane-mib", "8") as process, Client(process.target, lane="shared") as client:
        wait_for_lane(client)
        # 4 MiB hold three frames of 1.05 MiB.
        frames = [client.render(SMALL, CAMERA) for _ in range(8)]
        assert all(np.array_equal(frame.color, frames[0].color) for frame in frames)
        assert process.metric("lumigrad_lane_fallbacks_total", reason="full") == 5
        assert process.metric("lumigrad_lane_bytes") <= 4 << 20
        # The upload does not fit either.
        gradients = [frame.backward(np.ones_like(frame.color)).positions for frame in frames]
        assert all(np.array_equal(gradient, gradients[0]) for gradient in gradients)
        del frames, gradients
        gc.collect()
        # The worker answers this after it has got the memory back.
        lane = client._workers.members()[0].connection.lanes._lane
        assert lane is not None
        assert lane.lease_region(lane.hold(), 1 << 40, 60.0) is None
        client.render(SMALL, CAMERA)
        assert process.metric("lumigrad_lane_fallbacks_total", reason="full") == 5


@pytest.mark.parametrize("way", ["calls", "frames"])
def test_small_replies_come_by_the_stream_where_a_lane_is_open(
    shared: Client, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    handle = shared.put(cloud())
    assert shared.lane == "shared"
    received: list[int] = []
    reader = LaneTrip.reader

    def spy(trip: LaneTrip, header: Message, payload: memoryview) -> PayloadReader:
        result = reader(trip, header, payload)
        received.append(trip.received_bytes)
        return result

    monkeypatch.setattr(LaneTrip, "reader", spy)
    small = Camera.orbit((0, 0, 0), distance=4, azimuth_degrees=30, elevation_degrees=20, width=320, height=240)
    cameras = [small, CAMERA, small]
    if way == "calls":
        frames = [shared.render(handle, camera) for camera in cameras]
    else:
        with shared.stream(handle) as stream:
            frames = list(stream.frames(cameras))
    assert received == [0, BYTES, 0]
    assert [frame.color.shape[0] for frame in frames] == [240, 288, 240]


def test_replies_are_single_only_where_the_worker_says_so(shared: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = shared.put(SMALL)
    # Without a lane, the reply for this camera is too long for one message.
    camera = Camera.orbit((0, 0, 0), distance=4, azimuth_degrees=30, elevation_degrees=20, width=640, height=480)
    expected = shared.render(handle, camera)
    lane = shared._workers.members()[0].connection.lanes._lane
    assert lane is not None and lane.has_single_replies
    render = shared._workers.members()[0].connection.render.Render
    asked: list[str] = []
    for name in ("single", "once"):
        real = getattr(render, name)
        monkeypatch.setattr(render, name, lambda *a, real=real, name=name, **k: (asked.append(name), real(*a, **k))[1])
    for lane.has_single_replies in (True, False):
        assert np.array_equal(shared.render(handle, camera).color, expected.color)
    assert asked == ["once", "single"]


def test_replies_below_the_limit_of_grpc_are_single_where_the_worker_sends_such(
    worker_process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(worker_process.target, lane="stream") as client:
        handle = client.put(SMALL)
        member = client._workers.members()[0].connection
        asked: list[str] = []
        for name in ("single", "once"):
            real = getattr(member.render.Render, name)
            note = lambda *a, real=real, name=name, **k: (asked.append(name), real(*a, **k))[1]  # noqa: E731
            monkeypatch.setattr(member.render.Render, name, note)
        expected = client.render(handle, CAMERA)
        # An earlier worker does not know the limit that the client announces.
        monkeypatch.setattr("lumigrad.client.transport.connection._MESSAGE_BYTES", ("unknown", "1"))
        assert np.array_equal(client.render(handle, CAMERA).color, expected.color)
        assert asked == ["once", "once", "single"]


def test_a_worker_without_shared_memory_is_used_by_the_stream() -> None:
    with worker("--device", "cpu", "--lane-mib", "0") as process:
        with Client(process.target, lane="shared") as client:
            with pytest.warns(RuntimeWarning, match="no shared memory with the worker at .*--lane-mib 0"):
                client.render(SMALL, CAMERA)
            assert client.lane == "stream"
        with warnings.catch_warnings(), Client(process.target) as client:
            warnings.simplefilter("error")
            for _ in range(3):
                client.render(SMALL, CAMERA)
            assert client.lane == "stream"


def test_an_unknown_lane_is_refused() -> None:
    with pytest.raises(InvalidArgument, match='lane: expected one of "auto", "stream", "shared", got \'tcp\''):
        Client("localhost:1", lane="tcp")


def test_the_lane_is_opened_anew_after_a_restart() -> None:
    with (
        worker("--device", "cpu", supervised=True) as process,
        Client(process.target, lane="shared", retry_s=60) as client,
    ):
        wait_for_lane(client)
        handle = client.put(SMALL)
        before = client.render(handle, CAMERA)
        copy = before.color.copy()
        psutil.Process(process.worker_pid).kill()
        after = client.render(handle, CAMERA)
        assert np.array_equal(after.color, copy)
        assert np.array_equal(before.color, copy), "what the dead worker wrote"
        wait_for_lane(client)
        assert np.array_equal(client.render(handle, CAMERA).color, copy)
        wait_until(lambda: process.metric("lumigrad_lanes") == 1)


def test_a_call_whose_lane_was_lost_is_made_again_with_the_stream(
    worker_process: WorkerProcess, shared: Client, stream: Client
) -> None:
    frame, expected = (client.render(SMALL, CAMERA, retain=True) for client in (shared, stream))
    assert shared.lane == "shared"
    before = worker_process.metric("lumigrad_lane_fallbacks_total", reason="lost")
    shared._workers.members()[0].connection.lanes._lane._token = bytes(16)
    gradient = np.ones_like(expected.color)
    got = frame.backward(gradient)
    assert np.array_equal(got.positions, expected.backward(gradient).positions)
    assert worker_process.metric("lumigrad_lane_fallbacks_total", reason="lost") == before + 1


@pytest.mark.filterwarnings("ignore:no shared memory")
@pytest.mark.parametrize("way", ["render", "stream"])
@pytest.mark.parametrize("more", [0, 1], ids=["to receive", "to map"])
def test_without_descriptors_for_memory_replies_come_by_the_stream(
    worker_process: WorkerProcess, shared: Client, stream: Client, more: int, way: str
) -> None:
    scene, expected = shared.put(SMALL), stream.render(SMALL, CAMERA).color
    assert shared.lane == "shared"
    # Earlier tests may have left some, which expire at any time.
    states = worker_process.metric("lumigrad_contexts")
    with shared.stream(scene, retain=True) as frames, descriptors(more):
        got = [shared.render(scene, CAMERA, retain=True)] if way == "render" else list(frames.frames([CAMERA] * 3))
    assert all(np.array_equal(frame.color, expected) for frame in got)
    # The states of replies that could not be mapped are released, too.
    del got
    wait_until(lambda: worker_process.metric("lumigrad_contexts") <= states, "states that are released")


def test_threads_share_a_lane(worker_process: WorkerProcess, shared: Client, stream: Client) -> None:
    handle = stream.put(SMALL)
    expected = [stream.render(handle, CAMERA, background=value).color for value in range(4)]
    gradients = [stream.render(handle, CAMERA).backward(array).positions for array in expected]
    wrong: list[int] = []

    def work(value: int) -> None:
        for _ in range(15):
            frame = shared.render(handle, CAMERA, background=value, retain=True)
            gradient = shared.render(handle, CAMERA).backward(expected[value])
            if not np.array_equal(frame.color, expected[value]):
                wrong.append(value)
            if not np.array_equal(gradient.positions, gradients[value]):
                wrong.append(-value)

    run_at_once(*(partial(work, value) for value in range(4)))
    assert not wrong
    assert shared.lane == "shared"


FORKED = """
import os, sys, time
import numpy as np
from lumigrad.client import Camera, Client, Spheres
from lumigrad.client.transport import lane, lanes
camera = Camera.orbit((0, 0, 0), 4, 30, 20, width=320, height=288)
for module in (lane, lanes):
    module.PATIENCE_S = 100.0
client = Client(sys.argv[1], lane="shared")
while client.lane != "shared":
    time.sleep(0.1)
frame = client.render(Spheres(np.zeros((1, 3)), np.ones((1, 3)), np.ones(1)), camera)
copy = frame.color.copy()
child = os.fork()
if not child:
    same = np.array_equal(frame.color, copy)
    del frame
    os._exit(0 if same else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child sees other pictures"
assert np.array_equal(frame.color, copy), "the child gave the parent's memory back"
assert client.lane == "shared"
assert np.array_equal(client.render(Spheres(np.zeros((1, 3)), np.ones((1, 3)), np.ones(1)), camera).color, copy)
"""


def test_a_forked_child_leaves_the_lane_to_its_parent(worker_process: WorkerProcess) -> None:
    command = [sys.executable, "-c", FORKED, worker_process.target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr


def test_hundreds_of_frames_leave_nothing_behind(worker_process: WorkerProcess, shared: Client) -> None:
    handle = shared.put(SMALL)
    processes = [psutil.Process(worker_process.process.pid), psutil.Process()]

    def round_of(count: int) -> tuple[list[int], list[int], float, list[int]]:
        for _ in range(count):
            frame = shared.render(handle, CAMERA, retain=True)
            frame.backward(frame.color, release=True)
        gc.collect()
        descriptors = [process.num_fds() for process in processes]
        memory = [process.memory_info().rss for process in processes]
        shared_maps = [
            sum(each.path.startswith(("/memfd:", "/dev/shm/")) for each in process.memory_maps(grouped=False))
            for process in processes
        ]
        return descriptors, memory, worker_process.metric("lumigrad_lane_bytes"), shared_maps

    descriptors, memory, lane_bytes, shared_maps = round_of(50)
    later_descriptors, later_memory, later_bytes, later_maps = round_of(200)
    # A leak of 400 payloads would be 422 MiB. Memory that is on its way back, or of earlier lanes, may be counted.
    assert later_bytes <= lane_bytes + 20 * BYTES
    for now, then in zip([*later_descriptors, *later_maps], [*descriptors, *shared_maps], strict=True):
        assert now <= then + 4
    for now, then in zip(later_memory, memory, strict=True):
        # A leak of 400 payloads would be 350 MiB.
        assert now < then + (64 << 20)


INTERRUPTED = """
import signal, sys, time
from lumigrad.client import Camera, Client, Spheres
from lumigrad.client.transport.lane import Lane
import numpy as np

def interrupted(lane, lease, release=Lane.release):
    Lane.release = release
    signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
Lane.release = interrupted
camera = Camera.orbit((0, 0, 0), 4, 30, 20, width=320, height=288)
until = time.monotonic() + 200
with Client(sys.argv[1]) as client:
    while time.monotonic() < until:
        client.render(Spheres(np.zeros((1, 3)), np.ones((1, 3)), np.ones(1)), camera)
"""


def test_an_interrupt_while_memory_returns_is_not_lost(worker_process: WorkerProcess) -> None:
    """Python ignores what a finalizer raises."""
    command = [sys.executable, "-c", INTERRUPTED, worker_process.target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == -signal.SIGINT, done.stderr
    assert "Exception ignored" not in done.stderr and done.stderr.rstrip().endswith("KeyboardInterrupt")
