"""Worlds from files: cuRobo's YAML, and meshes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Client, InvalidArgument, World
from lumigrad.client.formats.world_files import read_obstacles
from lumigrad.client.values.rotations import composed, pose_array, quaternion_between, rotated

pytest.importorskip("yaml", reason="needs the extra robot")
pytest.importorskip("trimesh", reason="needs the extra mesh")

DATA = os.environ.get("LUMIGRAD_TEST_DATA")
HALF = float(np.sqrt(0.5))
WORLD = """
cuboid:
  table: {dims: [2.0, 1.0, 0.1], pose: [0, 0, -0.05, 1, 0, 0, 0]}
sphere:
  ball: {position: [0.5, 0.1, 0.4], radius: 0.1}
capsule:
  rod: {radius: 0.1, base: [0, 0, 0.2], tip: [0.3, 0, 0.6], pose: [0, 2, 0, 1, 0, 0, 0]}
cylinder:
  can: {radius: 0.2, height: 0.5, pose: [3, 0, 0, 0.7071067811865476, 0.7071067811865476, 0, 0]}
mesh:
  part: {file_path: parts/box.obj, pose: [0, 0, 3, 1, 0, 0, 0], scale: [0.1, 0.1, -0.1]}
  sheet: {vertices: [[5, 0, 0], [6, 0, 0], [5, 1, 0]], faces: [[0, 1, 2]]}
