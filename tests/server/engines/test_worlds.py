"""Worlds in SceneService: obstacles by name, which follow their meshes and keep them alive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from lumigrad.protos.hashing import content_hash
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.server.storage.scenes import OVERHEAD_BYTES
from lumigrad.v1 import errors_pb2, scene_pb2, world_pb2
from support.calls.distance_calls import (
    DistanceClient,
    cuboid,
    grid,
    mesh_arrays,
    mesh_obstacle,
    points,
    pose_of,
    world_of,
)
from support.calls.raw_calls import RawClient, assert_refused, detail, failure, sphere_cloud, violation
from support.meshes.shapes import box, scaled, torus
from support.workers.worker import WorkerProcess, worker

ORIGIN = points((0.0, 0.0, 0.0))
Change = world_pb2.ObstacleUpdate


@pytest.fixture
def mesh_id(client: RawClient) -> str:
    """A box with edges of 1 m."""
    return client.put(mesh_arrays(box((1.0, 1.0, 1.0)))).scene.scene_id


def distance(distances: DistanceClient, scene_id: str, **fields: Any) -> float:
    """Returns the distance from the origin."""
    return float(distances.query(scene_id, ORIGIN, **fields).arrays["distance"].item())


def test_a_world_is_named_by_its_content(distances: DistanceClient, mesh_id: str) -> None:
    world = world_of(mesh_obstacle(mesh_id, pose=pose_of(2, 0, 0)), cuboid(1, 2, 3, name="shelf"))
    first = distances.put(world)
    assert (first.scene.kind, first.scene.version, first.scene.count) == ("world", 1, 2)
    assert first.scene.content_hash == content_hash(world.world, PayloadReader().read)
    again = distances.put(world, content_hash=first.scene.content_hash)
    assert (first.existed, again.existed) == (False, True)
    # Defaults that are written out do not make another world.
    said = world_of(mesh_obstacle(mesh_id, pose=pose_of(2, 0, 0), name="0", sign=1), world.world.obstacles[1])
    assert distances.put(said).scene == first.scene
    other = world_of(mesh_obstacle(mesh_id, pose=pose_of(3, 0, 0)), cuboid(1, 2, 3, name="shelf"))
    assert distances.put(other).scene.scene_id != first.scene.scene_id


def test_a_world_comes_back_as_it_is_now(distances: DistanceClient, mesh_id: str) -> None:
    payload, values = PayloadWriter(), np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    world = world_of(
        mesh_obstacle(mesh_id, sign=world_pb2.SIGN_POLICY_RAYS),
        cuboid(1, 2, 3, name="shelf", environment=1),
        grid(values, 0.1, payload, name="field", pose=pose_of(0, 0, 0, 0, 0, 0, 2)),
        environments=3,
    )
    scene = distances.put(world, payload).scene
    distances.update(scene.scene_id, 1, Change(name="shelf", pose=pose_of(1, 2, 3), disabled=True))
    header, grids = distances.get_world(scene.scene_id)
    assert header.info.version == 2
    assert grids["field"].tobytes() == values.tobytes()
    got = header.scene.world
    assert got.environments == 3
    assert [obstacle.name for obstacle in got.obstacles] == ["0", "shelf", "field"]
    assert (got.obstacles[0].mesh_id, got.obstacles[0].sign) == (mesh_id, world_pb2.SIGN_POLICY_RAYS)
    assert list(got.obstacles[0].pose.values) == [0, 0, 0, 1, 0, 0, 0]
    shelf = got.obstacles[1]
    assert (list(shelf.cuboid.size), shelf.environment, shelf.disabled) == ([1, 2, 3], 1, True)
    assert list(shelf.pose.values) == [1, 2, 3, 1, 0, 0, 0]
    assert list(got.obstacles[2].pose.values) == [0, 0, 0, 0, 0, 0, 2], "as given, not normalised"
    assert got.obstacles[2].grid.voxel_size == 0.1


def test_a_world_of_a_mesh_that_is_not_here_names_it(
    client: RawClient, distances: DistanceClient, mesh_id: str
) -> None:
    world = world_of(mesh_obstacle(mesh_id), mesh_obstacle("f" * 32))
    for call in (lambda: distances.put(world), lambda: distances.query(world, ORIGIN)):
        error = failure(call)
        assert error.code() == grpc.StatusCode.NOT_FOUND
        assert detail(error, errors_pb2.SceneNotFound).scene_id == "f" * 32
    cloud = client.put(sphere_cloud(seed=71)).scene.scene_id
    error = failure(lambda: distances.put(world_of(mesh_obstacle(cloud))))
    assert violation(error) == (
        "scene.world.obstacles[0].mesh_id",
        "expected the scene_id of a mesh, got one of kind spheres",
    )


def test_a_world_may_say_which_version_of_a_mesh_it_means(client: RawClient, distances: DistanceClient) -> None:
    shape = box((1.0, 1.0, 1.375))
    mesh_id = client.put(mesh_arrays(shape)).scene.scene_id
    first, second = (world_of(mesh_obstacle(mesh_id, mesh_version=version)) for version in (1, 2))
    assert distances.put(first).scene.content_hash == distances.put(world_of(mesh_obstacle(mesh_id))).scene.content_hash
    distances.query(first, ORIGIN)
    client.update(mesh_id, 1, {"vertices": mesh_arrays(scaled(shape, (2.0, 1.0, 1.0)))["vertices"]})
    distances.query(second, ORIGIN)
    for call in (distances.query, lambda world, _: distances.put(world)):
        error = failure(lambda call=call: call(first, ORIGIN))
        assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
        mismatch = detail(error, errors_pb2.VersionMismatch)
        assert (mismatch.scene_id, mismatch.expected, mismatch.actual) == (mesh_id, 1, 2)


def test_obstacles_move_and_are_switched_by_name(distances: DistanceClient, mesh_id: str) -> None:
    scene = distances.put(world_of(mesh_obstacle(mesh_id, name="a", pose=pose_of(9, 0, 0)), cuboid(1, 1, 1))).scene
    assert distance(distances, scene.scene_id) == pytest.approx(-0.5)
    updated = distances.update(scene.scene_id, 1, Change(name="1", disabled=True)).scene
    assert (updated.version, updated.content_hash, updated.bytes) == (2, "", scene.bytes)
    assert distance(distances, scene.scene_id) == pytest.approx(8.5)
    # The box is turned by one radian about z: the origin faces an edge.
    turned = pose_of(2, 0, 0, np.cos(0.5), 0, 0, np.sin(0.5))
    distances.update(scene.scene_id, 2, Change(name="a", pose=turned), Change(name="1", pose=pose_of(0, 3, 0)))
    expected = np.hypot(2 * np.cos(1) - 0.5, 2 * np.sin(1) - 0.5)
    assert distance(distances, scene.scene_id) == pytest.approx(expected)
    distances.update(scene.scene_id, 3, Change(name="1", disabled=False), Change(name="a", disabled=True))
    assert distance(distances, scene.scene_id) == pytest.approx(2.5)


def test_a_switched_off_world_finds_nothing(distances: DistanceClient) -> None:
    scene = distances.put(world_of(cuboid(1, 1, 1.5, disabled=True))).scene
    assert distance(distances, scene.scene_id) == np.inf
    assert distance(distances, distances.put(world_of()).scene.scene_id, max_distance=0.5) == 0.5


BAD_CHANGES: list[tuple[list[Change], str, str]] = [
    ([], "obstacles", "expected at least one obstacle, got none"),
    ([Change(name="b")], "obstacles[0].name", "expected the name of an obstacle of this world, got b"),
    ([Change(name="a"), Change(name="a")], "obstacles[1].name", "expected each name once, got a"),
    ([Change(name="a", pose=world_pb2.Pose())], "obstacles[0].pose", "expected 7 finite numbers"),
]


@pytest.mark.parametrize(("changes", "field", "text"), BAD_CHANGES)
def test_a_bad_update_leaves_the_world_alone(
    distances: DistanceClient, changes: list[Change], field: str, text: str
) -> None:
    scene = distances.put(world_of(cuboid(2, 1, 1, name="a"))).scene
    assert_refused(lambda: distances.update(scene.scene_id, 1, *changes), field, text)
    assert distances.get_world(scene.scene_id)[0].info == scene


def test_a_world_has_versions_and_no_tensors_to_update(client: RawClient, distances: DistanceClient) -> None:
    scene = distances.put(world_of(cuboid(3, 1, 1, name="a"))).scene
    error = failure(lambda: client.update(scene.scene_id, 1, {"vertices": np.zeros((8, 3), np.float32)}))
    assert violation(error)[0] == "tensors"
    distances.update(scene.scene_id, 1, Change(name="a"))
    error = failure(lambda: distances.update(scene.scene_id, 1, Change(name="a")))
    assert detail(error, errors_pb2.VersionMismatch).actual == 2


def test_a_world_follows_its_meshes(client: RawClient, distances: DistanceClient) -> None:
    shape = box((1.0, 1.0, 1.125))
    mesh = client.put(mesh_arrays(shape)).scene
    world = distances.put(world_of(mesh_obstacle(mesh.scene_id, name="a", pose=pose_of(3, 0, 0)))).scene
    retained = distances.query(world.scene_id, ORIGIN, outputs=["cost", "distance"], retain=True)
    assert retained.arrays["distance"].item() == pytest.approx(2.5)
    wider = mesh_arrays(scaled(shape, (2.0, 1.0, 1.0)))["vertices"]
    client.update(mesh.scene_id, 1, {"vertices": wider})
    assert distance(distances, world.scene_id) == pytest.approx(2.0)
    header, _ = distances.get_world(world.scene_id)
    assert header.info == world, "the world itself has not changed"
    # Moving the obstacle does not bring the old mesh back.
    distances.update(world.scene_id, 1, Change(name="a", pose=pose_of(4, 0, 0)))
    assert distance(distances, world.scene_id) == pytest.approx(3.0)
    # The retained query used the mesh as it was.
    context_id = retained.header.context_id
    gradient = {"distance": np.ones((1, 1, 1), np.float32)}
    assert distances.backward(gradient, context_id=context_id).arrays["spheres"].ravel()[0] == pytest.approx(-1.0)


@pytest.fixture
def small() -> Iterator[tuple[WorkerProcess, RawClient]]:
    """A worker that keeps 2 MiB of scenes."""
    with worker("--device", "cpu", "--scene-mib", "2", "--max-payload-mib", "1") as process:
        raw = RawClient(process.target)
        yield process, raw
        raw.close()


def fill(client: RawClient, count: int = 4) -> None:
    """Stores clouds of 0.7 MiB, which evict the oldest scenes."""
    for seed in range(count):
        client.put(sphere_cloud(26_000, seed=seed))


def scene_ids(client: RawClient) -> set[str]:
    return {scene.scene_id for scene in client.scene_stub.List(scene_pb2.ListRequest(), timeout=60).scenes}


def test_a_mesh_stays_as_long_as_a_world_shows_it(small: tuple[WorkerProcess, RawClient]) -> None:
    _, client = small
    distances = DistanceClient(client)
    mesh_id = client.put(mesh_arrays(torus())).scene.scene_id
    world_id = distances.put(world_of(mesh_obstacle(mesh_id))).scene.scene_id
    for seed in range(4):
        client.put(sphere_cloud(26_000, seed=seed))
        distance(distances, world_id)
    assert {mesh_id, world_id} < scene_ids(client), "asking the world is a use of the world, and it needs the mesh"
    fill(client)
    assert not scene_ids(client) & {mesh_id, world_id}


@pytest.mark.parametrize("end", ["delete", "evict"])
def test_a_deleted_mesh_is_gone_for_all_but_its_worlds(small: tuple[WorkerProcess, RawClient], end: str) -> None:
    process, client = small
    distances = DistanceClient(client)
    arrays = mesh_arrays(torus())
    mesh = client.put(arrays).scene
    world = distances.put(world_of(mesh_obstacle(mesh.scene_id))).scene
    expected = distance(distances, world.scene_id)
    delete(client, mesh.scene_id)
    for call in deleted_calls(client, distances, mesh.scene_id):
        assert detail(failure(call), errors_pb2.SceneNotFound).scene_id == mesh.scene_id
    assert scene_ids(client) == {world.scene_id}
    assert distance(distances, world.scene_id) == expected
    assert process.metric("lumigrad_scene_bytes") == mesh.bytes + world.bytes + 2 * OVERHEAD_BYTES
    # The id is taken, so the same content is another scene now.
    assert client.put(arrays).scene.scene_id != mesh.scene_id
    if end == "delete":
        delete(client, world.scene_id)
        assert process.metric("lumigrad_scene_bytes") == mesh.bytes + OVERHEAD_BYTES
    else:
        fill(client)
        assert process.metric("lumigrad_scene_bytes") == 2 * (26_000 * 28 + OVERHEAD_BYTES)


def delete(client: RawClient, scene_id: str) -> None:
    client.scene_stub.Delete(scene_pb2.DeleteRequest(scene_id=scene_id), timeout=60)


def deleted_calls(client: RawClient, distances: DistanceClient, scene_id: str) -> list[Callable[[], object]]:
    """Returns all kinds of calls that name a mesh by its id."""
    return [
        lambda: delete(client, scene_id),
        lambda: client.get(scene_id=scene_id),
        lambda: client.update(scene_id, 1, {"vertices": np.zeros((512, 3), np.float32)}),
        lambda: distances.query(scene_id, ORIGIN),
        lambda: distances.put(world_of(mesh_obstacle(scene_id), cuboid(1, 1, 1))),
    ]


def test_signs_by_winding_numbers_count_with_the_mesh(small: tuple[WorkerProcess, RawClient]) -> None:
    process, client = small
    distances = DistanceClient(client)
    mesh = client.put(mesh_arrays(torus())).scene
    world = distances.put(world_of(mesh_obstacle(mesh.scene_id, sign=world_pb2.SIGN_POLICY_WINDING))).scene
    grown = client.get(scene_id=mesh.scene_id)[0].info.bytes
    assert grown > mesh.bytes
    assert process.metric("lumigrad_scene_bytes") == grown + world.bytes + 2 * OVERHEAD_BYTES
