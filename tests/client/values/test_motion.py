"""Spheres over time, from files of numbers and of robots."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import InvalidArgument
from lumigrad.client.robots.motion import Motion, joint_values
from support.files.robot_files import ZOO, write_urdf

POINTS = np.arange(12.0).reshape(4, 3)
SPHERES = np.arange(16.0).reshape(4, 4)


def test_points_get_a_radius_and_units(tmp_path: Path):
    np.save(tmp_path / "points.npy", POINTS.astype(np.float32))
    motion = Motion.load(tmp_path / "points.npy", radius=0.5, scale=0.001)
    assert motion.spheres.shape == (1, 4, 4) and not motion.is_trajectory and motion.names == ()
    np.testing.assert_allclose(motion.spheres[0, :, :3], POINTS / 1000)
    np.testing.assert_array_equal(motion.spheres[..., 3], 0.5)


@pytest.mark.parametrize("lead", [(), (5,)])
def test_the_same_numbers_in_every_kind_of_file(tmp_path: Path, lead: tuple[int, ...]):
    values = np.broadcast_to(SPHERES, (*lead, 4, 4)).astype(np.int16)
    np.save(tmp_path / "a.npy", values)
    np.savez(tmp_path / "b.npz", spheres=values, other=np.zeros(3))
    np.savez(tmp_path / "c.npz", anything=values)
    for name in ("a.npy", "b.npz", "c.npz"):
        motion = Motion.load(tmp_path / name)
        np.testing.assert_array_equal(motion.spheres, values.reshape(-1, 4, 4))
        assert motion.is_trajectory == bool(lead)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "x,y,z,radius\n" + "\n".join(",".join(map(str, row)) for row in SPHERES)),
        ("b.txt", "# a remark\n" + "\n".join("  ".join(map(str, row)) for row in SPHERES) + "\n\n"),
        ("c.csv", "\n".join("; ".join(map(str, row)) for row in SPHERES)),
        # A spreadsheet's "CSV UTF-8": its byte order mark made the first row look like names.
        ("d.csv", "\ufeff" + "\n".join(",".join(map(str, row)) for row in SPHERES)),
        ("e.csv", "'R';\"X\";Z;Y\n" + "\n".join("; ".join(map(str, row[[3, 0, 2, 1]])) for row in SPHERES)),
        ("i.csv", "R [m],X (m),Z,Y\n" + "\n".join(",".join(map(str, row[[3, 0, 2, 1]])) for row in SPHERES)),
        ("q.csv", "\n".join(",".join(f'"{value}"' for value in row) for row in SPHERES)),
        ("j.csv", "r_m,X_M,z,y_m\n" + "\n".join(",".join(map(str, row[[3, 0, 2, 1]])) for row in SPHERES)),
        ("k.txt", "# r [m] x [m] y z\n" + "\n".join(" ".join(map(str, row[[3, 0, 1, 2]])) for row in SPHERES)),
        # NumPy's savetxt writes names as a comment.
        ("g.txt", "# made today\n# r x y z\n" + "\n".join(" ".join(map(str, row[[3, 0, 1, 2]])) for row in SPHERES)),
        ("h.txt", "# spheres along x\n" + "\n".join(" ".join(map(str, row)) for row in SPHERES)),
        ("l.txt", "# points along x-axis y-axis\n" + "\n".join(" ".join(map(str, row)) for row in SPHERES)),
        ("m.txt", "# x and y and\n" + "\n".join(" ".join(map(str, row)) for row in SPHERES)),
        ("f.txt", "a title, or names that say nothing\n" + "\n".join(",".join(map(str, row)) + "," for row in SPHERES)),
    ],
)
def test_text_is_read_with_or_without_names(tmp_path: Path, name: str, text: str):
    (tmp_path / name).write_text(text, "utf-8")
    np.testing.assert_array_equal(Motion.load(tmp_path / name).spheres, SPHERES[None])


@pytest.mark.parametrize(
    "names", ["x_mm,y_mm,z_mm,r_mm", "x [mm];y [mm];z [mm];r [mm]", "# x (mm) y (mm) z (mm) r (mm)"]
)
def test_other_units_need_a_scale(tmp_path: Path, names: str):
    rows = "\n".join(",".join(map(str, 1000 * row)) for row in SPHERES)
    (tmp_path / "a.csv").write_text(f"{names}\n{rows}")
    with pytest.raises(InvalidArgument, match=r"expected numbers: metres and radians, .* got the column x in mm$"):
        Motion.load(tmp_path / "a.csv")
    np.testing.assert_allclose(Motion.load(tmp_path / "a.csv", scale=1e-3).spheres, SPHERES[None])


@pytest.mark.parametrize(
    ("names", "named"),
    [
        ("z_world,y_world,x_world,radius_world", "z_world"),
        ("x_cam y_cam z_cam size", "x_cam"),
        ("pos.z;pos.y;pos.x;size", "pos.z"),
        ("size,center x,center y,center z", "center x"),
        ("# size z_world y_world x_world", "z_world"),
    ],
)
def test_names_that_only_contain_those_of_columns_are_refused(tmp_path: Path, names: str, named: str):
    """These names used to be ignored, and the columns taken in the order of the file."""
    (tmp_path / "a.csv").write_text(names + "\n" + "\n".join(" ".join(map(str, row)) for row in SPHERES))
    with pytest.raises(InvalidArgument, match=rf"columns by the names x, y, z, r, radius, .*; got {named!r}$"):
        Motion.load(tmp_path / "a.csv")


def test_a_robot_moves_along_joint_values(tmp_path: Path):
    pytest.importorskip("yourdfpy", reason="needs the extra robot")
    from lumigrad.client.robots import Robot

    urdf = write_urdf(tmp_path / "zoo.urdf", ZOO)
    (tmp_path / "zoo.yml").write_text("hand: [[0, 0, 0.05, 0.06]]\nflag: [[0, 0, 0.1, 0.05], [0, 0, 0.2, -1]]\n")
    robot = Robot.load(urdf, tmp_path / "zoo.yml")
    q = np.random.default_rng(0).uniform(0, 0.4, (6, 4))
    np.save(tmp_path / "q.npy", q)
    moving = Motion.load(tmp_path / "zoo.yml", urdf=urdf, joints=tmp_path / "q.npy")
    assert moving.names == ("hand", "flag", "flag") and moving.is_trajectory
    np.testing.assert_array_equal(moving.spheres, robot.spheres(q))
    order = [2, 0, 3, 1]
    rows = [[robot.joint_names[k] for k in order], *q[:, order].tolist()]
    (tmp_path / "q.csv").write_text("\n".join(",".join(map(str, row)) for row in rows))
    named = Motion.load(tmp_path / "zoo.yml", urdf=urdf, joints=tmp_path / "q.csv")
    np.testing.assert_array_equal(named.spheres, moving.spheres)
    (tmp_path / "degrees.csv").write_text("rise,turn_deg,lift,swing\n0,90,0,0")
    with pytest.raises(InvalidArgument, match="got the column turn in deg"):
        Motion.load(tmp_path / "zoo.yml", urdf=urdf, joints=tmp_path / "degrees.csv")
    (tmp_path / "longer.csv").write_text("rise_pos,turn_pos,lift_pos,swing_pos\n0,90,0,0")
    with pytest.raises(InvalidArgument, match="got 'rise_pos'"):
        Motion.load(tmp_path / "zoo.yml", urdf=urdf, joints=tmp_path / "longer.csv")
    still = Motion.load(tmp_path / "zoo.yml", urdf=urdf, joints=q[2], base=(1, 2, 3, 1, 0, 0, 0))
    np.testing.assert_allclose(still.spheres[0, :, :3], robot.spheres(q[2])[:, :3] + [1, 2, 3])
    resting = Motion.load(tmp_path / "zoo.yml", urdf=urdf)
    np.testing.assert_array_equal(resting.spheres[0], robot.spheres(robot.rest))
    with pytest.raises(InvalidArgument, match=r"joints: expected values of shape \[4\] or \[T, 4\] \(rise, turn, "):
        Motion.load(tmp_path / "zoo.yml", urdf=urdf, joints=[0.0, 1.0])


def test_degrees_are_told_from_the_limits_of_joints(tmp_path: Path) -> None:
    pytest.importorskip("yourdfpy", reason="needs the extra robot")
    urdf = write_urdf(tmp_path / "zoo.urdf", ZOO)
    (tmp_path / "zoo.yml").write_text("hand: [[0, 0, 0.05, 0.06]]\n")
    from lumigrad.client.robots import Robot

    robot = Robot.load(urdf, tmp_path / "zoo.yml")
    joint = int(np.flatnonzero(np.isfinite(robot.limits[:, 1]))[0])
    q = np.tile(robot.rest, (3, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        joint_values(robot, q)
        joint_values(robot)
    q[2, joint] = 90.0
    text = f"^joints: {robot.joint_names[joint]} is at 90 in step 2, beyond its limits of .*; joint values are radians"
    with pytest.warns(UserWarning, match=text) as told:
        joint_values(robot, q)
    assert told[0].filename == __file__


@pytest.mark.parametrize("limit", ["", 'lower="0" upper="0"', 'lower="0" upper="-1"', 'lower="1"'])
@pytest.mark.filterwarnings("error")
def test_limits_without_a_range_are_none(tmp_path: Path, limit: str) -> None:
    pytest.importorskip("yourdfpy", reason="needs the extra robot")
    parts = '<parent link="base"/><child link="arm"/><axis xyz="0 0 1"/>'
    joint = f'<joint name="turn" type="revolute">{parts}<limit {limit} effort="1" velocity="1"/></joint>'
    (tmp_path / "arm.urdf").write_text(f'<robot name="arm"><link name="base"/><link name="arm"/>{joint}</robot>')
    (tmp_path / "arm.yml").write_text("arm: [[0, 0, 0, 0.1]]\n")
    from lumigrad.client.robots import Robot

    robot = Robot.load(tmp_path / "arm.urdf", tmp_path / "arm.yml")
    assert joint_values(robot, [2.5]).tolist() == [2.5]


def test_a_robot_of_macros_is_not_read_in_part(tmp_path: Path) -> None:
    pytest.importorskip("yourdfpy", reason="needs the extra robot")
    from lumigrad.client.robots import Robot

    space = 'xmlns:xacro="http://www.ros.org/wiki/xacro"'
    (tmp_path / "arm.urdf").write_text(f'<robot name="arm" {space}><link name="base"/><xacro:arm prefix="a"/></robot>')
    with pytest.raises(InvalidArgument, match="got xacro's 'arm'; expand xacro files first"):
        Robot.load(tmp_path / "arm.urdf", {})


def written(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    else:
        np.save(path, content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.obj", b"", r"spheres: expected a file that ends in one of .yml, .npy, .npz, .csv, .txt, got .*a.obj"),
        ("a.npy", np.zeros((4, 2)), r"expected points \[N, 3\] or spheres \[N, 4\], or a trajectory .*, got \[4, 2\]"),
        ("a.npy", np.zeros((4, 3), complex), r"expected real numbers, got dtype complex128"),
        ("a.npy", np.array([[0, 0, 0], [0, np.nan, 0]]), r"expected finite numbers, got .* for sphere 1, step 0"),
        ("a.npy", b"not an array", r"a.npy: expected numbers: "),
        ("a.npz", b"PK\x03\x04 damaged", r"a.npz: expected numbers: "),
        ("a.npz", {"a": np.zeros(3), "b": np.zeros(3)}, r"an array named 'spheres', or a single one; it has a, b"),
        ("a.csv", b"O.1,2,3\n4,5,6\n", r"a.csv: expected numbers: could not convert string to float: 'O.1'"),
        ("a.csv", b'"1,5","2,5"\n', r"a.csv: expected numbers"),
        ("a.csv", b"NA,NA,NA\n1,2,3\n", r"a.csv: expected numbers: could not convert string to float: 'NA'"),
        ("a.csv", b"1,2,3\n4,5\n", r"a.csv: expected numbers: lines of equal length, got 2 to 3 in a line"),
        ("a.txt", b"1 2 3\n4 five 6\n", r"a.txt: expected numbers: could not convert"),
        # If names were ignored, an index would become a coordinate, and an intensity a radius.
        ("a.csv", b",x,y,z\n0,1,2,3\n1,4,5,6\n", r"the columns x, y, z, r, radius alone, got '', 'x', 'y', 'z'"),
        ("a.csv", b"# index,x,y,z\n0,1,2,3\n", r"the columns x, y, z, r, radius alone, got 'index', 'x', 'y', 'z'"),
        ("a.csv", b"x,y,z,intensity\n1,2,3,4\n", r"the columns x, y, z, r, radius alone, got .*'intensity'"),
        ("a.csv", b"x,y,z\n1,2,3,4\n", r"a name for each column, got x, y, z for 4 columns"),
        ("a.csv", b"1,2,,3,4\n5,6,,7,8\n", r"could not convert string to float: ''"),
        ("a.csv", b"0,5;1,5\n", r"numbers with decimal points and one kind of separator, got '0,5;1,5'"),
        ("a.txt", b"0,5 1,5\n", r"numbers with decimal points and one kind of separator, got '0,5 1,5'"),
    ],
)
def test_what_holds_no_spheres_is_refused(tmp_path: Path, name: str, content: object, said: str):
    with pytest.raises(InvalidArgument, match=said) as refused:
        Motion.load(written(tmp_path, name, content))
    assert str(refused.value).startswith("spheres: ") and "\n" not in str(refused.value)


def test_robots_and_numbers_are_not_mixed_up(tmp_path: Path):
    path = written(tmp_path, "a.npy", POINTS)
    with pytest.raises(InvalidArgument, match=r"urdf: expected with spheres of a robot \(.yml\), not with"):
        Motion.load(path, urdf="robot.urdf")
    with pytest.raises(InvalidArgument, match=r"joints: expected with spheres of a robot"):
        Motion.load(path, joints=[1.0])
    with pytest.raises(InvalidArgument, match=r"urdf: expected the robot of .*robot.yml as a URDF file, got none"):
        Motion.load(tmp_path / "robot.yml")
