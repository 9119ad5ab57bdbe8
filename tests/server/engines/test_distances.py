"""DistanceService.Query over real sockets: replies are what the kernels compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lumigrad.kernels import meshes
from lumigrad.protos import dtypes
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import distance_pb2, errors_pb2, scene_pb2
from support.calls.distance_calls import DistanceClient, cuboid, mesh_obstacle, points, pose_of, world_of
from support.calls.distance_worlds import NEAR, NUMBERS, SWEPT, TORUS, assert_same, locally, stored, ways
from support.calls.raw_calls import RawClient, detail, failure, scene_of, violation
from support.workers.worker import WorkerProcess

DISTANCES = ("distance", "normal", "closest", "face", "obstacle", "beyond")
ALL = ("cost", "gradient", "exhausted", *DISTANCES)
WANTED = ("spheres", "poses", "weight")


@pytest.mark.parametrize(
    ("settings", "fields", "outputs"),
    [
        ({}, {}, ()),
        (NEAR, NEAR, ALL),
        ({"activation_distance": 0.125, "sweep": True, "speed_metric": True, "time_step_s": 0.25}, SWEPT, ALL),
        (
            {"sweep": True, "samples": 4, "weight": 2.5, "reduction": "max"},
            {"sweep": True, "samples": 4, "weight": 2.5, "reduction": distance_pb2.REDUCTION_MAX},
            ("cost", "exhausted"),
        ),
        (
            {"semantics": "curobo", "sweep": True, "samples": 3, "max_distance": 0.5},
            {"semantics": 2, "sweep": True, "samples": 3, "max_distance": 0.5},
            ("cost", "gradient"),
        ),
        ({"semantics": "curobo_field"}, {"semantics": 3}, ("cost", "gradient")),
    ],
    ids=["defaults", "all", "swept", "largest", "curobo", "field"],
)
def test_a_query_returns_what_the_kernels_give(
    client: RawClient,
    distances: DistanceClient,
    settings: dict[str, Any],
    fields: dict[str, Any],
    outputs: tuple[str, ...],
) -> None:
    spheres = ways()
    reply = distances.query(stored(client, distances), spheres, environments=NUMBERS, outputs=outputs, **fields)
    assert_same(reply.arrays, locally(spheres, meshes.Settings(**settings), outputs or ("distance",)).outputs)
    assert reply.header.scene.version == 1
    assert not reply.header.context_id


def test_distances_to_each_obstacle_have_an_axis_of_their_own(client: RawClient, distances: DistanceClient) -> None:
    spheres, scene_id = ways(), stored(client, distances)
    reply = distances.query(scene_id, spheres, environments=NUMBERS, outputs=DISTANCES, per_obstacle=True)
    assert reply.arrays["normal"].shape == (3, 4, 20, 5, 3)
    assert_same(reply.arrays, locally(spheres, meshes.Settings(), DISTANCES, per_instance=True).outputs)
    error = failure(lambda: distances.query(scene_id, spheres, outputs=["cost"], per_obstacle=True))
    assert violation(error) == (
        "spec.outputs",
        "expected one of distance, normal, closest, face, obstacle, beyond with per_obstacle, got cost",
    )


def test_poses_of_a_call_are_of_that_call(distances: DistanceClient) -> None:
    scene_id = distances.put(world_of(cuboid(1, 1, 1), cuboid(1, 1, 1, pose=pose_of(5, 0, 0)))).scene.scene_id
    poses = np.array([[0, 2, 0, 1, 0, 0, 0], [0, 0, 3, 0, 0, 0, 2]], np.float32)
    asked = points((0, 0, 0))
    reply = distances.query(scene_id, asked, poses=poses, outputs=["distance", "obstacle"], per_obstacle=True)
    np.testing.assert_allclose(reply.arrays["distance"].ravel(), [1.5, 2.5])
    assert distances.query(scene_id, asked).arrays["distance"].item() == pytest.approx(-0.5)
    for bad, field in (
        (poses[:1], "spec.poses.shape"),
        (poses * 0, "spec.poses[0]"),
        (poses.astype(np.int32), "spec.poses.dtype"),
    ):
        error = failure(lambda bad=bad: distances.query(scene_id, asked, poses=bad))
        assert violation(error)[0] == field


def test_a_mesh_is_a_world_of_itself(client: RawClient, distances: DistanceClient) -> None:
    mesh_id = client.put(TORUS).scene.scene_id
    world_id = distances.put(world_of(mesh_obstacle(mesh_id))).scene.scene_id
    spheres, payload = ways(), PayloadWriter()
    inline = scene_of(TORUS, payload)
    replies = [
        distances.query(mesh_id, spheres, outputs=ALL),
        distances.query(world_id, spheres, outputs=ALL),
        distances.query(inline, spheres, outputs=ALL, payload=payload),
        distances.query(world_of(mesh_obstacle(mesh_id)), spheres, outputs=ALL),
    ]
    for reply in replies[1:]:
        assert {name: array.tobytes() for name, array in reply.arrays.items()} == {
            name: array.tobytes() for name, array in replies[0].arrays.items()
        }
    assert [bool(reply.header.scene.scene_id) for reply in replies] == [True, True, False, False]


def test_a_large_query_comes_in_chunks(client: RawClient, distances: DistanceClient) -> None:
    spheres = ways(8, 50, 200)
    mesh_id = client.put(TORUS).scene.scene_id
    reply = distances.query(mesh_id, spheres, outputs=["distance", "normal", "closest"])
    assert len(reply.frames) > 2
    assert all(frame.data.nbytes <= 1 << 20 for frame in reply.frames)
    assert "encode" in {stage.name for stage in reply.timings.stages}
    one = distances.query(mesh_id, spheres[3:4], outputs=["distance"])
    assert reply.arrays["distance"][3:4].tobytes() == one.arrays["distance"].tobytes()


def test_nothing_to_ask_is_answered(client: RawClient, distances: DistanceClient) -> None:
    mesh_id = client.put(TORUS).scene.scene_id
    for shape in ((0, 4, 5, 4), (2, 0, 5, 4), (2, 4, 0, 4)):
        reply = distances.query(mesh_id, np.zeros(shape, np.float32), outputs=ALL, **SWEPT, retain=True)
        assert reply.arrays["gradient"].shape == shape
        gradient = {"cost": np.zeros(shape[:3], np.float32)}
        arrays = distances.backward(gradient, context_id=reply.header.context_id, wanted=WANTED).arrays
        assert arrays["spheres"].shape == shape
        assert not arrays["poses"].any()


def test_spheres_that_are_off_cost_nothing(client: RawClient, distances: DistanceClient) -> None:
    mesh_id = client.put(TORUS).scene.scene_id
    spheres = points((0.4, 0, 0), radius=-1.0)
    arrays = distances.query(mesh_id, spheres, outputs=ALL, max_distance=0.5).arrays
    assert (arrays["cost"].item(), arrays["distance"].item(), arrays["face"].item()) == (0.0, 0.5, -1)
    assert not arrays["gradient"].any()


def test_stages_are_measured(client: RawClient, distances: DistanceClient, shared_worker: WorkerProcess) -> None:
    mesh_id = client.put(TORUS).scene.scene_id
    reply = distances.query(mesh_id, ways(), outputs=["cost"], retain=True)
    times = {stage.name: stage.milliseconds for stage in reply.timings.stages}
    assert set(times) >= {"decode", "queue", "upload", "kernel.query", "download"}
    assert 0 < sum(times.values()) <= reply.timings.total_milliseconds
    gradient = {"cost": np.ones((3, 4, 20), np.float32)}
    distances.backward(gradient, context_id=reply.header.context_id, wanted=["poses"])
    for op in ("forward", "backward"):
        labels = {"engine": "meshes", "op": op, "stage": "query"}
        assert shared_worker.metric("lumigrad_kernel_seconds_count", **labels) >= 1, op
    for method in ("Query", "Backward"):
        name = f"DistanceService.{method}"
        assert shared_worker.metric("lumigrad_calls_total", method=name, code="OK") >= 1
        for direction in ("received", "sent"):
            assert shared_worker.metric("lumigrad_payload_bytes_total", method=name, direction=direction) > 0


def test_a_version_may_be_insisted_on(distances: DistanceClient) -> None:
    scene_id = distances.put(world_of(cuboid(1, 1, 1.25))).scene.scene_id
    payload = PayloadWriter()
    spec = distances.spec(scene_id, points((0, 0, 0)), payload)
    spec.scene_ref.CopyFrom(scene_pb2.SceneRef(scene_id=scene_id, version=2))
    gradient = {"distance": np.ones((1, 1, 1), np.float32)}
    error = failure(lambda: distances.backward(gradient, spec=spec, payload=payload))
    assert detail(error, errors_pb2.VersionMismatch).actual == 1


def test_booleans_are_booleans_on_the_wire(client: RawClient, distances: DistanceClient) -> None:
    mesh_id = client.put(TORUS).scene.scene_id
    reply = distances.query(mesh_id, ways(), outputs=["beyond", "exhausted"])
    assert {entry.tensor.dtype for entry in reply.header.outputs} == {dtypes.BOOL}
