"""`lumigrad query` of real parts and robots, against trimesh and the distance to a box."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from support.files.query_files import Query, to_box

pytest.importorskip("trimesh", reason="needs the extra mesh")

DATA = os.environ.get("LUMIGRAD_TEST_DATA")
pytestmark = pytest.mark.skipif(not DATA, reason="set LUMIGRAD_TEST_DATA to the folder that holds meshes/")


def test_a_machined_part_in_inches(query: Query, tmp_path: Path):
    trimesh = pytest.importorskip("trimesh")
    pytest.importorskip("rtree", reason="trimesh finds closest points with it")
    path = Path(DATA, "meshes", "trimesh_models", "angle_block.STL")
    part = trimesh.load(path, force="mesh")
    assert part.is_watertight
    low, high = part.bounds
    points = np.random.default_rng(0).uniform(low - 0.5, high + 0.5, (200, 3))
    np.save(tmp_path / "points.npy", points)
    done = query("--scale", "inch", "--spheres", "points.npy", "--spheres-scale", "inch", "--json", mesh=str(path))
    told = json.loads(done.stdout)
    signed = -trimesh.proximity.signed_distance(part, points) * 0.0254
    np.testing.assert_allclose([entry["distance"] for entry in told["records"]], signed, atol=2e-6)
    _, distance, _ = trimesh.proximity.closest_point(part, np.array([e["closest"] for e in told["records"]]) / 0.0254)
    assert distance.max() < 1e-4


def test_a_real_arm_swings_into_a_box(query: Query, tmp_path: Path):
    pytest.importorskip("yourdfpy", reason="needs the extra robot")
    from lumigrad.client.robots import Robot

    folder = Path(DATA, "meshes", "robot_configs")
    robot = Robot.load(folder / "franka_panda.urdf", folder / "franka.yml")
    begin, end = robot.rest.copy(), robot.rest.copy()
    begin[0], end[0], end[1] = -1.2, 1.0, 0.3
    q = begin + np.linspace(0, 1, 30)[:, None] * (end - begin)
    np.save(tmp_path / "q.npy", q)
    arm = ("--spheres", str(folder / "franka.yml"), "--urdf", str(folder / "franka_panda.urdf"), "--joints", "q.npy")
    done = query(*arm, "--json", "--check", mesh=str(folder / "collision_test.yml"))
    told = json.loads(done.stdout)
    spheres = robot.spheres(q)
    table = to_box(spheres[..., :3], (1.4, 1.4, 0.05), (0, 0, -0.05))
    block = to_box(spheres[..., :3], (0.1, 0.1, 0.1), (0.4, 0, 0.3))
    expected = np.minimum(table, block) - spheres[..., 3]
    found = np.array([entry["clearance"] for entry in told["records"]]).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert done.returncode == 3 and told["closest"]["obstacle"] == "box"
    assert told["colliding_steps"] == np.flatnonzero((expected < 0).any(1)).tolist() != []
