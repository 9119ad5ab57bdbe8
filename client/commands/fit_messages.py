"""What `lumigrad fit` says about a data set and a result that are probably not what was meant."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lumigrad.client.datasets.capture import Capture
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.fitting.background import Background
from lumigrad.client.fitting.cameras import looking_away
from lumigrad.client.fitting.evaluation import Scores

# A larger difference, with colours matched, has a reason that the user should know of, if the fit is good otherwise.
_MISMATCH_DB, _GOOD_DB = 1.5, 20.0
# Some cameras look away from the subject in many captures.
_MOST = 0.75


def check_photographs(arguments: argparse.Namespace, capture: Capture) -> None:
    """Raises InvalidArgument, which says where they were looked for, unless there are photographs."""
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
        print(
            f"lumigrad: {away} of {len(capture)} cameras of {arguments.dataset} look away from the point where their "
            "axes meet: perhaps their matrices have OpenCV's axes (y down, z forward), where transforms.json has "
            "OpenGL's (y up, z back), or map from the world to the camera; a capture from the inside may be right",
            file=sys.stderr,
        )


def say_colours(scores: Scores, background: Background) -> None:
    """Says on standard error if a good fit would be much better with other colours."""
    higher = scores.matched_psnr - scores.psnr
    if higher > _MISMATCH_DB and scores.psnr > _GOOD_DB:
        print(
            f"lumigrad: colours matched, the score is {higher:.1f} dB higher: perhaps the photographs differ in "
            f"exposure (--exposures), or the background is {background.opposite} (--background)",
            file=sys.stderr,
        )
