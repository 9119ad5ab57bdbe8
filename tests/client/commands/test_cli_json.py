"""Output for scripts: one line of JSON with stable keys on standard output, and nothing else there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from lumigrad.client import Gaussians
from lumigrad.client.formats.levels.building import write_levels
from lumigrad.client.shell.exits import json_text
from support.workers.forks import lumigrad
from support.workers.worker import WorkerProcess

DOCUMENT = Path(__file__).parents[3] / "docs" / "command_line.md"


def told(*arguments: str, cwd: Path | None = None) -> dict[str, object]:
    done = lumigrad(*arguments, "--json", folder=cwd)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    values = json.loads(line)
    assert isinstance(values, dict)
    return values


def documented(command: str) -> set[str]:
    """The keys in the document's table."""
    (row,) = re.findall(rf"^\| `lumigrad {command}` \| (.*) \|$", DOCUMENT.read_text(encoding="utf-8"), re.M)
    return set(re.findall(r"`([a-z_]+)`", row))


def test_render(worker_process: WorkerProcess, scene: Path):
    options = ("--orbit", "2", "--size", "16x16", "--show", "alpha", "--target", worker_process.target)
    values = told("render", "scene.ply", "-o", "frames/", *options, cwd=scene.parent)
    assert set(values) == documented("render")
    assert values["round_trip_ms"] > 0
    del values["round_trip_ms"]
    assert values == {"output": "frames", "show": "alpha", "kind": "gaussians", "count": 400, "pictures": 2}


def test_info(worker_process: WorkerProcess):
    values = told("info", "--target", worker_process.target)
    assert set(values) == documented("info")
    assert values["lane"] in ("shared", "stream")


def test_info_of_a_scene_file(scene: Path, tmp_path: Path):
    values = told("info", "scene.ply", cwd=scene.parent)
    assert set(values) == documented("info FILE") - {"gaussians", "spheres", "pages", "level_counts"}
    gaussians = Gaussians.load(scene)
    low, high = gaussians.means.min(axis=0), gaussians.means.max(axis=0)
    np.testing.assert_allclose((values["low"], values["high"]), (low, high), atol=1e-4)
    assert (values["kind"], values["count"], values["not_finite"]) == ("gaussians", 400, 0)
    properties = "".join(f"property float {axis}\n" for axis in "xyz")
    header = f"ply\nformat ascii 1.0\nelement vertex 2\n{properties}end_header\n"
    (tmp_path / "points.ply").write_text(f"{header}0 1 2\n3 4 6\n")
    values = told("info", "points.ply", cwd=tmp_path)
    size = (tmp_path / "points.ply").stat().st_size
    box = {"low": [0, 1, 2], "high": [3, 4, 6]}
    assert values == {"file": "points.ply", "bytes": size, "kind": "spheres", "count": 2, **box}


def test_info_of_levels_has_the_box_of_the_gaussians_and_not_of_their_centres(scene: Path):
    write_levels(scene, scene.parent / "city")
    values = told("info", "city", cwd=scene.parent)
    missing = {"bytes", "not_finite", "precision", "would_lose"}
    assert set(values) == documented("info FILE") - {"gaussians", "spheres", "pages", "level_counts"} - missing
    assert (values["count"], values["details"]["level_counts"][0]) == (400, 400)
    gaussians, low, high = Gaussians.load(scene), np.array(values["low"]), np.array(values["high"])
    means, scales = gaussians.means, gaussians.scales
    # Positions and scales of the files are rounded by less than a twentieth.
    least, most = 2.85 * scales.min(axis=1, keepdims=True), 3.15 * scales.max(axis=1, keepdims=True)
    assert (low <= (means - least).min(axis=0)).all() and (high >= (means + least).max(axis=0)).all()
    assert (low >= (means - most).min(axis=0)).all() and (high <= (means + most).max(axis=0)).all()


def test_numbers_that_json_does_not_know_are_null():
    assert json_text({"a": (float("nan"), float("inf"), 1.5)}) == '{"a": [null, null, 1.5]}'
