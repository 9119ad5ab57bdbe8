"""Options of a fit that is resumed: those of its first part may be repeated, and others are refused."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from lumigrad.client import InvalidArgument
from lumigrad.client.commands import fit
from lumigrad.client.commands.fit_options import complete
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
