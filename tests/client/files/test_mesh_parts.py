"""Meshes of parts that overlap or are inside out, through every way to a query."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from lumigrad.client import Client, Mesh, Obstacle, World
from lumigrad.client.compat.curobo import (
    CollisionQueryBuffer,
    TensorDeviceType,
    WorldCollisionConfig,
    WorldConfig,
    WorldMeshCollision,
)
from lumigrad.client.compat.curobo import Mesh as CuroboMesh
from lumigrad.client.robots import Robot
from lumigrad.client.torch import mesh_distance
from support.files.query_files import Query
from support.meshes import shapes
from support.meshes.case import MeshShape
from support.workers.spooling import kill, spooling, wait_until_written
from support.workers.worker import WorkerProcess

trimesh = pytest.importorskip("trimesh", reason="needs the extra mesh")

# The top of a table, its legs, which end inside the top, and points in it that are closer to a leg than to its surface.
TOP = (1.6, 0.9, 0.3), (0.0, 0.0, 0.75)
LEGS = [((0.12, 0.12, 0.85), (x, y, 0.425)) for x in (-0.7, 0.7) for y in (-0.35, 0.35)]
IN_TOP = np.array([[-0.7, 0.35, 0.87], [-0.61, 0.35, 0.75], [-0.55, 0.35, 0.75], [-0.7, 0.25, 0.75]])
DEPTHS = [0.02, 0.03, 0.09, 0.04]


def table(turned: int | None = None) -> Mesh:
    """The table as one mesh, with the part `turned` inside out."""
    parts = [shapes.moved(shapes.box(size), at) for size, at in (TOP, *LEGS)]
    if turned is not None:
        parts[turned] = shapes.turned_inside_out(parts[turned])
    joined = shapes.join(*parts)
    return Mesh(joined.vertices, joined.faces)


def scene_of_table(path: Path) -> None:
    scene = trimesh.Scene()
    for size, at in (TOP, *LEGS):
        scene.add_geometry(trimesh.creation.box(size, trimesh.transformations.translation_matrix(at)))
    scene.export(path)


@pytest.mark.parametrize("suffix", ["glb", "obj", "stl"])
def test_the_command_finds_collisions_in_parts_that_overlap(suffix: str, query: Query, tmp_path: Path) -> None:
    scene_of_table(tmp_path / f"table.{suffix}")
    np.save(tmp_path / "spheres.npy", IN_TOP)
    done = query("--check", mesh=f"table.{suffix}")
    assert done.returncode == 3, done.stdout
    *_, verdict, closest, note = done.stdout.splitlines()
    assert verdict == "4 spheres, 1 obstacle: COLLIDES, 4 spheres" and "0.09 m inside table" in closest
    assert note == "table: 5 of its 5 parts overlap or lie close: the winding number decides what is inside"
    told = json.loads(query("--json", "--check", mesh=f"table.{suffix}").stdout)
    assert told["notes"] == [note] and not told["free"]
    np.testing.assert_allclose([-record["distance"] for record in told["records"]], DEPTHS, atol=1e-5)


def test_the_command_says_what_it_turns_and_nothing_of_solids(query: Query, tmp_path: Path) -> None:
    one, other = shapes.box((1, 1, 1)), shapes.turned_inside_out(shapes.moved(shapes.box((1, 1, 1)), (3, 0, 0)))
    both = shapes.join(one, other)
    Mesh(both.vertices, both.faces).save(tmp_path / "pair.obj")
    np.save(tmp_path / "spheres.npy", np.array([[3.0, 0.1, 0.2], [0.0, 0.0, 2.0]]))
    done = query("--check", mesh="pair.obj")
    assert done.returncode == 3
    assert done.stdout.splitlines()[-1] == "pair: 1 of its 2 parts are inside out and taken the other way round"
    assert json.loads(query("--json", "--sign", "winding", mesh="pair.obj").stdout)["notes"] == []
    assert json.loads(query("--json").stdout)["notes"] == []


def test_the_command_says_where_an_open_mesh_looks_inward(query: Query, tmp_path: Path) -> None:
    bin_, heap = shapes.open_box(), shapes.grid_box((1.0, 1.0, 1.0), 4)
    ground = MeshShape(heap.vertices, heap.faces[heap.vertices[heap.faces].mean(1)[:, 2] > 0.49])
    np.save(tmp_path / "spheres.npy", np.array([[0.0, 0.0, -0.1]]))
    inward = "its faces look into what they nearly enclose, which counts as free: turn them unless it is a room"
    for name, shape in {"bin": bin_, "ground": ground}.items():
        for turned in (False, True):
            made = shapes.turned_inside_out(shape) if turned else shape
            Mesh(made.vertices, made.faces).save(tmp_path / "open.obj")
            (note,) = json.loads(query("--json", "--check", mesh="open.obj").stdout)["notes"]
            assert note.startswith("open: its surface is not closed: the winding number decides what is inside")
            assert (inward in note) == (name == "bin" and turned), (name, turned, note)


def test_the_command_says_that_faces_disagree(query: Query, tmp_path: Path) -> None:
    box = shapes.box((1, 1, 1))
    faces = box.faces.copy()
    faces[3] = faces[3][::-1]
    Mesh(box.vertices, faces).save(tmp_path / "box.obj")
    np.save(tmp_path / "spheres.npy", np.zeros((1, 3)))
    (note,) = json.loads(query("--json", "--check", mesh="box.obj").stdout)["notes"]
    assert note.startswith("box: its faces are not all oriented alike") and note.endswith("orient them alike")


@pytest.mark.parametrize("turned", [None, 0, 3])
def test_operators_push_out_of_every_part(turned: int | None, client: Client) -> None:
    spheres = torch.tensor(np.column_stack([IN_TOP, np.full(4, 0.01)]).reshape(1, 4, 1, 4), dtype=torch.float32)
    spheres.requires_grad_()
    found = mesh_distance(spheres, World(table(turned)), activation_distance=0.02, sweep=True, client=client)
    np.testing.assert_allclose(found.distance.detach().flatten(), -np.array(DEPTHS), atol=1e-5)
    found.distance.sum().backward()
    assert spheres.grad is not None
    # The closest surface is the leg's end, below the point: moving up makes the point deeper.
    np.testing.assert_allclose(spheres.grad[0, 0, 0], [0, 0, -1, 0], atol=1e-4)
    assert (found.cost > 0).all()


def test_links_of_several_shapes_are_solid(client: Client, tmp_path: Path) -> None:
    (tmp_path / "arm.urdf").write_text(
        '<robot name="arm"><link name="base"><collision><origin xyz="0 0 0.2"/><geometry><box size="0.4 0.4 0.4"/>'
        '</geometry></collision><collision><origin xyz="0 0 0.35" rpy="0 0 0.7"/><geometry><box size="0.2 0.2 0.5"/>'
        "</geometry></collision></link></robot>"
    )
    pytest.importorskip("yourdfpy")
    link = Robot.load(tmp_path / "arm.urdf", {"base": [[0, 0, 0, 0.1]]}).collision_meshes["base"]
    points = [[0.1, 0.03, 0.2], [-0.1, 0, 0.25], [0, 0.1, 0.3], [0, 0, 0.36], [0.3, 0, 0.2]]
    distances = client.query(World(link), points).distance
    assert (distances[:4] < 0).all() and distances[4] > 0
    report = client.put(link).report
    assert report is not None and (report.components, report.overlapping_components, report.sign) == (2, 2, "winding")


def test_worlds_from_files_and_stored_meshes_know_their_parts(client: Client, tmp_path: Path) -> None:
    scene_of_table(tmp_path / "table.glb")
    (tmp_path / "world.yml").write_text("mesh:\n  table:\n    pose: [0, 0, 0, 1, 0, 0, 0]\n    file_path: table.glb\n")
    stored = client.put(table(2))
    for world in (World.load(tmp_path / "world.yml"), World([Obstacle(stored)]), World(stored)):
        np.testing.assert_allclose(client.query(world, IN_TOP).distance, -np.array(DEPTHS), atol=1e-5)
    field = client.field(World(stored), (-0.7, 0.35, 0.75, 1, 0, 0, 0), size=(0.1, 0.1, 0.2), voxel_size=0.02)
    assert (field.distances < 0).all()


def test_moved_vertices_bring_a_new_report(client: Client) -> None:
    apart = shapes.join(shapes.box((1, 1, 1)), shapes.moved(shapes.box((1, 1, 1)), (3, 0, 0)))
    handle = client.put(Mesh(apart.vertices, apart.faces))
    assert handle.report is not None and handle.report.sign == "normals"
    for by, flip, sign, turned in ((-2.6, 1, "winding", 0), (-2.6, -1, "winding", 1), (0, -1, "normals", 1)):
        vertices = apart.vertices.copy()
        vertices[8:, 0] += by
        vertices[8:, 1] *= flip
        handle = client.update(handle, vertices=vertices)
        report = handle.report
        assert report is not None and (report.sign, report.turned_components) == (sign, turned)
        points = np.array([[3.0 + by, 0.1, 0.0], [3.49 + by, 0, 0], [0.0, 0.2, 0.0], [0.48, 0.1, 0.1], [0, 0, 2]])
        assert (client.query(World(handle), points).distance < 0).tolist() == [True, True, True, True, False]


def test_a_mesh_from_the_spool_is_the_same(tmp_path: Path) -> None:
    with spooling(tmp_path) as process, Client(process.target, retry_s=60) as client:
        handle = client.put(table(3))
        moved = client.update(client.put(table()), vertices=table().vertices * np.float32([1, -1, 1]))
        before = [client.query(World(each), IN_TOP).distance for each in (handle, moved)]
        wait_until_written(process)
        kill(process)
        after = [client.query(World(each), IN_TOP).distance for each in (handle, moved)]
        np.testing.assert_array_equal(before, after)
        for each in (handle, moved):
            again = client.get(each.scene_id)
            assert each.report is not None and again.report is not None
            assert (again.report.remark, again.report.sign) == (each.report.remark, each.report.sign)
            assert again.report.turned_components == each.report.turned_components > 0


def curobo_costs(shape: MeshShape, points: np.ndarray) -> list[float]:
    cpu = TensorDeviceType(torch.device("cpu"))
    model = CuroboMesh("part", [0, 0, 0, 1, 0, 0, 0], vertices=shape.vertices.tolist(), faces=shape.faces.tolist())
    world = WorldMeshCollision(WorldCollisionConfig(cpu, world_model=WorldConfig(mesh=[model]), max_distance=5.0))
    spheres = torch.tensor(np.column_stack([points, np.full(len(points), 0.05)]).reshape(-1, 1, 1, 4)).float()
    buffer = CollisionQueryBuffer.initialize_from_shape(spheres.shape, cpu, world.collision_types)
    weight, activation = (cpu.to_device([value]) for value in (1.0, 0.02))
    return world.get_sphere_distance(spheres, buffer, weight, activation).flatten().tolist()


def test_the_drop_in_votes_by_rays_where_the_closest_surface_does_not_tell(
    worker_process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUMIGRAD_TARGET", worker_process.target)
    big, small = shapes.moved(shapes.box((4, 4, 4)), (1, 1, 1)), shapes.moved(shapes.box((1, 1, 1)), (1, 1, 1))
    points = np.array([[0.0, 1, 1], [1.8, 1, 1], [2.9, 1, 1], [1, 1, 1], [4.0, 1, 1]])
    costs = curobo_costs(shapes.join(big, small), points)
    np.testing.assert_allclose(costs, [0.56, 0.36, 0.16, 0.56, 0], atol=1e-5)
    # Rays meet no backs of faces in a part that is inside out: as in the original, it has no inside.
    apart = shapes.join(big, shapes.turned_inside_out(shapes.moved(small, (4, 0, 0))))
    np.testing.assert_allclose(curobo_costs(apart, np.array([[5.0, 1, 1]])), [0], atol=1e-6)
