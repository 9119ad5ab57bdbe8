"""Requests that take long to check in Python: sixteen at once of one tenant hardly delay another's small renders."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import distance_pb2, render_pb2, scene_pb2
from support.calls.distance_calls import DistanceClient, cuboid, points, pose_of, world_of
from support.calls.raw_calls import RawClient, opencv_camera, spec_of, sphere_cloud
from support.calls.valid_requests import METHODS
from support.workers.flood import Flood
from support.workers.tenant import tenant_fixture
from support.workers.worker import WorkerProcess, worker_fixture

TOKENS = {"alice": "0123456789abcdef", "mallory": "fedcba9876543210"}
OBSTACLES = 1 << 14
AT_ONCE = 16
RENDERS = 15
# Scene ids by the kind of the scene.
Stored = dict[str, str]
Messages = Sequence[bytes]
process = worker_fixture(tokens=TOKENS)
mallory = tenant_fixture(TOKENS["mallory"])
alice = tenant_fixture(TOKENS["alice"])


@pytest.fixture(scope="module")
def stored(mallory: RawClient) -> Stored:
    """Scenes that mallory has stored."""
    payload = PayloadWriter()
    world = DistanceClient(mallory).put(large_world(), payload).scene.scene_id
    return {"world": world, "spheres": mallory.put(sphere_cloud(5)).scene.scene_id}


def large_world() -> scene_pb2.Scene:
    return world_of(*(cuboid(1, 1, 1, name=f"box {index}", pose=pose_of(index, 0, 0)) for index in range(OBSTACLES)))


def put(_: Stored) -> tuple[str, Messages]:
    return "SceneService/Put", [scene_pb2.PutRequest(scene=large_world()).SerializeToString()]


def inline(_: Stored) -> tuple[str, Messages]:
    payload = PayloadWriter()
    spec = distance_pb2.DistanceSpec(
        scene=large_world(), spheres=payload.add(points((0, 0, 0))), outputs=["distance"], settings={"semantics": 1}
    )
    return "DistanceService/Query", serialized("DistanceService/Query", distance_pb2.QueryRequest(spec=spec), payload)


def posed(stored: Stored) -> tuple[str, Messages]:
    """A small header, and poses for all obstacles."""
    payload = PayloadWriter()
    poses = np.tile([0.0, 0, 0, 1, 0, 0, 0], (OBSTACLES, 1)).astype(np.float32)
    spec = distance_pb2.DistanceSpec(
        scene_ref={"scene_id": stored["world"]}, spheres=payload.add(points((0, 0, 0))), poses=payload.add(poses),
        outputs=["distance"], settings={"semantics": 1},
    )  # fmt: skip
    return "DistanceService/Query", serialized("DistanceService/Query", distance_pb2.QueryRequest(spec=spec), payload)


def batch(stored: Stored) -> tuple[str, Messages]:
    """The most items that a call may have, all different."""
    specs = [
        spec_of(opencv_camera(2, 2), scene_id=stored["spheres"], gamma=0.1 + index / 1000, outputs=["color"])
        for index in range(256)
    ]
    request = render_pb2.RenderBatchRequest(items=[{"spec": spec} for spec in specs])
    return "RenderService/RenderBatch", [request.SerializeToString()]


def serialized(name: str, request: distance_pb2.QueryRequest, payload: PayloadWriter) -> Messages:
    return [METHODS[name].serialize_request(frame) for frame in frames_of(request, payload)]


def processor_seconds(process: WorkerProcess, work: Callable[[], object]) -> float:
    """The worker's processor time during `work`."""
    before = process.processor_seconds()
    work()
    return process.processor_seconds() - before


@pytest.mark.parametrize("request_of", [put, inline, posed, batch])
def test_large_requests_of_one_tenant_hardly_delay_small_renders_of_another(
    process: WorkerProcess,
    alice: RawClient,
    mallory: RawClient,
    stored: Stored,
    request_of: Callable[[Stored], tuple[str, Messages]],
) -> None:
    name, messages = request_of(stored)
    scene_id = alice.put(sphere_cloud(100)).scene.scene_id
    call = mallory.channel.stream_stream(METHODS[name].path)

    def render() -> None:
        alice.render(spec_of(opencv_camera(64, 64), scene_id=scene_id), timeout=60)

    render()
    alone = processor_seconds(process, lambda: [list(call(iter(messages))) for _ in range(4)]) / 4
    flood = Flood(process.target, TOKENS["mallory"], METHODS[name].path, messages, AT_ONCE)
    try:
        assert flood.first.startswith("OK")
        taken = [processor_seconds(process, render) for _ in range(RENDERS)]
    finally:
        flood.end()
    print(f"{name}: one takes {alone:.3f} s, a render beside {AT_ONCE} {sorted(taken)}")
    # The worker would check all sixteen side by side while one render waits.
    assert statistics.median(taken) < max(2 * alone, 0.1)
    assert process.health() == 1
