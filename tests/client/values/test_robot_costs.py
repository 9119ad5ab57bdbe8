"""Robots among obstacles, queried from a worker as a planner does."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from lumigrad.client import Client, Cuboid, Mesh, Obstacle, World
from lumigrad.client.torch import mesh_distance
from support.files.robot_files import ZOO, ZOO_SPHERES, write_urdf

pytest.importorskip("yourdfpy", reason="needs the extra robot")

from lumigrad.client.robots import Robot

DATA = os.environ.get("LUMIGRAD_TEST_DATA")
# A tetrahedron with outward faces, within reach of the arm.
WEDGE = Mesh([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], [[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])


def test_costs_of_joint_angles_have_the_derivatives_of_differences(client: Client, tmp_path: Path):
    robot = Robot.load(write_urdf(tmp_path / "zoo.urdf", ZOO), ZOO_SPHERES, base=(0, 0, 0.1, 0.9, 0.1, 0, 0.2))
    world = client.put(World([Obstacle(WEDGE, pose=(0.2, 0.1, 0.2, 1, 0, 0, 0)), Obstacle(Cuboid((4, 4, 0.1)))]))
    torch.manual_seed(0)
    q = torch.rand(3, 5, 4, dtype=torch.float64) * 0.8
    options = {"activation_distance": 0.1, "sweep": True, "speed_metric": True, "time_step_s": 0.2, "client": client}

    def cost(at: torch.Tensor) -> torch.Tensor:
        return mesh_distance(robot.spheres(at), world, outputs=("cost",), **options).cost.double().sum()

    q.requires_grad_()
    cost(q).backward()
    assert q.grad.abs().max() > 0.1
    direction = torch.randn_like(q)
    step = 1e-3
    with torch.no_grad():
        slope = (cost(q + step * direction) - cost(q - step * direction)) / (2 * step)
    found = (q.grad * direction).sum()
    assert abs(slope - found) < 0.02 * q.grad.norm() * direction.norm()


@pytest.mark.skipif(not DATA, reason="set LUMIGRAD_TEST_DATA to the folder that holds meshes/franka")
def test_one_robot_is_in_the_way_of_another(client: Client, tmp_path: Path):
    pytest.importorskip("trimesh")
    (tmp_path / "meshes" / "collision").mkdir(parents=True)
    for part in Path(DATA, "meshes", "franka").glob("*.obj"):
        shutil.copy(part, tmp_path / "meshes" / "collision")
    configs = Path(DATA, "meshes", "robot_configs")
    panda = Robot.load(shutil.copy(configs / "franka_panda.urdf", tmp_path), configs / "franka.yml")
    q = np.array([0.0, -0.5, 0.0, -2.0, 0.0, 1.5, 0.8])
    links = list(panda.collision_meshes)
    poses = panda.link_poses(q, links)
    world = World([Obstacle(panda.collision_meshes[link], pose=pose) for link, pose in zip(links, poses, strict=True)])
    assert set(world.names) == set(links)
    # The robot's spheres lie on and in its links; those of a robot that stands far away do not.
    own, far = panda.spheres(q), panda.at((2.0, 0, 0, 1, 0, 0, 0)).spheres(q)
    assert (client.query(world, own).distance < own[:, 3]).all()
    assert (client.query(world, far).distance > far[:, 3] + 0.5).all()
