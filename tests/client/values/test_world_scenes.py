"""Meshes and worlds on a real worker: stored once, moved and switched, and put again when a worker lost them."""

from __future__ import annotations

import numpy as np
import pytest

from lumigrad.client import (
    Camera,
    Client,
    Cuboid,
    InvalidArgument,
    Mesh,
    Obstacle,
    SceneNotFound,
    VersionMismatch,
    VoxelGrid,
    World,
)
from support.meshes import shapes as mesh_shapes
from support.ports import reserved_port
from support.workers.worker import worker

BOX = mesh_shapes.box((1.0, 1.0, 1.0))
ASIDE = (3.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
# One near the initial place of the mesh of `world_of`, one near its box.
PROBES = np.array([[0.0, 0.0, 1.5, 0.1], [0.0, 3.0, 0.75, 0.1]])


def box(size: float = 1.0, name: str | None = None) -> Mesh:
    return Mesh(BOX.vertices * size, BOX.faces, name)


def world_of(size: float) -> World:
    """A box, and a mesh whose size is the test's own, so that tests do not share meshes."""
    return World([Obstacle(box(size), name="mesh"), Obstacle(Cuboid((1, 1, 1)), (0, 3, 0, 1, 0, 0, 0), name="box")])


def distances(client: Client, world) -> np.ndarray:
    return client.query(world, PROBES).distance


def test_a_mesh_is_uploaded_once_and_reported(client, monkeypatch):
    shape = mesh_shapes.split(mesh_shapes.torus(40, 30))
    mesh = Mesh(shape.vertices, shape.faces, "torus")
    handle = client.put(mesh)
    assert (handle.kind, handle.version, handle.count) == ("mesh", 1, 2400)
    assert handle.nbytes > mesh.nbytes and handle.scene is mesh
    report = handle.report
    assert report.closed and report.oriented and report.volume > 0 and report.area > 0
    assert (report.vertices, report.welded_vertices, report.faces) == (7200, 1200, 2400)
    assert report.degenerate_faces == report.duplicate_faces == report.boundary_edges == 0
    np.testing.assert_allclose((report.low, report.high), mesh.bounds, atol=1e-6)
    with monkeypatch.context() as patched:
        patched.delattr(type(client._workers.members()[0].connection), "upload")
        assert client.put(Mesh(**mesh.tensors)) == handle
    open_box = mesh_shapes.open_box()
    assert not client.put(Mesh(open_box.vertices, open_box.faces)).report.closed


def test_a_mesh_without_an_area_is_refused(client):
    with pytest.raises(InvalidArgument, match="faces"):
        client.put(Mesh(np.zeros((3, 3)), [[0, 1, 2]]))


def test_get_list_and_delete(client):
    handle = client.put(world_of(1.01))
    mesh = client.put(box(1.01))
    assert (handle.kind, handle.count) == ("world", 2) and handle.report is None
    assert {handle, mesh} <= set(client.list())
    assert client.get(mesh.scene_id).report == mesh.report
    assert client.get(handle.scene_id) == handle
    np.testing.assert_array_equal(client.get(mesh.scene_id, with_tensors=True).scene.faces, BOX.faces)
    downloaded = client.get(handle.scene_id, with_tensors=True).scene
    assert isinstance(downloaded, World) and downloaded.names == ("mesh", "box")
    np.testing.assert_array_equal(downloaded.poses, handle.scene.poses)
    assert downloaded.obstacles[0].shape.scene_id == mesh.scene_id
    np.testing.assert_array_equal(downloaded.obstacles[0].mesh.vertices, mesh.scene.vertices)
    np.testing.assert_array_equal(downloaded.obstacles[1].shape.size, (1, 1, 1))
    np.testing.assert_array_equal(distances(client, downloaded), distances(client, handle))
    client.delete(handle)
    assert handle not in client.list()


def test_a_world_of_everything_comes_back_as_it_was(client):
    part = client.put(box(1.02))
    world = World(
        [
            Obstacle(part, ASIDE, "handle", enabled=False, sign="winding"),
            Obstacle(box(1.02), (0, 0, 0, 0.0, 0.0, 0.0, 2.0), environment=2, sign="unsigned"),
            Obstacle(VoxelGrid(np.arange(24.0).reshape(2, 3, 4), 0.25), name="Würfel", environment=1),
            Obstacle(Cuboid((0.1, 0.2, 0.3))),
        ],
        environments=4,
    )
    back = client.get(client.put(world).scene_id, with_tensors=True).scene
    assert back.names == ("handle", "1", "Würfel", "3") and back.environments == 4
    np.testing.assert_array_equal(back.poses, world.poses)
    for name in ("enabled", "environment", "sign"):
        assert [getattr(one, name) for one in back.obstacles] == [getattr(one, name) for one in world.obstacles], name
    np.testing.assert_array_equal(back.obstacles[2].shape.distances, world.obstacles[2].shape.distances)
    assert client.put(back).scene_id == client.put(world).scene_id
    assert {obstacle.shape.scene_id for obstacle in back.obstacles[:2]} == {part.scene_id}


def test_obstacles_are_moved_and_switched_by_name(client):
    first = client.put(world_of(1.03))
    np.testing.assert_allclose(distances(client, first), (1.5 - 0.515, 0.25), atol=1e-6)
    second = client.update(first, poses={"mesh": ASIDE}, enabled={"box": False})
    assert (second.scene_id, second.version, second.content_hash) == (first.scene_id, 2, "")
    np.testing.assert_array_equal(second.scene.poses[0], ASIDE)
    assert not second.scene.obstacles[1].enabled
    assert distances(client, second)[0] == pytest.approx(np.hypot(3 - 0.515, 1.5 - 0.515), abs=1e-6)
    stored = client.get(first.scene_id, with_tensors=True).scene
    np.testing.assert_array_equal(stored.poses, second.scene.poses)
    third = client.update(client.get(first.scene_id), enabled={"box": True})
    assert third.version == 3 and third.scene is None
    assert distances(client, third)[1] == pytest.approx(0.25, abs=1e-6)
    for call in (lambda: distances(client, first), lambda: client.update(first, poses={"mesh": ASIDE})):
        with pytest.raises(VersionMismatch):
            call()


def test_meshes_are_deformed_in_place_and_worlds_show_it(client):
    handle = client.put(box(1.04))
    world = client.put(World([Obstacle(handle)]))
    moved = client.update(handle, vertices=BOX.vertices * 2)
    assert moved.version == 2 and moved.report.volume == pytest.approx(8.0, rel=1e-5)
    np.testing.assert_array_equal(moved.scene.faces, BOX.faces)
    assert distances(client, world)[0] == pytest.approx(0.5, abs=1e-6)
    # The original mesh keeps its shape, although the scene that was stored for it has changed.
    assert distances(client, World([Obstacle(handle.scene)]))[0] == pytest.approx(1.5 - 0.52, abs=1e-6)
    assert distances(client, handle.scene)[0] == pytest.approx(1.5 - 0.52, abs=1e-6)
    assert distances(client, moved.scene)[0] == pytest.approx(0.5, abs=1e-6)


def test_meshes_that_others_deform_are_not_taken_for_those_that_were_meant(client, worker_process):
    handle = client.put(box(1.08))
    values = (World([Obstacle(handle.scene)]), handle.scene)
    for one in values:
        distances(client, one)
    kept = client.query(World([Obstacle(handle)]), PROBES)
    with Client(worker_process.target) as other:
        other.update(other.put(box(1.08)), vertices=BOX.vertices * 2)
    for one in (*values, client.put(values[0])):
        assert distances(client, one)[0] == pytest.approx(1.5 - 0.54, abs=1e-6)
    # A handle names a version, in a world as well.
    for call in (client.put, lambda world: distances(client, world)):
        with pytest.raises(VersionMismatch) as refused:
            call(World([Obstacle(handle)]))
        assert (refused.value.scene_id, refused.value.expected, refused.value.actual) == (handle.scene_id, 1, 2)
    # Gradients are those of the mesh that was queried.
    np.testing.assert_allclose(
        kept.backward(distance=np.ones(2)).spheres[:, :3], client.query(box(1.08), PROBES, outputs=("normal",)).normal
    )


@pytest.mark.parametrize(
    ("kind", "changes", "text"),
    [
        ("world", {}, "^tensors: expected at least one of poses and enabled, got none"),
        ("world", {"vertices": BOX.vertices}, "^vertices: expected one of poses and enabled, which worlds have"),
        ("world", {"poses": {"chair": ASIDE}}, "^name: expected one of mesh, box, got 'chair'"),
        ("world", {"poses": {"mesh": (0, 0)}}, r"^pose: expected \[7\] x y z qw qx qy qz"),
        (
            "world",
            {"poses": [ASIDE, ASIDE]},
            r"^poses: expected Mapping, got list; pass .*dict\(zip\(world.names, poses",
        ),
        ("world", {"poses": np.stack([ASIDE, ASIDE])}, r"^poses: expected Mapping, got ndarray; pass \{name: value\}"),
        ("world", {"poses": {0: ASIDE}}, r"^poses: expected str, got 0; pass \{name: value\}"),
        ("world", {"enabled": True}, r"^enabled: expected Mapping, got True; pass \{name: value\}"),
        ("mesh", {}, "^tensors: expected at least one of vertices, got none"),
        ("mesh", {"faces": BOX.faces}, "^faces: expected one of vertices, which meshes have, got faces"),
        ("mesh", {"poses": {"mesh": ASIDE}}, "^poses: expected one of vertices, which meshes have, got poses"),
        ("mesh", {"vertices": BOX.vertices[:4]}, "^faces: expected indices of the 4 vertices"),
    ],
)
def test_updates_are_checked(client, kind, changes, text):
    handle = client.put(world_of(1.05) if kind == "world" else box(1.05))
    with pytest.raises(InvalidArgument, match=text):
        client.update(handle, **changes)


def test_meshes_are_not_rendered(client):
    for handle in (client.put(box(1.07)), client.put(world_of(1.07))):
        with pytest.raises(InvalidArgument, match=rf"^scene: expected spheres or gaussians, got a {handle.kind}"):
            client.render(handle, Camera.look_at((0, 0, 4), (0, 0, 0), width=8, height=8))


def test_what_a_restarted_worker_lost_is_put_again_unnoticed():
    with reserved_port() as port, worker("--device", "cpu", port=port) as process:
        client = Client(process.target, retry_s=60)
        mesh = client.put(box(1.1))
        deformed = client.update(client.put(box(1.2)), vertices=BOX.vertices * 1.3)
        world = client.update(client.put(world_of(1.4)), poses={"mesh": ASIDE})
        of_handles = client.put(World([Obstacle(mesh), Obstacle(deformed, ASIDE)]))
        value = world_of(1.5)
        asked = (mesh, deformed, world, of_handles, value, box(1.6), World([Obstacle(mesh, ASIDE), Obstacle(deformed)]))
        expected = [distances(client, one) for one in asked]
        kept = client.query(of_handles, PROBES, retain=True)
        gradients = kept.backward(distance=np.ones(2), wanted=("spheres", "poses"))
        process.process.kill()
        process.wait()
        with worker("--device", "cpu", port=port), client:
            for one, distance in zip(asked, expected, strict=True):
                np.testing.assert_array_equal(distances(client, one), distance)
            again = kept.backward(distance=np.ones(2), wanted=("spheres", "poses"))
            for name in ("spheres", "poses"):
                np.testing.assert_array_equal(again[name], gradients[name])
            # Handles still work, for updates as well.
            moved = client.update(world, enabled={"box": False})
            assert distances(client, moved)[1] > 1


def test_a_restored_world_shows_its_meshes_as_they_were_last():
    with reserved_port() as port, worker("--device", "cpu", port=port) as process:
        client = Client(process.target, retry_s=60)
        mesh = client.put(box(1.0))
        world = client.put(World([Obstacle(mesh)]))
        for size in (1.2, 1.4):
            mesh = client.update(mesh, vertices=BOX.vertices * size)
            assert distances(client, world)[0] == pytest.approx(1.5 - size / 2, abs=1e-6)
        process.process.kill()
        process.wait()
        with worker("--device", "cpu", port=port), Client(process.target) as other, client:
            # Another client stores the original mesh.
            assert other.put(box(1.0)).scene_id != mesh.scene_id
            assert distances(client, world)[0] == pytest.approx(1.5 - 0.7, abs=1e-6)
            for size in (1.6, 1.8):
                mesh = client.update(mesh, vertices=BOX.vertices * size)
                assert distances(client, world)[0] == pytest.approx(1.5 - size / 2, abs=1e-6)
            assert distances(client, mesh)[0] == pytest.approx(1.5 - 0.9, abs=1e-6)


def test_a_restored_world_of_a_mesh_by_value_shows_its_update_each_time():
    shape = box(1.0)
    with reserved_port() as port, worker("--device", "cpu", port=port) as process:
        client = Client(process.target, retry_s=60)
        world = client.put(World([Obstacle(shape), Obstacle(box(0.5), ASIDE)]))
        client.update(client.put(shape), vertices=BOX.vertices * 1.4)
        expected = distances(client, world)
        assert expected[0] == pytest.approx(1.5 - 0.7, abs=1e-6)
        process.stop()
        for _ in range(2):
            with worker("--device", "cpu", port=port):
                np.testing.assert_array_equal(distances(client, world), expected)
        client.close()


def test_a_world_whose_mesh_is_nowhere_is_an_error():
    with reserved_port() as port, worker("--device", "cpu", port=port) as process:
        client = Client(process.target, retry_s=60)
        mesh = client.get(client.put(box(1.1)).scene_id)
        process.process.kill()
        process.wait()
        with worker("--device", "cpu", port=port), client:
            for call in (client.put, lambda world: client.query(world, PROBES)):
                with pytest.raises(SceneNotFound) as lost:
                    call(World([Obstacle(mesh)]))
                assert lost.value.scene_id == mesh.scene_id
