"""Robots: forward kinematics in NumPy and torch, compared with yourdfpy, and cuRobo's files."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from support.files.robot_files import UR10E, ZOO, ZOO_SPHERES, JointLine, write_urdf

yourdfpy = pytest.importorskip("yourdfpy", reason="needs the extra robot")

from lumigrad.client import Client, Cuboid, InvalidArgument, Mesh, Obstacle, World  # noqa: E402
from lumigrad.client.robots import Robot  # noqa: E402 - after the helpful skip
from lumigrad.client.torch import mesh_distance  # noqa: E402
from lumigrad.client.values.rotations import matrix_of  # noqa: E402

DATA = os.environ.get("LUMIGRAD_TEST_DATA")
# A tetrahedron with outward faces, within reach of the arm.
WEDGE = Mesh([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], [[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])
with_data = pytest.mark.skipif(not DATA, reason="set LUMIGRAD_TEST_DATA to the folder that holds meshes/robot_configs")
BASE = (0.5, -0.2, 0.1, 0.5, 0.5, -0.5, 0.5)


def configs() -> Path:
    return Path(DATA, "meshes", "robot_configs")


@pytest.fixture
def zoo(tmp_path: Path) -> Robot:
    return Robot.load(write_urdf(tmp_path / "zoo.urdf", ZOO), ZOO_SPHERES)


def peer(path: Path, robot: Robot, q: np.ndarray, base_link: str, **others: float) -> dict[str, np.ndarray]:
    """yourdfpy's matrices of the links that both models have."""
    urdf = yourdfpy.URDF.load(str(path), load_meshes=False)
    urdf.update_cfg({**dict(zip(robot.joint_names, q.tolist(), strict=True)), **others})
    return {link: urdf.get_transform(link, base_link) for link in robot.links if link in urdf.link_map}


def assert_agrees(robot: Robot, q: np.ndarray, expected: dict[str, np.ndarray]) -> None:
    poses = dict(zip(robot.links, robot.link_poses(q), strict=True))
    for link, matrix in expected.items():
        np.testing.assert_allclose(matrix_of(link, poses[link]), matrix, atol=1e-12, err_msg=link)


def test_links_are_where_yourdfpy_puts_them(tmp_path, zoo):
    # yourdfpy does not normalise the axes of prismatic joints.
    plain = [replace(joint, axis="0 0 1") if joint.name == "rise" else joint for joint in ZOO]
    path = write_urdf(tmp_path / "plain.urdf", plain)
    assert zoo.joint_names == ("rise", "turn", "wrist", "left")
    np.testing.assert_allclose(zoo.limits, [[0, 0.5], [-np.inf, np.inf], [-1.5, 0.5], [0, 0.04]])
    for q in np.random.default_rng(0).uniform(-3, 3, (20, 4)):
        assert_agrees(zoo, q, peer(path, zoo, q, "world"))


def test_joints_may_follow_joints_that_follow(tmp_path):
    def slide(name: str, inner: str = "") -> JointLine:
        return JointLine(name, "prismatic", "base", f"{name} link", axis="1 0 0", inner=inner)

    joints = (
        slide("third", '<mimic joint="second" multiplier="-2" offset="0.1"/>'),
        slide("second", '<mimic joint="first" multiplier="0.5" offset="0.25"/>'),
        slide("first"),
    )
    robot = Robot.load(write_urdf(tmp_path / "follow.urdf", joints), {"third link": [[0.0, 0.0, 0.0, 0.1]]})
    assert robot.joint_names == ("first",)
    x = dict(zip(robot.links, robot.link_poses(np.array([0.4]))[:, 0].tolist(), strict=True))
    assert x == pytest.approx({"base": 0, "first link": 0.4, "second link": 0.45, "third link": -0.8})


def test_spheres_go_with_their_links_in_the_order_of_the_file(zoo):
    q = np.random.default_rng(1).uniform(-1, 1, (2, 3, 4))
    spheres = zoo.spheres(q)
    assert spheres.shape == (2, 3, len(zoo), 4) and spheres.dtype == np.float64
    assert zoo.sphere_links == ("flag", "base", "base", "hand", "hand", "right_finger", "arm")
    np.testing.assert_array_equal(spheres[1, 2, :, 3], [0.05, 0.2, 0.1, 0.06, -1, 0.01, 0.08])
    local = [[0, 0, 0.1], [0, 0, 0], [0.1, 0, 0], [0, 0, 0.05], [0, 0.01, 0], [0, -0.01, 0.02], [0, 0.2, 0]]
    poses = zoo.link_poses(q, zoo.sphere_links)
    for index, centre in enumerate(local):
        matrix = matrix_of("pose", poses[1, 2, index])
        np.testing.assert_allclose(spheres[1, 2, index, :3], matrix[:3, :3] @ centre + matrix[:3, 3], atol=1e-12)


