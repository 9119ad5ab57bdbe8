"""Mistakes at the command line: named by the option that was written, with the exit code of the kind of mistake."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lumigrad.client import Camera, InvalidArgument
from support.workers.forks import lumigrad
from support.workers.worker import WorkerProcess

Render = Callable[..., subprocess.CompletedProcess[str]]
USAGE, FAILED = 2, 1

WRONG = {
    "look-at": (("--camera", "look-at 0,0,0 0,0,0"), "--camera: target: expected a direction"),
    "look-at along up": (("--camera", "look-at 0,0,0 0,0,1", "--up", "0,0,0"), "--up: expected one of"),
    "elevation": (("--camera", "orbit 30,95"), "--camera: elevation: expected"),
    "distance": (("--camera", "orbit 30,20,-3"), "--camera: distance: expected"),
    "fov": (("--fov", "200"), "--fov: expected"),
    "width": (("--size", "99999999999x3"), "--size: expected a whole number of pixels from 1 to 2147483647"),
    "too wide for a worker": (("--size", "40000x3"), "--size: "),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_camera_is_named_by_its_option(render: Render, case: str) -> None:
    options, text = WRONG[case]
    done = render(*options, "-o", "x.png")
    assert done.returncode == USAGE, done.stderr
    assert done.stderr.startswith(f"lumigrad: error: {text}"), done.stderr


LOOK = {"eye": [0, -1, 4], "target": [0, 0, 0]}
FILM = {"fx": 50, "fy": 50, "cx": 32, "cy": 24, "rotation": np.eye(3).tolist(), "translation": [0, 0, 4]}
DEFINED = {
    "a size": ({**LOOK, "width": 64, "height": 48}, ("--size", "32x24")),
    "an angle": ({**LOOK, "fov_degrees": 50}, ("--fov", "20")),
    "an axis": ({**LOOK, "up": [0, -1, 0]}, ("--up", "z")),
    "focal lengths": (FILM, ("--fov", "20")),
    "a rotation": (FILM, ("--up", "z")),
    "a film": ({"parameters": [0, 0, -5, 0, 0, 0, 1, 1]}, ("--fov", "20")),
}


@pytest.mark.parametrize("case", DEFINED)
def test_what_a_camera_file_defines_is_not_an_option(render: Render, scene: Path, case: str) -> None:
    camera, (option, value) = DEFINED[case]
    scene.with_name("camera.json").write_text(json.dumps(camera))
    done = render("--camera", "camera.json", option, value, "-o", "x.png")
    said = f"lumigrad: error: {option}: is defined by the camera in camera.json; leave it out\n"
    assert (done.returncode, done.stderr) == (USAGE, said)


def test_what_a_camera_file_leaves_open_is_an_option(render: Render, scene: Path) -> None:
    scene.with_name("camera.json").write_text(json.dumps(LOOK))
    options = ("--size", "32x24", "--fov", "20", "--up", "-y", "-o", "x.npy")
    pictures = []
    for aim in ("camera.json", "look-at 0,-1,4 0,0,0"):
        assert render("--camera", aim, *options).returncode == 0
        pictures.append(np.load(scene.with_name("x.npy")))
    np.testing.assert_array_equal(*pictures)


IGNORED = {
    "--base": (("scene.ply", "--base", "1,0,0"), "expected with --urdf and --spheres of a robot; leave it out"),
    "--pose": (("scene.ply", "--pose", "1,0,0"), "expected with --world of the obstacles; leave it out"),
    "--scale": (("scene.ply", "--scale", "mm"), "expected with --world of the obstacles; leave it out"),
    "--fov": (
        ("scene.ply", "--camera", "camera.json", "--fov", "20"),
        "is defined by the camera in camera.json; leave it out",
    ),
}


@pytest.mark.parametrize("option", IGNORED)
def test_options_that_do_not_apply_to_a_page_are_named(worker_process: WorkerProcess, scene: Path, option: str) -> None:
    pytest.importorskip("viser", reason="no viser: pip install 'lumigrad[viewer]'")
    scene.with_name("camera.json").write_text(json.dumps(FILM))
    arguments, said = IGNORED[option]
    done = lumigrad("view", *arguments, "--target", worker_process.target, folder=scene.parent)
    assert (done.returncode, done.stderr) == (USAGE, f"lumigrad: error: {option}: {said}\n")


@pytest.mark.parametrize("size", [1 << 31, 2**33, 1e300, float("inf"), float("nan"), 0, -1, 2.5])
def test_a_size_that_no_message_holds_is_refused(size: float) -> None:
    for sizes in ({"width": size, "height": 3}, {"width": 3, "height": size}):
        with pytest.raises(InvalidArgument, match=r"^(width|height): expected a whole number of pixels from 1 to"):
            Camera.look_at((0, 0, 4), (0, 0, 0), **sizes)


MISSING = {
    "render": ("render", "{}", "-o", "x.png"),
    "convert": ("convert", "{}", "x.ply"),
    "info": ("info", "{}"),
    "view": ("view", "{}"),
    "bench": ("bench", "{}"),
}


@pytest.mark.parametrize("name", ["nothere.ply", "sample:nothere"])
@pytest.mark.parametrize("command", MISSING)
def test_a_scene_that_is_not_there_has_one_exit_code(
    worker_process: WorkerProcess, command: str, name: str, tmp_path: Path
) -> None:
    if command == "view":
        pytest.importorskip("viser", reason="no viser: pip install 'lumigrad[viewer]'")
    words = [word.format(name) for word in MISSING[command]]
    target = () if command == "convert" else ("--target", worker_process.target)
    done = lumigrad(*words, *target, folder=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (FAILED, 1), done.stderr
    assert name in done.stderr
    assert ("sample:vase" in done.stderr) == name.startswith("sample:")


def test_values_may_begin_with_a_minus(render: Render, scene: Path) -> None:
    pictures = []
    for options in (("--up=-z",), ("--up", "-z"), ("--up", "-0,-0,-1"), ("--up", "0,0,-1")):
        done = render(*options, "--size", "32x24", "-o", "up.png")
        assert done.returncode == 0, done.stderr
        pictures.append(np.asarray(Image.open(scene.parent / "up.png")))
    assert all(np.array_equal(picture, pictures[0]) for picture in pictures)
    assert render("--up", "-w", "-o", "up.png").returncode == USAGE
    assert render("--unknown", "-o", "up.png").stderr.startswith("lumigrad: error: unknown option: --unknown")
