"""DistanceService.Field: where voxels are, which sign values have, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import distance_pb2, scene_pb2, tensor_pb2
from support.calls.distance_calls import DistanceClient, cuboid, mesh_arrays, points, pose_of, world_of
from support.calls.raw_calls import RawClient, assert_refused, failure, violation
from support.meshes.shapes import box
from support.workers.worker import WorkerProcess

FIELD = distance_pb2.DISTANCE_SEMANTICS_CUROBO_FIELD
TURNED = pose_of(0.5, 0.25, 0.0, np.cos(0.3), 0, 0, np.sin(0.3))


@pytest.fixture
def box_id(client: RawClient) -> str:
    return client.put(mesh_arrays(box((1.0, 0.5, 0.75)))).scene.scene_id


def centres(counts: tuple[int, int, int], voxel: float) -> np.ndarray:
    """Centres [nx, ny, nz, 3] of voxels that are symmetric about the origin."""
    axes = [voxel * (np.arange(count) - (count - 1) / 2) for count in counts]
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1)


def turned(places: np.ndarray) -> np.ndarray:
    """Turns and shifts places by the pose TURNED."""
    cosine, sine = np.cos(0.6), np.sin(0.6)
    rotation = np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]])
    return places @ rotation.T + [0.5, 0.25, 0.0]


def test_voxels_are_where_the_contract_says(distances: DistanceClient, box_id: str) -> None:
    reply = distances.field(scene_ref={"scene_id": box_id}, pose=TURNED, size=[1.0, 1.5, 0.3], voxel_size=0.25)
    values = reply.arrays["distance"]
    assert values.shape == (4, 6, 1)
    places = turned(centres((4, 6, 1), 0.25)).reshape(-1, 3)
    asked = distances.query(box_id, points(*places)).arrays["distance"]
    np.testing.assert_allclose(values.ravel(), asked.ravel(), atol=1e-6)
    assert reply.header.scene.scene_id == box_id
    assert {stage.name for stage in reply.timings.stages} >= {"queue", "kernel.query", "download"}


def test_curobos_voxels_are_where_its_are(distances: DistanceClient, box_id: str) -> None:
    fields = {"scene_ref": {"scene_id": box_id}, "size": [1.0, 1.5, 0.5], "voxel_size": 0.25, "semantics": FIELD}
    values = distances.field(**fields, max_distance=0.125).arrays["distance"]
    axes = [(np.arange(n) + 1 - round(n / 2)) * 0.25 - 0.125 for n in (4, 6, 2)]
    places = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    asked = -distances.query(box_id, points(*places)).arrays["distance"]
    # Surfaces that are farther than max_distance are not found from either side.
    expected = np.where(np.abs(asked) < 0.125, asked, -0.125)
    np.testing.assert_allclose(values.ravel(), expected.ravel(), atol=1e-6)
    assert distances.field(**fields).arrays["distance"].min() == pytest.approx(-0.1)


def test_a_field_looks_at_one_environment(distances: DistanceClient) -> None:
    world = world_of(cuboid(1, 1, 1), cuboid(1, 1, 1, environment=1, pose=pose_of(3, 0, 0)))
    ask = {"scene": world, "size": [0.5, 0.5, 0.5], "voxel_size": 0.5}
    assert distances.field(**ask).arrays["distance"].item() == pytest.approx(-0.5)
    assert distances.field(**ask, environment=1).arrays["distance"].item() == pytest.approx(2.5)
    assert distances.field(**ask, environment=1, max_distance=0.75).arrays["distance"].item() == 0.75
    assert violation(failure(lambda: distances.field(**ask, environment=2)))[0] == "environment"


def test_a_mesh_may_travel_inline(distances: DistanceClient) -> None:
    arrays = mesh_arrays(box((1.0, 1.0, 1.0)))
    scene = scene_pb2.Scene()
    for name, dtype in (("vertices", tensor_pb2.DTYPE_FLOAT32), ("faces", tensor_pb2.DTYPE_INT32)):
        array = arrays[name]
        getattr(scene.mesh, name).CopyFrom(tensor_pb2.Tensor(dtype=dtype, shape=array.shape, inline=array.tobytes()))
    reply = distances.field(scene=scene, size=[0.1, 0.1, 0.1], voxel_size=0.1)
    assert reply.arrays["distance"].item() == pytest.approx(-0.5)
    # The request has no payload to read from.
    elsewhere = scene_pb2.Scene()
    elsewhere.mesh.vertices.CopyFrom(PayloadWriter().add(arrays["vertices"]))
    elsewhere.mesh.faces.CopyFrom(scene.mesh.faces)
    error = failure(lambda: distances.field(scene=elsewhere, size=[0.1, 0.1, 0.1], voxel_size=0.1))
    assert violation(error)[0] == "scene.mesh.vertices.payload"


def test_a_large_field_comes_in_chunks(distances: DistanceClient, shared_worker: WorkerProcess) -> None:
    world = world_of(cuboid(1, 1, 1))
    reply = distances.field(scene=world, size=[1, 1, 1], voxel_size=1 / 80)
    assert reply.arrays["distance"].shape == (80, 80, 80)
    assert len(reply.frames) >= 3
    assert reply.arrays["distance"].min() == pytest.approx(-0.5 + 0.5 / 80)
    labels = {"engine": "meshes", "op": "field", "stage": "query"}
    assert shared_worker.metric("lumigrad_kernel_seconds_count", **labels) >= 1


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"size": [1, 1]}, "size", "expected 3 edges above 0"),
    ({"size": [1, 1, np.nan]}, "size", "expected 3 edges above 0"),
    ({"voxel_size": np.inf}, "voxel_size", "expected a finite value above 0"),
    ({"voxel_size": 1e-3}, "voxel_size", "expected at most 67108864 voxels in the box, got 1000000000"),
    ({"voxel_size": 1e-300}, "voxel_size", "expected at most 2147483647 voxels"),
    ({"pose": pose_of(1, 2)}, "pose", "expected 7 finite numbers"),
    ({"max_distance": 0.0}, "max_distance", "expected None or a finite value above 0"),
    ({"semantics": 2}, "semantics", "expected DISTANCE_SEMANTICS_EXACT or DISTANCE_SEMANTICS_CUROBO_FIELD, got 2"),
    ({"semantics": 99}, "semantics", "expected DISTANCE_SEMANTICS_EXACT or DISTANCE_SEMANTICS_CUROBO_FIELD, got 99"),
    ({"scene": None}, "source", "expected scene_ref or scene, got neither"),
    ({"scene": scene_pb2.Scene()}, "scene", "expected mesh or world, got none"),
]


@pytest.mark.parametrize(("changes", "field", "text"), BAD, ids=[f"{field} {text[9:30]}" for _, field, text in BAD])
def test_a_bad_box_is_refused(distances: DistanceClient, changes: dict[str, Any], field: str, text: str) -> None:
    fields = {"scene": world_of(cuboid(1, 1, 1)), "size": [1, 1, 1], "voxel_size": 0.5, **changes}
    assert_refused(lambda: distances.field(**fields), field, text)