def test_a_base_moves_everything(zoo):
    q, base = np.array([0.1, 0.2, 0.3, 0.01]), matrix_of("base", BASE)
    moved = zoo.at(BASE)
    here, there = zoo.spheres(q), moved.spheres(q)
    np.testing.assert_allclose(there[:, :3], here[:, :3] @ base[:3, :3].T + base[:3, 3], atol=1e-12)
    np.testing.assert_array_equal(there[:, 3], here[:, 3])
    np.testing.assert_allclose(matrix_of("", moved.link_poses(q, ["world"])[0]), base, atol=1e-12)
    np.testing.assert_allclose(zoo.base, [0, 0, 0, 1, 0, 0, 0])


def test_torch_gives_the_same_and_its_derivatives(zoo):
    zoo = zoo.at(BASE)
    q = torch.rand(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    for of in (zoo.spheres, zoo.link_poses):
        np.testing.assert_allclose(of(q).detach().numpy(), of(q.detach().numpy()), atol=1e-12)
        assert torch.autograd.gradcheck(of, (q,))
    assert zoo.spheres(q.detach().float()).dtype == torch.float32
    assert zoo.spheres(torch.zeros(4, dtype=torch.int32)).dtype == torch.float32


def test_numbers_of_all_kinds(zoo):
    assert zoo.spheres([0, 0, 0, 0]).dtype == np.float64
    single = zoo.spheres(np.zeros((0, 5, 4), np.float32))
    assert single.shape == (0, 5, 7, 4) and single.dtype == np.float32


def test_every_rotation_becomes_a_unit_quaternion(tmp_path):
    turns = [JointLine(axis, "revolute", *axis.split("-"), axis="1 0 0") for axis in ("a-b", "b-c", "c-d")]
    turns[1], turns[2] = replace(turns[1], axis="0 1 0"), replace(turns[2], axis="0 0 1")
    robot = Robot.load(write_urdf(tmp_path / "turns.urdf", turns), {"d": [[0, 0, 0, 1]]})
    steps = np.stack(np.meshgrid(*[np.arange(-4, 5) * np.pi / 4] * 3), -1).reshape(-1, 3)
    poses = robot.link_poses(steps, ["d"])[:, 0]
    np.testing.assert_allclose(np.linalg.norm(poses[:, 3:], axis=1), 1, atol=1e-12)
    for q, pose in zip(steps, poses, strict=True):
        a, b, c = Rotation.from_rotvec(np.diag(q)).as_matrix()
        np.testing.assert_allclose(matrix_of("pose", pose)[:3, :3], a @ b @ c, atol=1e-12)


def test_joints_rest_where_the_file_says_or_close_to_zero(tmp_path):
    lift = JointLine("lift", "revolute", "base", "arm", limits=(0.5, 2.0))
    path = write_urdf(tmp_path / "two.urdf", [lift, JointLine("turn", "continuous", "arm", "hand", limits=None)])
    spheres = {"hand": [[0.0, 0.0, 0.0, 0.1]]}
    np.testing.assert_array_equal(Robot.load(path, spheres).rest, [0.5, 0.0])
    # The lower limit above the upper one means that the joint turns freely.
    free = write_urdf(tmp_path / "free.urdf", [replace(lift, limits=(3.14, -3.14))])
    np.testing.assert_array_equal(Robot.load(free, {"arm": [[0.0, 0.0, 0.0, 0.1]]}).rest, [0.0])
    config = {"collision_spheres": spheres, "cspace": {"joint_names": ["turn", "lift"], "retract_config": [0.2, 1.0]}}
    np.testing.assert_array_equal(Robot.load(path, config).rest, [0.2, 1.0])
    np.testing.assert_array_equal(Robot.load(path, config, joints=["lift"], locked={"turn": 0}).rest, [1.0])
    config["cspace"]["retract_config"] = [0.2]
    with pytest.raises(InvalidArgument, match=r"cspace.retract_config: expected a number for each of 2 joints"):
        Robot.load(path, config)


def test_joints_can_be_chosen_locked_and_cut_off(tmp_path, zoo):
    path = write_urdf(tmp_path / "zoo.urdf", ZOO)
    chosen = Robot.load(path, ZOO_SPHERES, joints=["wrist", "rise"], locked={"turn": 0.4, "right": -0.01, "left": 0})
    assert chosen.joint_names == ("wrist", "rise") and chosen.limits.tolist() == [[-1.5, 0.5], [0, 0.5]]
    np.testing.assert_allclose(chosen.spheres([0.3, 0.2])[:5], zoo.spheres([0.2, 0.4, 0.3, 0])[:5], atol=1e-12)
    np.testing.assert_allclose(chosen.spheres([0.3, 0.2])[5], zoo.spheres([0.2, 0.4, 0.3, 0.015])[5], atol=1e-12)
    hand = Robot.load(path, {"right_finger": ZOO_SPHERES["right_finger"]}, base_link="hand")
    assert hand.joint_names == ("left",) and hand.links == ("hand", "left_finger", "right_finger")
    np.testing.assert_allclose(hand.spheres([0.02])[0], [0, -0.02 - 0.01 - 0.015, 0.12, 0.01], atol=1e-12)


def test_shapes_of_links_become_meshes(tmp_path):
    trimesh = pytest.importorskip("trimesh")
    (tmp_path / "parts" / "meshes").mkdir(parents=True)
    trimesh.creation.box(extents=(1, 2, 3)).export(tmp_path / "parts" / "meshes" / "box.stl")
    mesh = '<geometry><mesh filename="package://parts/meshes/box.stl" scale="-0.1 0.1 0.1"/></geometry>'
    made = '<geometry><sphere radius="0.1"/></geometry>'
    tube = '<geometry><cylinder radius="0.1" length="0.4"/></geometry>'
    crate = '<geometry><box size="0.2 0.4 0.6"/></geometry>'
    origin = '<origin xyz="0.5 0 0" rpy="0 0 1.5707963267948966"/>'
    collisions = {
        "hand": f"<collision>{origin}{mesh}</collision>",
        "arm": f"<collision>{made}</collision><collision>{origin}{tube}</collision>",
        "flag": f"<collision>{crate}</collision>",
    }
    (tmp_path / "parts" / "urdf").mkdir()
    path = write_urdf(tmp_path / "parts" / "urdf" / "zoo.urdf", ZOO, collisions)
    meshes = Robot.load(path, ZOO_SPHERES).collision_meshes
    assert set(meshes) == {"hand", "arm", "flag"}
    np.testing.assert_allclose(meshes["hand"].bounds, [[0.4, -0.05, -0.15], [0.6, 0.05, 0.15]], atol=1e-6)
    np.testing.assert_allclose(meshes["arm"].bounds, [[-0.1, -0.1, -0.2], [0.6, 0.1, 0.2]], atol=1e-3)
    np.testing.assert_allclose(meshes["flag"].bounds, [[-0.1, -0.2, -0.3], [0.1, 0.2, 0.3]], atol=1e-6)
    for mesh in meshes.values():
        corners = mesh.vertices[mesh.faces].astype(float)
        assert np.linalg.det(corners).sum() > 0, "inside out"


@pytest.mark.parametrize("shape", ['<sphere radius="0.1"/>', '<cylinder radius="0.1" length="0.4"/>'])
def test_round_links_become_meshes_that_are_hardly_smaller(shape: str, tmp_path: Path) -> None:
    path = write_urdf(tmp_path / "zoo.urdf", ZOO, {"arm": f"<collision><geometry>{shape}</geometry></collision>"})
    mesh = Robot.load(path, ZOO_SPHERES).collision_meshes["arm"]
    corners = mesh.vertices[mesh.faces].astype(float)
    if "cylinder" in shape:
        corners = corners[np.ptp(corners[..., 2], axis=1) > 0.1] * (1, 1, 0)
    assert np.linalg.norm(corners, axis=-1).max() <= 0.1 + 1e-6
    # The middles of edges and faces are nearest to the axis or centre.
    inner = np.concatenate([corners.mean(axis=1), (corners + np.roll(corners, 1, axis=1)).reshape(-1, 3) / 2])
    assert np.linalg.norm(inner, axis=-1).min() > 0.998 * 0.1


@pytest.mark.parametrize(
    "name",
    [
        "package://parts/meshes/a%20box.stl",
        "package://meshes/a box.stl",
        "model://parts/meshes/a box.stl",
        "meshes/a box.stl",
        "meshes\\a box.stl",
        "package:\\\\parts\\meshes\\a box.stl",
        "file://{folder}/meshes/a box.stl",
    ],
)
def test_meshes_are_found_by_every_kind_of_address(name: str, tmp_path: Path) -> None:
    trimesh = pytest.importorskip("trimesh")
    folder = tmp_path / "parts"
    (folder / "meshes").mkdir(parents=True)
    trimesh.creation.box(extents=(1, 2, 3)).export(folder / "meshes" / "a box.stl")
    mesh = f'<collision><geometry><mesh filename="{name.format(folder=folder)}"/></geometry></collision>'
    robot = Robot.load(write_urdf(folder / "zoo.urdf", ZOO, {"hand": mesh}), ZOO_SPHERES)
    assert len(robot.collision_meshes["hand"]) == 12


@with_data
def test_franka_has_the_spheres_of_its_file():
    robot = Robot.load(configs() / "franka_panda.urdf", configs() / "franka.yml")
    assert robot.joint_names == tuple(f"panda_joint{index}" for index in range(1, 8))
    assert len(robot) == 61 and robot.links[0] == "panda_link0" and robot.sphere_links[-1] == "panda_rightfinger"
    np.testing.assert_allclose(robot.limits[3], [-3.0718, -0.0698])
    np.testing.assert_allclose(robot.rest, [0, -1.3, 0, -2.5, 0, 1.5, 0.8])
    fingers = {"panda_finger_joint1": 0.04, "panda_finger_joint2": 0.04}
    for q in np.random.default_rng(0).uniform(robot.limits[:, 0], robot.limits[:, 1], (5, 7)):
        assert_agrees(robot, q, peer(configs() / "franka_panda.urdf", robot, q, "panda_link0", **fingers))
    np.testing.assert_allclose(
        robot.link_poses(np.zeros(7), ["attached_object"]), robot.link_poses(np.zeros(7), ["panda_hand"])
    )


def franka_with_meshes(folder: Path) -> Robot:
    pytest.importorskip("trimesh")
    shutil.copytree(Path(DATA, "meshes", "franka"), folder / "meshes" / "collision")
    return Robot.load(shutil.copy(configs() / "franka_panda.urdf", folder), configs() / "franka.yml")


@with_data
def test_the_links_of_franka_lie_in_their_spheres(tmp_path):
    robot = franka_with_meshes(tmp_path)
    meshes = robot.collision_meshes
    assert len(meshes) == 11
    spheres = dict.fromkeys(robot.sphere_links)
    assert set(spheres) <= set(meshes)
    # The spheres of a link cover its middle.
    poses = dict(zip(robot.links, robot.link_poses(np.full(7, 0.3)), strict=True))
    centres = robot.spheres(np.full(7, 0.3))
    for link in spheres:
        matrix = matrix_of(link, poses[link])
        world = meshes[link].vertices @ matrix[:3, :3].T + matrix[:3, 3]
        own = centres[[name == link for name in robot.sphere_links]]
        assert (own[:, :3] > world.min(0) - 0.01).all() and (own[:, :3] < world.max(0) + 0.01).all(), link


@with_data
def test_ur10e_has_the_spheres_of_its_file(tmp_path):
    path = write_urdf(tmp_path / "ur10e.urdf", UR10E)
    robot = Robot.load(path, configs() / "ur10e.yml")
    assert robot.dof == 6 and robot.sphere_links.count("upper_arm_link") == 7
    # "camera_mount" is not among the links that collide; the tool's sphere is off.
    assert "camera_mount" not in robot.sphere_links and len(robot) == 20
    q = np.array([0.0, -2.2, 1.9, -1.383, -1.57, 0.0])
    assert_agrees(robot, q, peer(path, robot, q, "base_link"))
    spheres = robot.spheres(q)
    assert spheres[-1, 3] == -0.01
    # A link's spheres run from its joint to the next one.
    ends = robot.link_poses(q, ["upper_arm_link", "forearm_link"])[:, :3]
    arm = spheres[1:8, :3]
    np.testing.assert_allclose(np.linalg.norm(arm[0] - ends[0]), 0.18, atol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(arm[-1] - ends[1]), 0.18, atol=1e-3)


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


@with_data
def test_one_robot_is_in_the_way_of_another(client: Client, tmp_path: Path):
    panda = franka_with_meshes(tmp_path)
    q = np.array([0.0, -0.5, 0.0, -2.0, 0.0, 1.5, 0.8])
    links = list(panda.collision_meshes)
    poses = panda.link_poses(q, links)
    world = World([Obstacle(panda.collision_meshes[link], pose=pose) for link, pose in zip(links, poses, strict=True)])
    assert set(world.names) == set(links)
    # The robot's spheres lie on and in its links; those of a robot that stands far away do not.
    own, far = panda.spheres(q), panda.at((2.0, 0, 0, 1, 0, 0, 0)).spheres(q)
    assert (client.query(world, own).distance < own[:, 3]).all()
    assert (client.query(world, far).distance > far[:, 3] + 0.5).all()
