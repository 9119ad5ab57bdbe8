"""`lumigrad render` for what cannot be done: one line that says so, and the exit status."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from support.files.dataset_files import shots, transforms
from support.workers.worker import LUMIGRAD

REFUSED = [
    (("--orbit", "3", "-o", "out.png"), "--output: expected a folder or an .mp4 file for 3 pictures, got out.png"),
    (("--camera", "transforms.json", "-o", "out.png"), "--output: expected a folder or an .mp4 file for 5 pictures"),
    (
        ("--camera", "transforms.json", "--view", "9", "-o", "out.png"),
        "--view: expected an index below 5, or a name",
    ),
    (("--camera", "transforms.json", "--fov", "30", "-o", "views"), "--fov: is defined by the cameras of the data set"),
    (("--view", "1", "-o", "out.png"), "--view: expected with --camera of a data set and without --orbit"),
    (("--camera", "look-at 0,0,5 0,0,0", "--orbit", "3", "-o", "f"), '--orbit: expected with --camera "orbit …"'),
    (("--gamma", "0.1", "-o", "out.png"), "--gamma: belongs to spheres, but this scene is Gaussians; leave it out"),
    (("--radius", "0.1", "-o", "out.png"), "--radius: belongs to spheres, but this scene is Gaussians; leave it out"),
    (("--orbit", "3", "-o", "f", "--depth", "d.png"), "--depth: expected with one picture, not with 3"),
    (("-o", "absent/out.mp4", "--size", "32x32"), "no such directory: absent"),
    (("--sh-degree", "3", "-o", "out.png"), "--sh-degree: expected at most 0"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSED)
def test_what_cannot_be_done_is_one_line(render, scene, arguments, said):
    size = {"w": 64, "h": 48, "fl_x": 60}
    scene.with_name("transforms.json").write_text(json.dumps(transforms(shots(), **size)))
    done = render(*arguments)
    assert done.returncode == (2 if said.startswith("--") else 1)
    assert done.stderr.startswith(f"lumigrad: error: {said}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--show", "colour", "-o", "out.png"),
        ("-o", "out.bmp"),
        ("-o", "out.png", "--orbit", "0"),
        ("-o", "out.png", "--up", "w"),
        ("-o", "out.png", "--up=0,0,0"),
        ("-o", "out.png", "--as", "points"),
        ("-o", "out.png", "--camera", "absent-folder"),
    ],
)
def test_wrong_usage_is_status_2(render, arguments):
    done = render(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("lumigrad: error: ")
    assert done.stderr.endswith("\nsee `lumigrad render --help`\n")


def test_damaged_files_are_one_line(render, scene):
    content = scene.read_bytes()
    scene.write_bytes(content[: len(content) // 2])
    done = render("-o", "out.png")
    assert done.returncode == 1
    assert done.stderr.startswith("lumigrad: error: scene.ply: expected at least ")
    assert done.stderr.count("\n") == 1


def test_the_missing_extra_of_videos_is_named(scene):
    script = (
        "import sys; sys.modules['imageio_ffmpeg'] = None\n"
        "from lumigrad.client.cli import main; sys.exit(main(['render', 'scene.ply', '--orbit', '2', '-o', 'a.mp4']))"
    )
    python = Path(LUMIGRAD).with_name("python")
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, cwd=scene.parent)
    assert done.returncode == 1
    assert done.stderr == (
        'lumigrad: error: writing .mp4 files needs the package "imageio_ffmpeg"; '
        'install it with: pip install "lumigrad[video]"\n'
    )
