"""`lumigrad query` against a real worker: numbers, tables, JSON, arrays, charts and the exit status."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from support.files.query_files import Query, some_spheres, swing, to_box
from support.files.robot_files import ZOO, write_urdf
from support.workers.worker import LUMIGRAD, WorkerProcess

pytest.importorskip("trimesh", reason="needs the extra mesh")


def test_points_are_measured_and_shown_the_closest_first(query: Query, tmp_path: Path):
    points = some_spheres()[:, :3]
    np.save(tmp_path / "spheres.npy", points)
    done = query("--rows", "7")
    assert done.returncode == 0, done.stderr
    header, *rows, rest, verdict, closest = done.stdout.splitlines()
    assert header.split() == [
        *("sphere", "clearance", "distance", "obstacle"),
        *("closest_x", "closest_y", "closest_z", "normal_x", "normal_y", "normal_z"),
    ]
    expected = to_box(points)
    order = np.argsort(expected)
    assert [int(row.split()[0]) for row in rows] == order[:7].tolist()
    for row, index in zip(rows, order, strict=False):
        cells = row.split()
        assert float(cells[1]) == pytest.approx(expected[index], abs=2e-5) and cells[3] == "box"
        np.testing.assert_allclose(to_box(np.array(cells[4:7], float)), 0, atol=3e-5)
        normal, place = np.array(cells[7:], float), np.array(cells[4:7], float)
        np.testing.assert_allclose(place + expected[index] * normal, points[index], atol=5e-5)
    assert rest == "(53 spheres more, farther away; --rows 0 shows all)"
    inside = int((expected < 0).sum())
    assert verdict == f"60 spheres, 1 obstacle: COLLIDES, {inside} spheres"
    assert closest.startswith(f"closest: sphere {order[0]}, {-expected[order[0]]:.5g}"[:28])
    assert len(query("--rows", "0").stdout.splitlines()) == 63


def test_a_shell_gets_the_same(worker_process: WorkerProcess, query: Query, tmp_path: Path):
    np.save(tmp_path / "spheres.npy", swing())
    command = [LUMIGRAD, "query", "box.obj", "--spheres", "spheres.npy", "--check", "--target", worker_process.target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=tmp_path)
    here = query("--check")
    assert (done.returncode, done.stdout, done.stderr) == (3, here.stdout, "")


def test_a_terminal_shows_collisions_in_red(worker_process: WorkerProcess, query: Query, tmp_path: Path):
    np.save(tmp_path / "spheres.npy", some_spheres(8))
    plain = query().stdout.splitlines()
    master, slave = pty.openpty()
    command = [LUMIGRAD, "query", "box.obj", "--spheres", "spheres.npy", "--target", worker_process.target]
    with os.fdopen(master, "rb", buffering=0) as terminal:
        environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        subprocess.run(command, stdout=slave, timeout=250, cwd=tmp_path, env=environment, check=True)
        os.close(slave)
        parts = []
        # A terminal whose other side is closed gives all that was written, in parts, and then an error.
        with suppress(OSError):
            while part := terminal.read(1 << 16):
                parts.append(part)
    shown = b"".join(parts).decode().splitlines()
    red = [line.startswith("\x1b[31m") and line.endswith("\x1b[0m") for line in shown]
    assert [line.removeprefix("\x1b[31m").removesuffix("\x1b[0m") for line in shown] == plain
    assert red == [False, *(float(line.split()[1]) < 0 for line in plain[1:9]), False, False]
    assert any(red) and not all(red[1:9])


def test_json_and_arrays_tell_all(query: Query, tmp_path: Path):
    spheres = some_spheres()
    spheres[3, 3] = -1.0
    np.save(tmp_path / "spheres.npy", spheres)
    done = query("--json", "-o", "out.npz", "--activation-distance", "0.05")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    clearance = to_box(spheres[:, :3]) - spheres[:, 3]
    clearance[3] = np.nan
    assert [entry["sphere"] for entry in told["records"]] == list(range(60))
    assert told["records"][3]["clearance"] is None and told["records"][3]["obstacle"] is None
    assert told["spheres"] == 60 and told["steps"] is None and told["obstacles"] == ["box"]
    assert told["closest"]["sphere"] == np.nanargmin(clearance) and told["collides"] and not told["free"]
    assert told["colliding_spheres"] == (clearance < 0).sum()
    with np.load(tmp_path / "out.npz") as arrays:
        np.testing.assert_allclose(arrays["clearance"], clearance, atol=1e-5)
        np.testing.assert_array_equal(arrays["spheres"], spheres.astype(np.float32))
        depth = np.nan_to_num(np.maximum(0.05 - clearance, 0))
        cost = np.where(depth <= 0.05, depth**2 / 0.1, depth - 0.025)
        np.testing.assert_allclose(arrays["cost"], cost, atol=1e-5)
        np.testing.assert_allclose(arrays["gradient"][:, 3], np.minimum(depth / 0.05, 1), atol=1e-4)
        assert arrays["obstacle_names"].tolist() == ["box"] and arrays["obstacle"][3] == -1
        for index, entry in enumerate(told["records"]):
            assert entry["cost"] == arrays["cost"][index]
            assert entry["gradient"] == arrays["gradient"][index].tolist()
            if index != 3:
                assert entry["normal"] == arrays["normal"][index].tolist()
                assert entry["clearance"] == pytest.approx(arrays["clearance"][index], abs=1e-6)


def test_a_trajectory_has_a_row_for_each_step_and_tells_when_it_collides(query: Query, tmp_path: Path):
    np.save(tmp_path / "spheres.npy", swing())
    done = query("--rows", "0", "--check")
    assert done.returncode == 3, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:-2]] == [[str(step), "0"] for step in range(21)]
    clearance = np.linspace(1.2, 0.5, 21) - 0.6
    assert lines[-2] == (
        f"2 spheres in 21 time steps, 1 obstacle: COLLIDES, 1 sphere in {(clearance < 0).sum()} time steps"
    )
    assert lines[-1] == "closest: step 20, sphere 0, 0.1 m inside box"
    told = json.loads(query("--json").stdout)
    assert told["steps"] == 21 and told["colliding_steps"] == np.flatnonzero(clearance < 0).tolist()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--check",), 0, "free"),
        (("--check", "--margin", "0.15"), 3, "COLLIDES, 1 sphere closer than 0.15 m in 2 time steps"),
        (("--margin", "0.15"), 0, "COLLIDES, 1 sphere closer than 0.15 m in 2 time steps"),
        (("--check", "--margin", "0.05", "--sweep"), 0, "free, nothing closer than 0.05 m"),
        (("--check", "--max-distance", "0.2"), 0, "free"),
    ],
)
def test_scripts_hear_of_collisions_by_the_exit_status(
    query: Query, tmp_path: Path, arguments: tuple[str, ...], status: int, said: str
):
    np.save(tmp_path / "spheres.npy", swing(wall=0.7))
    done = query(*arguments)
    assert done.returncode == status, done.stderr
    assert done.stdout.splitlines()[-2].endswith(f": {said}")


def test_a_sweep_finds_what_lies_between_time_steps(query: Query, tmp_path: Path):
    path = np.array([[[-2.0, 0, 0, 0.05]], [[2.0, 0.1, 0, 0.05]], [[2.0, 3.0, 0, 0.05]]])
    np.save(tmp_path / "spheres.npy", path)
    assert query("--check").returncode == 0
    swept = query("--check", "--sweep", "--json")
    told = json.loads(swept.stdout)
    assert swept.returncode == 3 and told["colliding_steps"] == [0, 1] and told["uncertain_steps"] == []
    assert not told["records"][2]["collides"]


def test_a_way_that_cannot_be_proven_free_is_not_called_free(query: Query, tmp_path: Path):
    # Points that slide a hair above a face need more samples than there are.
    path = np.array([[[-0.4, 0, 0.2 + 1e-6]], [[0.4, 0, 0.2 + 1e-6]]])
    np.save(tmp_path / "spheres.npy", path)
    done = query("--check", "--sweep")
    assert done.returncode == 3, done.stderr
    assert "nothing collides, but next to 2 time steps the way could not be proven free" in done.stdout


def test_what_is_beyond_is_told_as_such(query: Query, tmp_path: Path):
    np.save(tmp_path / "spheres.npy", np.array([[0, 0, 0.3, 0.05], [0, 0, 5, 0.05]]))
    done = query("--max-distance", "0.25")
    rows = [line.split() for line in done.stdout.splitlines()[1:3]]
    assert rows[0][:4] == ["0", "0.05000", "0.10000", "box"]
    assert rows[1] == ["1", ">0.20000", ">0.25000", *["-"] * 7]
    assert json.loads(query("--max-distance", "0.25", "--json").stdout)["records"][1]["beyond"]


def test_units_poses_and_several_files(query: Query, tmp_path: Path):
    (tmp_path / "spheres.csv").write_text("x,y,z\n0,0,1000\n4000,0,0\n")
    done = query(
        *("box.obj", "--scale", "cm", "--spheres", "spheres.csv", "--spheres-scale", "mm", "--radius", "0.1"),
        *("--pose", "0,0,0.5", "--pose=4,0,-0.1,0.7071067811865476,0,0.7071067811865476,0", "--json"),
    )
    told = json.loads(done.stdout)
    assert len(set(told["obstacles"])) == 2
    first, second = told["records"]
    assert first["distance"] == pytest.approx(0.5 - 0.002, abs=1e-6) and first["obstacle"] == told["obstacles"][0]
    # A quarter turn about y puts the box on end: half of its longest edge reaches up.
    assert second["distance"] == pytest.approx(0.1 - 0.005, abs=1e-6) and second["radius"] == 0.1
    assert second["obstacle"] == told["obstacles"][1]


def test_a_robot_near_a_world(query: Query, tmp_path: Path):
    pytest.importorskip("yourdfpy", reason="needs the extra robot")
    from lumigrad.client.robots import Robot

    urdf = write_urdf(tmp_path / "zoo.urdf", ZOO)
    (tmp_path / "zoo.yml").write_text("hand: [[0, 0, 0.05, 0.06]]\narm: [[0, 0.2, 0, 0.08], [0, 0.3, 0, 0.05]]\n")
    (tmp_path / "world.yml").write_text("cuboid: {post: {dims: [0.1, 0.1, 2], pose: [0.6, 0.4, 0.3, 1, 0, 0, 0]}}\n")
    q = np.random.default_rng(0).uniform(0, 0.4, (9, 4))
    np.save(tmp_path / "q.npy", q)
    robot = ("--spheres", "zoo.yml", "--urdf", "zoo.urdf")
    told = json.loads(query(*robot, "--joints", "q.npy", "--json", mesh="world.yml").stdout)
    spheres = Robot.load(urdf, tmp_path / "zoo.yml").spheres(q)
    expected = to_box(spheres[..., :3], (0.1, 0.1, 2), (0.6, 0.4, 0.3)) - spheres[..., 3]
    found = np.array([entry["clearance"] for entry in told["records"]]).reshape(9, 3)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert [entry["link"] for entry in told["records"][:3]] == ["hand", "arm", "arm"]
    still = query(*robot, "--joints=0.1,-0.2,0.3,0", "--base", "0.1,0,0", mesh="world.yml")
    assert still.returncode == 0
    assert "(hand), " in still.stdout or "(arm), " in still.stdout
    wrong = query(*robot, "--joints=0.1", mesh="world.yml")
    assert wrong.returncode == 2 and "joints: expected values of shape [4] or [T, 4] (rise, turn, wrist, left)" in (
        wrong.stderr
    )


def test_a_chart_shows_the_course(query: Query, tmp_path: Path):
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    image = pytest.importorskip("PIL.Image", reason="needs the extra io")
    reddish = {}
    for name, wall in (("deep", 0.4), ("free", 0.8)):
        np.save(tmp_path / "spheres.npy", swing(wall=wall))
        done = query("--plot", f"{name}.png", "--sweep")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == f"{name}.png"
        pixels = np.asarray(image.open(tmp_path / f"{name}.png").convert("RGB")).astype(int)
        assert pixels.shape[0] > 400 and pixels.shape[1] > 800
        reddish[name] = int((pixels[..., 0] - pixels[..., 1:].max(-1) > 40).sum())
    assert reddish["deep"] > 3 * reddish["free"] > 0
    assert query("--plot", "course.svg").returncode == 0 and "<svg" in (tmp_path / "course.svg").read_text()
    np.save(tmp_path / "spheres.npy", some_spheres())
    refused = query("--plot", "one.png")
    assert refused.returncode == 2
    assert refused.stderr.startswith(
        "lumigrad: error: --plot: expected a trajectory of two or more time steps, got one"
    )
