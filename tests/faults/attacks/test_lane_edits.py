"""Callers change, shrink or release shared memory while the worker uses it."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import grpc
import numpy as np
import pytest

from lumigrad.protos.hashing import content_hash
from lumigrad.protos.lanes import ToWorker
from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.v1 import scene_pb2
from support.calls.distance_calls import mesh_arrays
from support.calls.lane_calls import GRADIENT, MIB, SPEC, backward, lane_worker
from support.calls.raw_calls import Array, RawClient, sphere_cloud
from support.calls.raw_lane import RawLane
from support.meshes.shapes import torus
from support.workers.worker import WorkerProcess

# FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE.
_PUNCH_HOLE = 1 | 2


@pytest.fixture(scope="module")
def process() -> Iterator[WorkerProcess]:
    with lane_worker() as started:
        yield started


def test_the_size_of_memory_is_sealed(people: SimpleNamespace) -> None:
    with RawLane(people.alice) as lane:
        descriptor = lane.descriptors[lane.lease(1, MIB)]
        size = os.fstat(descriptor).st_size
        for new in (0, size // 2, size - 1, size + 1, 2 * size):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, new)
        for seal in (fcntl.F_SEAL_WRITE, fcntl.F_SEAL_SHRINK):
            with pytest.raises(PermissionError):
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seal)


SHRINKING = """
import mmap, os, sys
sealed = sys.argv[1] == "sealed"
descriptor = int(sys.argv[2]) if sealed else os.memfd_create("plain")
if not sealed:
    os.ftruncate(descriptor, 1 << 20)
memory = mmap.mmap(descriptor, 1 << 20)
try:
    os.ftruncate(descriptor, 0)
except PermissionError:
    pass
memory[(1 << 20) - 1] = 1
"""


@pytest.mark.parametrize(("kind", "code"), [("sealed", 0), ("plain", -signal.SIGBUS)])
def test_nobody_dies_of_memory_that_shrinks(people: SimpleNamespace, kind: str, code: int) -> None:
    with RawLane(people.alice) as lane:
        descriptor = lane.descriptors[lane.lease(1, MIB)]
        command = [sys.executable, "-c", SHRINKING, kind, str(descriptor)]
        assert subprocess.run(command, pass_fds=[descriptor], timeout=250).returncode == code


class Scribbler(threading.Thread):
    """Keeps overwriting a region with random numbers and removing its pages."""

    def __init__(self, memory: Array, descriptor: int) -> None:
        super().__init__(daemon=True)
        self._memory = memory
        self._descriptor = descriptor
        self._is_done = threading.Event()
        self.start()

    def __enter__(self) -> Scribbler:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        self.join()

    def run(self) -> None:
        rng = np.random.default_rng(0)
        noise = rng.integers(0, 256, len(self._memory), np.uint8)
        fallocate = ctypes.CDLL(None).fallocate64
        fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
        while not self._is_done.is_set():
            self._memory[:] = np.roll(noise, int(rng.integers(0, 99)))
            assert fallocate(self._descriptor, _PUNCH_HOLE, 0, MIB) == 0


def test_uploads_that_change_while_they_are_read(people: SimpleNamespace) -> None:
    """Faces are indices: the worker must use the same bytes that it has checked."""
    shape = mesh_arrays(torus(200, 120))
    with RawLane(people.alice) as lane:
        tensors = {name: lane.place(array, 1) for name, array in shape.items()}
        scene = scene_pb2.Scene()
        for name, tensor in tensors.items():
            getattr(scene.mesh, name).CopyFrom(tensor)
        region = tensors["faces"].region.region
        answers = set()
        with Scribbler(lane.regions[region], lane.descriptors[region]):
            for lease in range(2, 30):
                try:
                    reply = people.alice.scene_stub.Put(
                        frames_of(scene_pb2.PutRequest(scene=scene), PayloadWriter()),
                        metadata=lane.metadata(lease),
                        timeout=60,
                    )
                except grpc.RpcError as error:
                    answers.add(error.code())
                else:
                    answers.add(grpc.StatusCode.OK)
                    check_hash(people.alice, reply.scene)
        assert answers <= {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT}


def check_hash(client: RawClient, info: scene_pb2.SceneInfo) -> None:
    """Fails unless the content of a stored scene has the hash that names it."""
    _, arrays = client.get(scene_id=info.scene_id, with_tensors=True)
    payload = PayloadWriter()
    scene = scene_pb2.Scene()
    for name, array in arrays.items():
        getattr(scene.mesh, name).CopyFrom(payload.add(array))
    reader = PayloadReader(b"".join(payload.buffers))
    assert content_hash(scene.mesh, reader.read) == info.content_hash


def test_gradients_that_change_while_they_are_used(people: SimpleNamespace) -> None:
    with RawLane(people.alice) as lane:
        tensor = lane.place(GRADIENT, 1)
        region = tensor.region.region
        with Scribbler(lane.regions[region], lane.descriptors[region]):
            for lease in range(2, 40):
                backward(people.alice, lane, lease, tensor)
        lane.regions[region][: GRADIENT.nbytes] = GRADIENT.reshape(-1).view(np.uint8)
        frames = backward(people.alice, lane, 50, tensor)
        expected = people.alice.backward({"color": GRADIENT}, spec=SPEC, cloud=sphere_cloud(50)).arrays
        reader = PayloadReader(frames[0].data)
        for entry in frames[0].message.gradients:
            assert reader.read(entry.tensor, entry.name).tobytes() == expected[entry.name].tobytes()


def test_regions_that_are_let_go_of_while_they_are_read(people: SimpleNamespace) -> None:
    """A call is refused, or has read everything that was there."""
    with RawLane(people.alice) as lane:
        stop = threading.Event()
        scene = scene_pb2.Scene()
        cloud = sphere_cloud(100_000, seed=3)
        for name, array in cloud.items():
            getattr(scene.spheres, name).CopyFrom(lane.place(array, 1))

        def release() -> None:
            while not stop.is_set():
                lane.send(ToWorker.RELEASE, 1)
                time.sleep(0.001)

        thread = threading.Thread(target=release)
        thread.start()
        try:
            for lease in range(2, 12):
                frames = frames_of(scene_pb2.PutRequest(scene=scene), PayloadWriter())
                try:
                    people.alice.scene_stub.Put(frames, metadata=lane.metadata(lease), timeout=60)
                except grpc.RpcError as error:
                    assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)
        finally:
            stop.set()
            thread.join()
