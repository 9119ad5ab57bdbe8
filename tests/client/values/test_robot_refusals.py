"""Errors name what is wrong with a robot's files and arguments."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.client import InvalidArgument
from support.files.robot_files import ZOO, ZOO_SPHERES, JointLine, write_urdf

pytest.importorskip("yourdfpy", reason="needs the extra robot")

from lumigrad.client.robots import Robot
from lumigrad.client.robots.sphere_file import SphereFile

BOX = '<geometry><box size="1 1 1"/></geometry>'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_urdf(tmp_path / "zoo.urdf", ZOO)


def changed(joint_name: str, /, **values: Any) -> list[JointLine]:
    return [replace(joint, **values) if joint.name == joint_name else joint for joint in ZOO]


@pytest.mark.parametrize(
    ("joints", "message"),
    [
        (changed("turn", kind="planar"), "joint 'turn': expected the type fixed, revolute, continuous or prismatic"),
        (changed("turn", axis="0 0 0"), "joint 'turn': expected an axis of three numbers that are not all 0"),
        (changed("turn", xyz="a b c"), "expected a URDF: ValueError"),
        (
            changed("turn", limits=(float("nan"), 1.0), kind="revolute"),
            "joint 'turn': expected limits that are numbers",
        ),
        (
            changed("right", inner='<mimic joint="left" multiplier="nan"/>'),
            "joint 'right': expected a mimic with a finite multiplier and offset, got (nan, 0.0)",
        ),
        (changed("turn", name="rise"), "expected joints with unique names, 'rise' occurs more than once"),
        ([*ZOO, JointLine("knot", "fixed", "flag", "hand")], "link 'hand' of joint 'knot' has another parent"),
        (
            changed("right", inner='<mimic joint="none"/>'),
            "expected joint 'right' to mimic a movable joint",
        ),
        (changed("right", inner='<mimic joint="right"/>'), "'right' mimics itself"),
        (changed("mount", parent="flag"), "base_link: expected one link without a parent joint"),
    ],
)
def test_damaged_urdf_files(tmp_path, joints, message):
    path = write_urdf(tmp_path / "wrong.urdf", joints)
    with pytest.raises(InvalidArgument) as raised:
        Robot.load(path, ZOO_SPHERES)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('xyz="0 0.4 0"', 'xyz="0.4"', "xyz of <origin> in joint 'wrist': expected three numbers, got 0.4"),
        ('xyz="0 0.4 0"', 'xyz="0 0.4 0 1"', "xyz of <origin> in joint 'wrist': expected three numbers, got 0 0.4 0 1"),
        ('rpy="1.2 0.1 -0.7"', 'rpy="1.2"', "rpy of <origin> in joint 'wrist': expected three numbers, got 1.2"),
        (
            'rpy="1.2 0.1 -0.7"',
            'quat_xyzw="0 0 0 1"',
            "<origin> in joint 'wrist': expected the attributes xyz and rpy alone, got quat_xyzw",
        ),
        ("0 0.4 0", '0 0.4 0"/><origin xyz="0 0 0', "joint 'wrist': expected one <origin>, got 2"),
        (BOX, f'<origin xyz="1"/>{BOX}', "xyz of <origin> in collision of 'hand': expected three numbers, got 1"),
        (BOX, BOX * 2, "collision of 'hand': expected one <geometry>, got 2"),
        (
            BOX,
            '<geometry><box size="1 1 1"/><sphere radius="1"/></geometry>',
            "collision of 'hand': expected one shape in <geometry>, got box, sphere",
        ),
    ],
)
def test_what_other_readers_would_leave_out_is_refused(tmp_path, old, new, message):
    path = write_urdf(tmp_path / "odd.urdf", ZOO, {"hand": f"<collision>{BOX}</collision>"})
    text = path.read_text()
    assert text.count(old) == 1
    Robot.load(path, ZOO_SPHERES)
    path.write_text(text.replace(old, new))
    with pytest.raises(InvalidArgument, match=r"^urdf: .*odd\.urdf: ") as raised:
        Robot.load(path, ZOO_SPHERES)
    assert message in str(raised.value)


def test_angles_of_axes_and_elements_of_extensions_change_nothing(tmp_path):
    path = write_urdf(tmp_path / "odd.urdf", ZOO)
    text, q = path.read_text(), np.linspace(0.1, 0.4, 4)
    expected = Robot.load(path, ZOO_SPHERES).link_poses(q)
    extension = '<gazebo><joint name="a"><limit/><limit/><axis frame="b"/></joint><collision>1</collision></gazebo>'
    assert text.count("<axis ") > 1

    def poses(attribute):
        path.write_text(text.replace("<axis ", f"<axis {attribute} ").replace("</robot>", f"{extension}</robot>"))
        return Robot.load(path, ZOO_SPHERES).link_poses(q)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = poses('rpy="0 0 0"')
    with pytest.warns(UserWarning, match=r"rpy of <axis> in joint '\w+': expected none or zeros, got 0 0 1\.5"):
        turned = poses('rpy="0 0 1.5"')
    assert np.array_equal(expected, found) and np.array_equal(expected, turned)


def test_limits_in_degrees_are_warned_of(tmp_path):
    path = write_urdf(tmp_path / "degrees.urdf", changed("wrist", limits=(-170, 170)))
    with pytest.warns(UserWarning, match=r"degrees\.urdf: limits of 'wrist': expected radians, got -170 to 170"):
        Robot.load(path, ZOO_SPHERES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Robot.load(write_urdf(tmp_path / "turns.urdf", changed("wrist", limits=(-12.6, 1e9))), ZOO_SPHERES)


def test_files_that_are_no_urdf(tmp_path, path):
    for content, message in (
        (path.read_bytes()[:-200], "expected XML"),
        (b"<robot/>", "expected a URDF"),
        (b'<robot name="a"/>', "expected links, got none"),
        (b'<sdf version="1.6"><model name="a"/></sdf>', "expected a URDF, whose root is <robot>, got <sdf>"),
        (
            path.read_bytes().replace(b'<link name="arm"></link>', b""),
            "a link of the file as parent and child, got 'arm'",
        ),
    ):
        (tmp_path / "wrong.urdf").write_bytes(content)
        with pytest.raises(InvalidArgument, match=r"^urdf: ") as raised:
            Robot.load(tmp_path / "wrong.urdf", ZOO_SPHERES)
        assert message in str(raised.value) and "wrong.urdf" in str(raised.value)
    with pytest.raises(FileNotFoundError):
        Robot.load(tmp_path / "none.urdf", ZOO_SPHERES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"joints": ["rise"]},
            "joints: expected every movable joint in joints or in locked, but 'turn' is in neither",
        ),
        (
            {"joints": ["rise", "roll"]},
            "joints: expected movable joints (rise, turn, wrist, left, right), got 'roll'",
        ),
        ({"joints": ["rise", "rise"]}, "joints: expected unique names, got rise, rise"),
        ({"joints": ["right"]}, "joints: expected joints with a value of their own, but 'right' mimics 'left'"),
        ({"locked": {"mount": 0}}, "locked: expected movable joints"),
        ({"locked": {"wrist": "0.1"}}, "locked['wrist']: expected a number, got '0.1'"),
        ({"locked": {"wrist": float("nan")}}, "locked['wrist']: expected a finite number, got nan"),
        ({"base_link": "moon"}, "base_link: expected a link of"),
        ({"base_link": "hand"}, "spheres: expected links below the base (hand, left_finger, right_finger)"),
        ({"base": (0, 0, 0, 0, 0, 0, 0)}, "base: expected "),
    ],
)
def test_wrong_arguments(path, options, message):
    with pytest.raises(InvalidArgument) as raised:
        Robot.load(path, ZOO_SPHERES, **options)
    assert message in str(raised.value)


def test_locked_joints_beyond_their_limits_are_warned_of(path):
    with pytest.warns(UserWarning, match=r"^locked: wrist is at -90, beyond its limits of -1.5 to 0.5; joint values"):
        Robot.load(path, ZOO_SPHERES, locked={"wrist": -90})


def test_angles_in_degrees_are_warned_of(tmp_path):
    path = write_urdf(tmp_path / "degrees.urdf", changed("wrist", rpy="0 0 -90"))
    with pytest.warns(UserWarning, match=r"degrees.urdf: rpy .* in joint of 'wrist': .* got beyond a turn: 0 0 -90;"):
        Robot.load(path, ZOO_SPHERES)
    # A full turn that is rounded up is not taken for degrees.
    path = write_urdf(tmp_path / "turns.urdf", changed("wrist", rpy="-6.2832 0 6.284"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Robot.load(path, ZOO_SPHERES)
    path = write_urdf(tmp_path / "degrees.urdf", ZOO, {"arm": f'<collision><origin rpy="180 0 0"/>{BOX}</collision>'})
    with pytest.warns(UserWarning, match=r"degrees.urdf: rpy .* in collision of 'arm': .* got beyond a turn: 180 0 0;"):
        Robot.load(path, ZOO_SPHERES)


@pytest.mark.parametrize(
    ("spheres", "message"),
    [
        ({}, "expected at least one sphere"),
        ({"moon": [[0, 0, 0, 1]]}, "got 'moon'"),
        ({"arm": [[0, 0, 1]]}, "spheres of link 'arm': expected a list of {center: [x, y, z], radius: r}"),
        ({"arm": np.full((2, 4), np.nan)}, "spheres of link 'arm': expected a list"),
        ({"collision_spheres": 3}, "collision_spheres: expected spheres by link, or the name of a file, got 3"),
        ({"collision_spheres": {}, "lock_joints": {"left": "open"}}, "lock_joints.left: expected a finite number"),
        (
            {"collision_spheres": ZOO_SPHERES, "collision_link_names": ["arm", "hn"]},
            "collision_link_names: expected links with collision_spheres (flag, base, hand, right_finger, arm), got hn",
        ),
        (
            {"collision_spheres": {"arm": [[0, 0, 0, 0.1]]}, "collision_sphere_buffer": {"amr": 0.01}},
            "collision_sphere_buffer: expected links with collision_spheres (arm), got amr",
        ),
        ({"collision_spheres": {}, "extra_links": {"tip": {}}}, "extra_links.tip: expected a mapping with parent"),
        (
            {"collision_spheres": {}, "extra_links": {"tip": {"parent_link_name": "arm", "fixed_transform": [1]}}},
            "extra_links.tip.fixed_transform: expected x y z qw qx qy qz, got [1]",
        ),
        (
            {"collision_spheres": {}, "extra_links": {"tip": {"parent_link_name": "arm", "joint_type": "REVOLUTE"}}},
            "extra_links.tip.joint_type: expected FIXED",
        ),
    ],
)
def test_wrong_spheres(path, spheres, message):
    with pytest.raises(InvalidArgument, match=r"^spheres: ") as raised:
        Robot.load(path, spheres)
    assert message in str(raised.value)


@pytest.mark.parametrize("text", ["radius: 0,1", "radius: 0.1, offset: [0, 0, 1]"])
def test_what_a_sphere_says_besides_is_not_ignored(tmp_path, path, text):
    (tmp_path / "spheres.yml").write_text(f"arm:\n- {{center: [0, 0, 0], {text}}}\n")
    with pytest.raises(InvalidArgument, match=r"spheres\.yml: spheres of link 'arm': expected only center and radius"):
        Robot.load(path, tmp_path / "spheres.yml")


def test_numbers_of_yaml_are_decimal(tmp_path, path):
    """PyYAML reads 1e-2 as text, 010 as 8, 1:30 as 90 and `on` as true, as YAML 1.1 says."""
    text = "collision_spheres:\n  arm:\n  - {center: [1e-2, 010, +.5], radius: 1e-1}\ncollision_sphere_buffer: 1e-2\n"
    (tmp_path / "spheres.yml").write_text(text)
    np.testing.assert_allclose(SphereFile.of(tmp_path / "spheres.yml").spheres["arm"], [[0.01, 10, 0.5, 0.11]])
    for wrong in ("1:30", "on", "2026-11-29"):
        (tmp_path / "spheres.yml").write_text(f"arm:\n- {{center: [0, 0, 0], radius: {wrong}}}\n")
        with pytest.raises(InvalidArgument, match=r"spheres\.yml: spheres of link 'arm': expected a list of"):
            Robot.load(path, tmp_path / "spheres.yml")
    (tmp_path / "spheres.yml").write_text("on:\n- {center: [0, 0, 0], radius: 0.1}\n")
    assert list(SphereFile.of(tmp_path / "spheres.yml").spheres) == ["on"]


def test_wrong_sphere_files(tmp_path, path):
    for content, message in ((b"a: [1", "expected a YAML file"), (b"3", "expected spheres by link, got 3")):
        (tmp_path / "wrong.yml").write_bytes(content)
        with pytest.raises(InvalidArgument, match=r"^spheres: .*wrong.yml: ") as raised:
            Robot.load(path, tmp_path / "wrong.yml")
        assert message in str(raised.value)


@pytest.mark.parametrize("attached", ["{cup: 4}", "[cup]"])
def test_what_curobo_says_of_a_robot_is_followed(tmp_path, path, attached):
    (tmp_path / "spheres.yml").write_text(
        "collision_spheres: {arm: [{center: [0, 0.2, 0], radius: 0.1}, {center: [0, 0, 0], radius: -1}], flag: [], "
        "tip: [{center: [0, 0, 0], radius: 0.1}], hand: [{center: [0, 0, 0], radius: 0.1}]}"
    )
    (tmp_path / "robot.yml").write_text(
        "robot_cfg: {kinematics: {collision_spheres: spheres.yml, collision_link_names: [tip, arm, flag, cup],\n"
        "  extra_collision_spheres: " + attached + ",\n"
        "  collision_sphere_buffer: {arm: 0.01}, base_link: base, lock_joints: {left: 0.02},\n"
        "  cspace: {joint_names: [left, wrist, turn, rise]},\n"
        "  extra_links: {tip: {parent_link_name: hand, fixed_transform: [0, 0, 0.5, 1, 0, 0, 0], joint_type: FIXED}}}}"
    )
    robot = Robot.load(path, tmp_path / "robot.yml")
    assert robot.joint_names == ("wrist", "turn", "rise") and robot.links[0] == "base"
    assert robot.sphere_links == ("tip", "arm", "arm")
    np.testing.assert_allclose(robot.spheres(np.zeros(3))[:, 3], [0.1, 0.11, -1])
    tip, hand = robot.link_poses(np.zeros(3), ["tip", "hand"])
    np.testing.assert_allclose(np.linalg.norm(tip[:3] - hand[:3]), 0.5)
    assert SphereFile.of(tmp_path / "robot.yml").locked == {"left": 0.02}


def test_wrong_joint_values(path):
    robot = Robot.load(path, ZOO_SPHERES)
    for q in (np.zeros(3), np.zeros((2, 5)), np.float64(1), torch.zeros(2, 3)):
        with pytest.raises(InvalidArgument, match=r"q: expected shape \[.., 4\] \(rise, turn, wrist, left\), got "):
            robot.spheres(q)
    with pytest.raises(InvalidArgument, match=r"q: expected real numbers"):
        robot.spheres(torch.zeros(4, dtype=torch.complex64))
    with pytest.raises(InvalidArgument, match=r"q: expected numbers"):
        robot.spheres(["a", "b", "c", "d"])
    with pytest.raises(InvalidArgument, match=r"links: expected links of the robot .*, got 'moon'"):
        robot.link_poses(np.zeros(4), ["moon"])


def test_meshes_that_are_not_there(tmp_path):
    inner = '<collision><geometry><mesh filename="package://none/none.stl"/></geometry></collision>'
    robot = Robot.load(write_urdf(tmp_path / "zoo.urdf", ZOO, {"arm": inner}), ZOO_SPHERES)
    with pytest.raises(InvalidArgument, match=r"urdf: .*zoo.urdf: expected 'package://none/none.stl' in its folder"):
        _ = robot.collision_meshes


@pytest.mark.parametrize(
    ("geometry", "message"),
    [
        ('<box size="1 2"/>', "link 'a': expected a <box> with three sizes > 0, got 1.0 2.0"),
        ('<sphere radius="-0.1"/>', "link 'a': expected a <sphere> with a radius > 0, got -0.1"),
        (
            '<cylinder radius="0" length="1"/>',
            "link 'a': expected a <cylinder> with a radius and a length > 0, got 0.0",
        ),
        ('<mesh filename="https://parts.org/a.stl"/>', "expected a file, or an address with file://, package://"),
        ("<mesh/>", "expected a filename for each <mesh>, got none"),
        ('<mesh filename="part.obj" scale="1 1"/>', "part.obj: scale: expected one factor or three"),
    ],
)
def test_sizes_of_shapes_that_are_none(tmp_path, geometry, message):
    (tmp_path / "part.obj").write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
    path = tmp_path / "shape.urdf"
    path.write_text(
        f'<robot name="r"><link name="a"><collision><geometry>{geometry}</geometry></collision></link></robot>'
    )
    with pytest.raises(InvalidArgument) as raised:
        _ = Robot.load(path, {"a": [[0, 0, 0, 0.1]]}).collision_meshes
    assert str(raised.value).startswith(f"urdf: {path}: {message}")


def test_spheres_of_a_link_that_are_given_twice_are_refused(tmp_path, path):
    file = tmp_path / "twice.yml"
    file.write_text("collision_spheres:\n  hand: [{center: [0, 0, 0], radius: 0.1}]\n  hand: []\n")
    with pytest.raises(InvalidArgument, match=r"got the key 'hand' twice in one mapping"):
        Robot.load(path, file)
