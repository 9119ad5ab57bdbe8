"""Mistakes at the command line: named by the option that was written, with the exit code of the kind of mistake."""

from __future__ import annotations

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
