"""`lumigrad query` for what cannot be done: one line that says so, and the exit status."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.files.query_files import Query, some_spheres

pytest.importorskip("trimesh", reason="needs the extra mesh")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--sweep",), "--sweep: expected a trajectory of two or more time steps, got one; leave it out"),
        (("--max-distance", "0.01"), "--max-distance: expected at least the largest radius and the margin, 0.09"),
        (("--pose", "0,0,0", "--pose", "0,0,1"), "--pose: expected one, or one for each of 1, got 2"),
        (("--urdf", "a.urdf"), "--urdf: expected with spheres of a robot (.yml), not with spheres.npy"),
        (("--base", "1,0,0"), "--base: expected with spheres of a robot (.yml), not with spheres.npy"),
        (("--radius", "0.1"), "--radius: expected with points; spheres.npy has spheres with radii, leave it out"),
        (("--spheres", "robot.yml", "--radius", "0"), "--radius: expected with points or spheres, not with a robot's"),
        (("--spheres", "robot.yml", "--spheres-scale", "mm"), "--spheres-scale: expected with points or spheres, not"),
        (("--spheres", "absent.npy"), "no such file: absent.npy"),
        (("--spheres", "box.obj"), "--spheres: expected a file that ends in one of .yml, .npy, "),
        (("-o", "absent/a.npz"), "no such directory: absent"),
    ],
)
def test_what_cannot_be_done_is_one_line(query: Query, tmp_path: Path, arguments: tuple[str, ...], said: str):
    np.save(tmp_path / "spheres.npy", some_spheres())
    done = query(*arguments)
    assert done.returncode == (2 if said.startswith("--") else 1)
    assert done.stderr.startswith(f"lumigrad: error: {said}") and done.stderr.count("\n") == 1, done.stderr


def test_worlds_in_metres_have_no_other_unit(query: Query, tmp_path: Path):
    np.save(tmp_path / "spheres.npy", some_spheres())
    (tmp_path / "world.yml").write_text("cuboid:\n  table:\n    dims: [1, 1, 1]\n    pose: [0, 0, 0, 1, 0, 0, 0]\n")
    done = query("--scale", "mm", mesh="world.yml")
    said = "lumigrad: error: --scale: expected with mesh files; lengths in YAML worlds are metres, leave it out\n"
    assert (done.returncode, done.stderr) == (2, said)
    both = query("box.obj", "--spheres", "spheres.npy", "--scale", "mm", mesh="world.yml")
    assert both.returncode == 0, both.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--pose", "1,2"),
        ("--margin=-1",),
        ("-o", "out.csv"),
    ],
)
def test_wrong_usage_is_status_2(query: Query, arguments: tuple[str, ...]):
    done = query(*arguments)
    assert done.returncode == 2
    assert done.stderr.endswith("\nsee `lumigrad query --help`\n")
