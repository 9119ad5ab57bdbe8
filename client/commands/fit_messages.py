"""Messages of `lumigrad fit` about a data set and about the result, including warnings of likely mistakes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from lumigrad.client.base.counts import counted
from lumigrad.client.datasets.capture import Capture
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.fitting.background import Background
from lumigrad.client.fitting.cameras import looking_away
from lumigrad.client.fitting.evaluation import Scores
from lumigrad.client.fitting.memory import memory_of, size_text
from lumigrad.client.fitting.recipe import Recipe
from lumigrad.client.fitting.shot import Shot, are_held_out
from lumigrad.client.formats.beside import offset_text
from lumigrad.client.shell.exits import say

# If an otherwise good fit gains more than this from matched colours, the user should know.
_MISMATCH_DB, _GOOD_DB = 1.5, 20.0
# In many captures, some cameras look away from the subject.
_MOST = 0.75
# Fewer initial points, with three Gaussians for each, can hardly fit anything.
_FEW_POINTS = 100


def check_photographs(arguments: argparse.Namespace, capture: Capture) -> None:
    """Raises InvalidArgument, which says where it looked, unless there are at least two photographs."""
    found = sum(view.image is not None for view in capture.views)
    if found >= 2:
        return
    path: Path = arguments.dataset
    if found == len(capture):
        raise InvalidArgument.of("dataset", f"expected at least two photographs, and {path} has one")
    folder = path if path.is_dir() else path.parent
    first = next(view.file for view in capture.views if view.image is None)
    if arguments.images is None:
        looked = (
            f"where its files name them, in {folder} or its folder images; --images DIR names another folder, also "
        )
        looked += "for paths of another machine"
    elif (folder / arguments.images).is_dir():
        looked = f"by their names in {folder / arguments.images}"
    else:
        looked = f"in {folder / arguments.images}, which is no folder"
    field = "dataset" if arguments.images is None else "images"
    text = f"expected at least two photographs for the {len(capture)} views of {path}, found {found}"
    raise InvalidArgument.of(field, f"{text}; the first that is missing is {first!r}; looked {looked}")


def say_axes(arguments: argparse.Namespace, capture: Capture) -> None:
    """Says on standard error if most cameras look away from what they surround."""
    away = looking_away(capture)
    if away > _MOST * len(capture):
        say(
            f"{away} of {len(capture)} cameras of {arguments.dataset} look away from the point where their "
            "axes meet: perhaps their matrices have OpenCV's axes (y down, z forward), where transforms.json has "
            "OpenGL's (y up, z back), or map from the world to the camera; a capture from the inside may be right"
        )


def say_few_points(arguments: argparse.Namespace, recipe: Recipe, count: int) -> None:
    """Says on standard error how few Gaussians there may be by default if a data set has few initial points."""
    is_usual = arguments.begin is None and arguments.strategy != "none" and "cap" not in arguments.given
    if recipe.kind == "gaussians" and is_usual and count < _FEW_POINTS:
        few = counted(count, "initial points")
        say(f"{arguments.dataset} has {few}: the fit has at most {recipe.cap} Gaussians; --cap N allows more")


def say_colours(scores: Scores, background: Background) -> None:
    """Says on standard error if a good fit would be much better with other colours."""
    higher = scores.matched_psnr - scores.psnr
    if higher > _MISMATCH_DB and scores.psnr > _GOOD_DB:
        say(
            f"with colours matched, the score would be {higher:.1f} dB higher: perhaps the photographs "
            f"differ in exposure (--exposures), or the background is {background.opposite} (--background)"
        )


def plan_text(
    recipe: Recipe, capture: Capture, shots: Sequence[Shot], fitted: Sequence[Shot], held_out: Sequence[Shot]
) -> str:
    """Returns the plan of a fit as text; reads a photograph that has a mask, if there is one."""
    used = {shot.name for shot in (*fitted, *held_out)}
    unused = f", {len(shots) - len(used)} in no list of the data set" if len(used) < len(shots) else ""
    length = f"{recipe.seconds:g} s" if recipe.seconds else counted(recipe.steps, "steps")
    frame = "" if recipe.offset is None else f"; coordinates: {offset_text(recipe.offset)}"
    memory = size_text(memory_of(recipe.schedule(len(fitted)).shots(fitted)))
    left = len(held_out) if are_held_out(held_out, fitted) else "none"
    planned = f"{counted(len(fitted), 'photographs')} to fit, {left} held out{unused}, {length}"
    masks = _masks_text(capture, shots)
    return f"{planned}{masks}; background: {recipe.background}{frame}; photographs on the worker: {memory}"


def _masks_text(capture: Capture, shots: Sequence[Shot]) -> str:
    """Returns how many photographs have masks and how the first is read, which shows masks that mean the opposite."""
    with_mask = {view.name for view in capture.views if view.mask is not None}
    masked = [shot for shot in shots if shot.name in with_mask]
    mask = masked[0].read().mask if masked else None
    if mask is None:
        return ""
    ignored = float((mask == 0).mean())
    whose = f"masks of {len(masked)} of {len(shots)} photographs"
    return f"; {whose}: black or transparent is ignored, {ignored:.0%} of {masked[0].name}"


def say_weights(weighted: Mapping[str, float], fitted: Sequence[Shot]) -> None:
    """Says on standard error how many masks weight pixels, since levels that were meant as labels do so, too.

    Args:
        weighted: the shares of the pixels that are weighted, by the names of the photographs.
        fitted: the photographs that are fitted.
    """
    if weighted:
        first = next(shot.name for shot in fitted if shot.name in weighted)
        share = f"{weighted[first]:.0%}" if weighted[first] >= 0.01 else "less than 1%"
        say(
            f"masks of {len(weighted)} of {len(fitted)} fitted photographs have levels between black and "
            f"white, which weight their pixels: {share} of {first}"
        )


def say_results(
    arguments: argparse.Namespace, recipe: Recipe, facts: Mapping[str, str], after: Scores, is_stopped: bool
) -> None:
    """Prints the scores and where the results are; `facts` are texts by name."""
    output = sys.stderr if arguments.json else sys.stdout
    path: Path = arguments.output
    print(
        facts["fit"],
        *(f"{name}: {text}" for name, text in facts.items() if "photographs" in name),
        sep="\n",
        file=output,
    )
    print(f"scene in {path}, report and pictures in {path.with_suffix('.fit')}/report.html", file=output)
    if recipe.refines_cameras:
        print(f"cameras as they were refined in {path.with_suffix('.fit')}/transforms.json", file=output)
    view = f"lumigrad view {path}, or " if find_spec("viser") is not None else ""
    print(f"look at it: {view}lumigrad render {path} -o scene.png", file=output)
    say_colours(after, recipe.background)
    if is_stopped:
        print("stopped; --resume continues it while the worker keeps the training", file=sys.stderr)
