"""Calls with lanes of shared memory, by two tenants of one worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import render_pb2, tensor_pb2
from support.calls.raw_calls import Array, RawClient, color_gradient, opencv_camera, spec_of, sphere_cloud, with_scene
from support.calls.raw_lane import RawLane
from support.workers.tenant import tenant_client
from support.workers.unharmed import unharmed_after
from support.workers.worker import WorkerProcess, worker

ALICE, BOB = (f"{name}-0123456789abcdef" for name in ("alice", "bob"))
MIB = 1 << 20
# The largest number that a packet, or a message, can name.
HUGE = (1 << 64) - 1
# 768 KiB of colours.
SPEC = spec_of(opencv_camera(256, 256))
GRADIENT = color_gradient(1, 256, 256, 3)


@contextmanager
def lane_worker() -> Iterator[WorkerProcess]:
    """A worker that Alice and Bob share, with 32 MiB of shared memory for each."""
    with worker("--device", "cpu", "--lane-mib", "64", tokens={"alice": ALICE, "bob": BOB}) as process:
        yield process


@contextmanager
def lane_people(process: WorkerProcess) -> Iterator[SimpleNamespace]:
    """Clients of both tenants; afterwards the worker must work as before, and no lane may hold memory."""
    with process.channel() as channel:
        alice, bob = tenant_client(channel, ALICE), tenant_client(channel, BOB)
        with unharmed_after(process, alice):
            yield SimpleNamespace(alice=alice, bob=bob)
        wait_for(lambda: process.metric("lumigrad_lanes") == 0 and process.metric("lumigrad_lane_bytes") == 0)


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"the condition was not met within {seconds} s"
        time.sleep(0.02)


def render(client: RawClient, lane: RawLane | None, lease: int, place: Callable[[Array], Any] | None = None) -> Any:
    """Render with a lane if one is given, the scene's positions placed by `place`; returns the frames of the reply."""
    payload = PayloadWriter()
    request = render_pb2.RenderRequest(spec=with_scene(SPEC, sphere_cloud(50), payload))
    if place is not None:
        request.spec.scene.spheres.positions.CopyFrom(place(sphere_cloud(50)["positions"]))
    metadata = lane.metadata(lease) if lane else ()
    return list(client.render_stub.Render(frames_of(request, payload), metadata=metadata, timeout=60))


def location(frames: Any) -> str:
    return frames[0].message.outputs[0].tensor.WhichOneof("location")


def spanned(region: int, offset: int = 0, length: int = 600) -> Callable[[Array], Any]:
    """A function that returns a message which claims that an array lies in that span of a region."""
    span = tensor_pb2.RegionSpan(region=region, offset=offset, length=length)
    return lambda array: tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_FLOAT32, shape=array.shape, region=span)


def backward(client: RawClient, lane: RawLane, lease: int, tensor: Any) -> Any:
    payload = PayloadWriter()
    request = render_pb2.BackwardSpec(render=with_scene(SPEC, sphere_cloud(50), payload))
    request.output_gradients.add(name="color", tensor=tensor)
    frames = frames_of(render_pb2.BackwardRequest(spec=request), payload)
    return list(client.render_stub.Backward(frames, metadata=lane.metadata(lease), timeout=60))
