"""The options --urdf, --joints and --base: a robot's joints, and where it stands."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lumigrad.client.commands.options import numbers
from lumigrad.client.commands.surroundings import pose
from lumigrad.client.number_files import NUMBER_SUFFIXES
from lumigrad.client.pose import IDENTITY


def add_robot(group: argparse._ActionsContainer) -> None:
    """Declares them."""
    group.add_argument("--urdf", type=Path, metavar="FILE", help="of the robot")
    group.add_argument(
        "--joints",
        type=_joints,
        metavar="Q1,Q2,.. | FILE",
        help="joint values, radians and metres, or a file of them: [J], or [T, J] along a trajectory "
        "(default: where the robot's file says that it rests)",
    )
    group.add_argument(
        "--base", type=pose, default=tuple(IDENTITY), metavar="X,Y,Z[,QW,QX,QY,QZ]", help="of the robot in the world"
    )


def _joints(text: str) -> Any:
    return Path(text) if text.lower().endswith(NUMBER_SUFFIXES) else numbers(text)