"""
BOX = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "box.obj").write_text(BOX)
    (tmp_path / "scenes").mkdir()
    (tmp_path / "scenes" / "world.yml").write_text(WORLD)
    return tmp_path / "scenes" / "world.yml"


def to_segment(points: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    share = np.clip((points - a) @ (b - a) / ((b - a) @ (b - a)), 0, 1)
    return np.linalg.norm(points - a - share[:, None] * (b - a), axis=1)


def test_a_sign_is_for_the_meshes_of_a_world(path: Path):
    found = {each.name: each.sign for each in read_obstacles(path, sign="unsigned")}
    assert found.pop("table") == "auto" and set(found.values()) == {"unsigned"}


def test_round_obstacles_are_hardly_smaller(path: Path):
    meshes = {each.name: each.shape for each in read_obstacles(path)}
    weights = np.random.default_rng(0).dirichlet([1, 1, 1], 100)
    ends = {"ball": ((0, 0, 0), (0, 0, 1e-9)), "rod": ((0, 0, 0.2), (0.3, 0, 0.6)), "can": ((0, 0, -1), (0, 0, 1))}
    for name, radius in (("ball", 0.1), ("rod", 0.1), ("can", 0.2)):
        corners = meshes[name].vertices[meshes[name].faces].astype(np.float64)
        if name == "can":
            corners = corners[np.ptp(corners[..., 2], axis=1) > 0.1]
        distances = to_segment((weights @ corners).reshape(-1, 3), *np.array(ends[name], np.float64))
        assert 0.998 * radius < distances.min() and distances.max() < (1 + 1e-6) * radius, name


def test_all_kinds_of_obstacles_are_where_the_file_says(path: Path, client: Client):
    world = World.load(path)
    assert world.names == ("table", "ball", "rod", "can", "part", "sheet")
    points = np.random.default_rng(0).uniform((-1, -1, -1), (4, 3, 4), (300, 3))
    rows = np.concatenate([points, np.zeros((300, 1))], 1)
    found = client.query(world, rows, per_obstacle=True).distance.astype(np.float64)
    outside = np.abs(points - [0, 0, -0.05]) - [1, 0.5, 0.05]
    box = np.linalg.norm(np.maximum(outside, 0), axis=1) + np.minimum(outside.max(1), 0)
    np.testing.assert_allclose(found[:, 0], box, atol=1e-5)
    np.testing.assert_allclose(found[:, 1], np.linalg.norm(points - [0.5, 0.1, 0.4], axis=1) - 0.1, atol=3e-4)
    rod = to_segment(points, np.array([0, 2, 0.2]), np.array([0.3, 2, 0.6])) - 0.1
    np.testing.assert_allclose(found[:, 2], rod, atol=3e-4)
    # The can's axis lies along y, after a quarter turn about x.
    beside = np.linalg.norm(points[:, [0, 2]] - [3, 0], axis=1) - 0.2
    along = np.abs(points[:, 1]) - 0.25
    can = np.hypot(np.maximum(beside, 0), np.maximum(along, 0)) + np.minimum(np.maximum(beside, along), 0)
    np.testing.assert_allclose(found[:, 3], can, atol=5e-4)
    low, high = world.obstacles[4].mesh.bounds
    np.testing.assert_allclose([low, high], [[0, 0, -0.1], [0.1, 0.1, 0]], atol=1e-7)
    inside = client.query(world, [[0.02, 0.02, 2.98, 0.0]], per_obstacle=True).distance[0]
    assert inside[4] == pytest.approx(-0.02, abs=1e-6), "a mirrored mesh keeps its inside"


def test_a_mesh_is_a_world_by_itself_in_units_of_its_file(path: Path, client: Client):
    world = World.load(path.parents[1] / "parts" / "box.obj", scale=0.001)
    assert world.names == ("box",)
    assert client.query(world, [[0.0, 0.0, 0.003, 0.0]]).distance == pytest.approx([0.002], abs=1e-7)


def test_a_file_is_placed_as_a_whole(path: Path):
    pose = pose_array("pose", (1, 2, 3, HALF, 0, 0, HALF))
    table = read_obstacles(path, pose=pose)[0]
    np.testing.assert_allclose(table.pose, (1, 2, 2.95, HALF, 0, 0, HALF), atol=1e-12)
    random = np.random.default_rng(1)
    for _ in range(20):
        outer, inner, point = random.normal(size=7), random.normal(size=7), random.normal(size=3)
        both = composed(outer, inner)
        in_steps = at(outer, at(inner, point))
        np.testing.assert_allclose(at(both, point), in_steps, atol=1e-12)


def at(pose: np.ndarray, point: np.ndarray) -> np.ndarray:
    return rotated(pose[3:] / np.linalg.norm(pose[3:]), point) + pose[:3]


def test_directions_turn_into_one_another():
    random = np.random.default_rng(2)
    pairs = [(random.normal(size=3), random.normal(size=3)) for _ in range(20)]
    z = np.array([0.0, 0.0, 1.0])
    for a, b in [*pairs, (z, 2 * z), (z, -z), (np.array([1.0, 0, 0]), np.array([-3.0, 0, 0]))]:
        turned = rotated(quaternion_between(a, b), a / np.linalg.norm(a))
        np.testing.assert_allclose(turned, b / np.linalg.norm(b), atol=1e-7)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- 1", "expected obstacles by name under cuboid, mesh, sphere, capsule, cylinder, got [1]"),
        ("boxes: {}", "expected cuboid, mesh, sphere, capsule or cylinder as the kind of obstacles, got boxes"),
        ("cuboid: [1]", "expected cuboid by name, got [1]"),
        ("cuboid: {a: 3}", "expected a mapping as cuboid.a, got 3"),
        ("cuboid: {a: {dims: [1, 2]}}", "cuboid.a: dims: expected 3 finite numbers, got [1, 2]"),
        ("cuboid: {a: {dims: [1, 2, -3]}}", "cuboid.a: size: expected three lengths > 0, got [1.0, 2.0, -3.0]"),
        ("cuboid: {a: {dims: [1, 2, 3], pose: [0, 0, 0, 0, 0, 0, 0]}}", "cuboid.a: pose: expected a quaternion"),
        (
            "cuboid: {a: {dims: [1, 1, 1], poes: [0, 0, 9, 1, 0, 0, 0]}}",
            "cuboid.a: poes: expected only pose, dims, and fields of its appearance",
        ),
        (
            "sphere: {a: {radius: 1, position: [1, 0, 0], pose: [0, 0, 0, 1, 0, 0, 0]}}",
            "sphere.a: position: expected that of the pose, [0. 0. 0.], got [1. 0. 0.]; give one",
        ),
        ("sphere: {a: {position: [0, 0, 0], radius: 0}}", "sphere.a: radius: expected a length > 0, metres, got 0.0"),
        ("mesh: {a: {}}", "mesh.a: file_path: expected the name of a file, or vertices and faces, got None"),
        ("mesh: {a: {file_path: absent.stl}}", "mesh.a: file_path: expected 'absent.stl' in its folder or in one"),
        ("mesh: {a: {vertices: [[0, 0, 0]], faces: [[0, 0, 9]]}}", "mesh.a: faces: expected indices of the 1 vertices"),
        (
            "mesh: {a: {vertices: [[0, 0, 0]], faces: [[0, 0, 0]], scale: 0}}",
            "mesh.a: scale: expected one factor or three",
        ),
        ("cuboid: {a: {dims: [1, 2, 3]}, a: {dims: [1, 1, 1]}}", "expected a YAML file, got the key 'a' twice"),
        ("cuboid: [", "expected a YAML file, got while parsing"),
        (f"cuboid: {'9' * 5000}", "expected a YAML file, got Exceeds the limit"),
        ("cuboid: !!int 0x10", "expected a YAML file, got invalid literal"),
        (f"cuboid: {'[' * 5000}", "expected a YAML file, got maximum recursion depth"),
    ],
)
def test_what_is_no_world_is_told_by_its_entry(tmp_path: Path, text: str, said: str):
    path = tmp_path / "world.yml"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as refused:
        World.load(path)
    assert str(refused.value).startswith(f"path: {path}: {said}")
    assert "\n" not in str(refused.value)


def test_entries_may_merge_others_and_change_them(tmp_path: Path):
    path = tmp_path / "world.yml"
    text = "a: &a {dims: [1, 1, 1], pose: [0, 0, 0, 1, 0, 0, 0]}\n  b: {<<: *a, dims: [2, 2, 2]}\n  c: {<<: *a}\n"
    path.write_text(f"cuboid:\n  {text}")
    assert World.load(path).names == ("a", "b", "c")


@pytest.mark.skipif(not DATA, reason="set LUMIGRAD_TEST_DATA to the folder that holds meshes/robot_configs")
def test_curobos_own_worlds_are_read(client: Client):
    folder = Path(DATA, "meshes", "robot_configs")
    assert World.load(folder / "collision_test.yml").names == ("table", "box")
    primitives = World.load(folder / "collision_primitives_3d.yml")
    assert primitives.names == ("cube2", "cube3", "sphere1", "sphere2", "capsule1", "capsule2")
    middle = [0.5, 0.0, 0.3, 0.0]
    found = client.query(primitives, [middle], per_obstacle=True).distance[0]
    assert found[4] == pytest.approx(-0.1, abs=1e-3)
    assert found[0] == pytest.approx(np.hypot(0, 0.25), abs=1e-6)
