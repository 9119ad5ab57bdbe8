"""Options of a fit that is resumed: those of its first part may be repeated, and others are refused."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Camera, Gaussians, InvalidArgument, Spheres
from lumigrad.client.commands import fit
from lumigrad.client.commands.fit_options import complete
from lumigrad.client.commands.scene_file import check_replaced
from lumigrad.client.datasets import Capture, Points, View
from lumigrad.client.fitting.evaluation import Scores
from lumigrad.client.fitting.recipe import Checkpoint, Recipe

BEGUN: dict[str, Any] = {"sh_degree": 1, "cap": 900, "poses": True, "exposures": True, "seed": 3}
SECONDS = {**BEGUN, "seconds": 60.0}


def completed(given: str, recipe: dict[str, Any]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    fit.command.add_arguments(parser)
    arguments = parser.parse_args(["capture", "-o", "scene.ply", "--resume", *given.split()])
    complete(arguments, Checkpoint("id", "lease", 1600, 4, Recipe(**recipe), Scores(0.0, 0.0, 0.0, 0.0)))
    return arguments


@pytest.mark.parametrize(
    ("given", "recipe"),
    [
        ("--steps 7000 --sh-degree 1 --cap 900 --refine-poses --exposures --seed 3 --hold-out 4", BEGUN),
        ("--seconds 60 --kind gaussians --primitive volumes --strategy mcmc --max-size 1600", SECONDS),
        ("--every 100 --no-exposures", {}),
    ],
)
def test_options_may_be_repeated(given: str, recipe: dict[str, Any]) -> None:
    arguments = completed(given, recipe)
    assert arguments.refine_lenses is False and arguments.steps == 7000


@pytest.mark.parametrize(
    ("given", "recipe", "text"),
    [
        ("--steps 9000", BEGUN, "steps: expected 7000, as in the fit that is resumed, got 9000; leave it out"),
        ("--steps 7000", SECONDS, "steps: expected none, as in the fit that is resumed, got 7000; leave it out"),
        ("--seconds 60", BEGUN, "seconds: expected none, as in the fit that is resumed, got 60.0; leave it out"),
        ("--snapshot-every 9", BEGUN, "snapshot_every: expected none, .*, got 9; leave it out"),
        ("--no-exposures", BEGUN, "exposures: expected True, .*, got False; leave it out"),
        ("--refine-lenses", BEGUN, "refine_lenses: expected False, .*, got True; leave it out"),
        ("--hold-out 8", BEGUN, "hold_out: expected 4, .*, got 8; leave it out"),
    ],
)
def test_other_options_are_refused(given: str, recipe: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{text}"):
        completed(given, recipe)


def test_the_points_of_a_capture_are_not_replaced(tmp_path: Path) -> None:
    camera = Camera.look_at((0, 0, -3), (0, 0, 0), (0, -1, 0), width=8, height=8)
    points = Points(np.zeros((3, 3)), np.zeros((3, 3), np.uint8))
    Capture((View("one.png", camera),), points).save(tmp_path)
    kept = (tmp_path / "points.ply").read_bytes()
    parser = argparse.ArgumentParser()
    fit.command.add_arguments(parser)
    arguments = parser.parse_args([str(tmp_path), "-o", str(tmp_path / "points.ply")])
    with pytest.raises(
        InvalidArgument, match=r"^output: expected a new file or a scene .*points\.ply, which has points"
    ):
        fit.command.run(arguments)
    assert (tmp_path / "points.ply").read_bytes() == kept


def test_scenes_may_be_replaced(tmp_path: Path) -> None:
    Gaussians.load("sample:vase")[:9].save(tmp_path / "scene.ply")
    Gaussians.load("sample:vase")[:9].save(tmp_path / "scene.compressed.ply")
    Spheres(np.zeros((2, 3)), np.zeros((2, 3)), np.ones(2)).save(tmp_path / "spheres.ply")
    for path in (*tmp_path.iterdir(), tmp_path / "new.ply", tmp_path):
        check_replaced(path)
