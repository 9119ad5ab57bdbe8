"""Meshes in SceneService: reports of registration, refusals, and vertices that move."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest

from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import scene_pb2, world_pb2
from support.calls.distance_calls import DistanceClient, cuboid, mesh_arrays, points, world_of
from support.calls.raw_calls import (
    Array,
    RawClient,
    failure,
    hash_of,
    opencv_camera,
    scene_of,
    spec_of,
    sphere_cloud,
    violation,
)
from support.meshes.shapes import box, scaled, torus
from support.workers.worker import WorkerProcess


def test_a_mesh_is_described_by_what_registration_found(client: RawClient) -> None:
    arrays = mesh_arrays(box((1.0, 2.0, 3.0)))
    scene = client.put(arrays).scene
    assert (scene.kind, scene.version, scene.count) == ("mesh", 1, 12)
    assert scene.content_hash == hash_of(arrays, ("vertices", "faces"))
    report = scene.report
    assert (report.vertices, report.faces, report.welded_vertices) == (8, 12, 8)
    assert (report.closed, report.oriented, report.rebuilt, report.growth) == (True, True, False, 1.0)
    assert (list(report.low), list(report.high)) == ([-0.5, -1.0, -1.5], [0.5, 1.0, 1.5])
    assert (report.volume, report.area) == (pytest.approx(6.0), pytest.approx(22.0))
    # The scene has vertices, faces and the hierarchy.
    assert scene.bytes > 8 * 12 + 12 * 12


def test_the_same_mesh_has_the_same_name_and_comes_back_as_it_went(client: RawClient) -> None:
    arrays = mesh_arrays(torus(24, 12))
    first = client.put(arrays)
    again = client.put(arrays, content_hash=hash_of(arrays, ("vertices", "faces")))
    assert (first.existed, again.existed) == (False, True)
    assert again.scene == first.scene
    header, tensors = client.get(scene_id=first.scene.scene_id, with_tensors=True)
    assert header.info == first.scene
    assert {name: array.tobytes() for name, array in tensors.items()} == {
        name: array.tobytes() for name, array in arrays.items()
    }


def test_the_time_of_building_is_measured(client: RawClient, shared_worker: WorkerProcess) -> None:
    client.put(mesh_arrays(torus(31, 13)))
    labels = {"engine": "meshes", "op": "put", "stage": "build"}
    assert shared_worker.metric("lumigrad_kernel_seconds_count", **labels) >= 1


def test_vertices_move_and_faces_stay(client: RawClient, distances: DistanceClient) -> None:
    shape = box((1.0, 1.0, 1.0))
    scene = client.put(mesh_arrays(shape)).scene
    asked = points((2.0, 0.0, 0.0))
    assert distances.query(scene.scene_id, asked).arrays["distance"].item() == pytest.approx(1.5)
    wider = mesh_arrays(scaled(shape, (2.0, 1.0, 1.0)))
    updated = client.update(scene.scene_id, 1, {"vertices": wider["vertices"]}).scene
    assert (updated.version, updated.content_hash, updated.count) == (2, "", 12)
    assert updated.report.volume == pytest.approx(2.0)
    assert list(updated.report.high) == [1.0, 0.5, 0.5]
    assert updated.report.growth != 1.0 or updated.report.rebuilt
    assert distances.query(scene.scene_id, asked).arrays["distance"].item() == pytest.approx(1.0)
    _, tensors = client.get(scene_id=scene.scene_id, with_tensors=True)
    assert tensors["vertices"].tobytes() == wider["vertices"].tobytes()
    assert tensors["faces"].tobytes() == wider["faces"].tobytes()


@pytest.mark.parametrize(
    ("tensors", "field"),
    [
        ({"faces": np.zeros((12, 3), np.float32)}, "tensors[0].name"),
        ({"vertices": np.zeros((9, 3), np.float32)}, "tensors[0].shape"),
        ({"vertices": np.zeros((8, 3), np.int32)}, "tensors[0].dtype"),
        ({"vertices": np.full((8, 3), np.nan, np.float32)}, "tensors.vertices"),
        ({"vertices": np.zeros((8, 3), np.float32)}, "tensors.vertices"),
        ({}, "tensors"),
    ],
    ids=["faces", "count", "type", "nan", "a point", "none"],
)
def test_a_bad_update_leaves_the_mesh_alone(client: RawClient, tensors: dict[str, Array], field: str) -> None:
    scene = client.put(mesh_arrays(box((1.0, 1.5, 1.0)))).scene
    assert violation(failure(lambda: client.update(scene.scene_id, 1, tensors)))[0] == field
    assert client.get(scene_id=scene.scene_id)[0].info == scene


def test_obstacles_of_a_mesh_or_a_cloud_cannot_be_updated(client: RawClient, distances: DistanceClient) -> None:
    for arrays in (mesh_arrays(box((1.0, 1.25, 1.0))), sphere_cloud(seed=61)):
        scene = client.put(arrays).scene
        error = failure(
            lambda scene=scene: distances.update(scene.scene_id, 1, world_pb2.ObstacleUpdate(name="0", disabled=True))
        )
        assert violation(error) == ("obstacles", "expected none: this scene is no world, got 1")


BOX = mesh_arrays(box((1.0, 1.0, 1.0)))
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"vertices": None}, "vertices", "expected a tensor, got none"),
    ({"faces": None}, "faces", "expected a tensor, got none"),
    ({"vertices": BOX["vertices"].astype(np.float16)}, "vertices.dtype", "expected DTYPE_FLOAT32, got DTYPE_FLOAT16"),
    ({"faces": BOX["faces"].astype(np.int64)}, "faces.dtype", "expected DTYPE_INT32, got DTYPE_INT64"),
    ({"vertices": BOX["vertices"][:, :2]}, "vertices.shape", "expected [V, 3], got [8, 2]"),
    ({"faces": BOX["faces"].ravel()}, "faces.shape", "expected [F, 3], got [36]"),
    ({"vertices": BOX["vertices"][:0]}, "vertices", "expected at least one of the vertices, got none"),
    ({"faces": BOX["faces"][:0]}, "faces", "expected at least one of the faces, got none"),
    ({"faces": BOX["faces"] + 1}, "faces", "expected indices of 8 vertices, 0 to 7, got 1 to 8"),
    ({"vertices": BOX["vertices"] * np.float32(1e-8)}, "vertices", "expected an extent of at least 1e-06 m"),
]


@pytest.mark.parametrize(("changes", "name", "text"), BAD, ids=[f"{name} {text[9:35]}" for _, name, text in BAD])
def test_a_bad_mesh_is_refused_whichever_way_it_comes(
    client: RawClient, distances: DistanceClient, changes: dict[str, Any], name: str, text: str
) -> None:
    arrays = {key: array for key, array in {**BOX, **changes}.items() if array is not None}
    if "vertices" in arrays and arrays["vertices"].dtype == np.float64:
        arrays["vertices"] = arrays["vertices"].astype(np.float32)
    if len(arrays) == 1:
        # The names of a mesh without faces are those of no kind of scene, so the message is made here.
        payload = PayloadWriter()
        scene = scene_pb2.Scene()
        for key, array in arrays.items():
            getattr(scene.mesh, key).CopyFrom(payload.add(array))
        field, description = violation(failure(lambda: distances.put(scene, payload)))
    else:
        field, description = violation(failure(lambda: client.put(arrays)))
        payload = PayloadWriter()
        inline = scene_of(arrays, payload)
        error = failure(lambda: distances.query(inline, points((0, 0, 0)), payload=payload))
        assert violation(error) == (f"spec.scene.mesh.{name}", description)
    assert field == f"scene.mesh.{name}"
    assert description.startswith(text), description


def test_meshes_and_worlds_cannot_be_rendered(client: RawClient, distances: DistanceClient) -> None:
    mesh = client.put(mesh_arrays(box((1.0, 1.0, 1.75)))).scene
    world = distances.put(world_of(cuboid(1, 1, 1))).scene
    for scene in (mesh, world):
        field, description = violation(failure(lambda scene=scene: client.render(spec_of(scene_id=scene.scene_id))))
        assert field == "spec.scene_ref"
        assert description == (
            "expected a scene of spheres or gaussians; DistanceService answers about a mesh or a world, "
            f"got {scene.kind}"
        )
    inline = failure(lambda: client.render(spec_of(opencv_camera()), cloud=BOX))
    assert violation(inline)[0] == "spec.scene"


def test_clouds_cannot_be_asked_for_distances(client: RawClient, distances: DistanceClient) -> None:
    scene_id = client.put(sphere_cloud(seed=62)).scene.scene_id
    field, description = violation(failure(lambda: distances.query(scene_id, points((0, 0, 0)))))
    assert field == "spec.scene_ref"
    assert description == "expected a mesh or a world; RenderService renders spheres and gaussians, got spheres"
    error = failure(lambda: distances.field(scene_ref={"scene_id": scene_id}, size=[1, 1, 1], voxel_size=0.5))
    assert violation(error)[0] == "scene_ref"


def test_a_mesh_that_is_not_here_is_not_found(distances: DistanceClient) -> None:
    assert failure(lambda: distances.query("0" * 32, points((0, 0, 0)))).code() == grpc.StatusCode.NOT_FOUND
