"""Options for obstacles and robots."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lumigrad.client.commands.options import FILE, numbers, option
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.number_files import NUMBER_SUFFIXES
from lumigrad.client.formats.world_files import YAML_SUFFIXES, read_obstacles
from lumigrad.client.values.rotations import IDENTITY
from lumigrad.client.values.world import World

UNITS = {"m": 1.0, "cm": 0.01, "mm": 0.001, "in": 0.0254, "inch": 0.0254, "ft": 0.3048}


MESHES = ".stl, .obj, .ply, .glb, or cuRobo's .yml of a world"


def add_placement(group: argparse._ActionsContainer, units: str) -> None:
    """Declares the placement of mesh files in the world; `units` names the units of --scale."""
    group.add_argument("--scale", help=f"unit of mesh files: {units}", **UNIT)
    help_text = "pose of a file's obstacles in the world, metres; once for all files, or once for each"
    option(group, "--pose", help_text, action="append", **_POSE)


def world_of(arguments: argparse.Namespace) -> World:
    """Returns the world of all files' obstacles."""
    # The unit is also that of the mesh that `lumigrad view` compares.
    files = [*arguments.meshes, *filter(None, [getattr(arguments, "compare", None)])]
    if arguments.scale is not None and all(path.suffix.lower() in YAML_SUFFIXES for path in files):
        raise InvalidArgument.of("scale", "expected with mesh files; lengths in YAML worlds are metres, leave it out")
    poses = arguments.pose or [IDENTITY]
    if len(poses) == 1:
        poses = poses * len(arguments.meshes)
    if len(poses) != len(arguments.meshes):
        raise InvalidArgument.of("pose", f"expected one, or one for each of {len(arguments.meshes)}, got {len(poses)}")
    return World(
        obstacle
        for path, placed in zip(arguments.meshes, poses, strict=True)
        for obstacle in read_obstacles(path, scale=arguments.scale or 1.0, pose=placed, sign=arguments.sign)
    )


def length_unit(text: str) -> float:
    """Parses metres per unit, like "mm" or "0.001"."""
    try:
        value = UNITS.get(text.lower()) or float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected {', '.join(UNITS)}, or metres per unit > 0, got {text}")
    return value


def pose(text: str) -> tuple[float, ...]:
    """Parses a pose, like "0.1,0,0.2" or "0.1,0,0.2,1,0,0,0"."""
    values = numbers(text)
    if len(values) not in (3, 7):
        raise argparse.ArgumentTypeError(f"expected X,Y,Z or X,Y,Z,QW,QX,QY,QZ, got {text}")
    return values


_POSE: dict[str, Any] = {"type": pose, "metavar": "X,Y,Z[,QW,QX,QY,QZ]"}
UNIT: dict[str, Any] = {"type": length_unit, "metavar": "UNIT"}


def add_robot(group: argparse._ActionsContainer) -> None:
    """Declares the options of a robot."""
    option(group, "--urdf", "URDF file of the robot", **FILE)
    help_text = (
        "joint values, radians and metres, or a file of them: [J], or [T, J] along a trajectory "
        "(default: the rest pose in the robot's file)"
    )
    option(group, "--joints", help_text, type=_joints, metavar="Q1,Q2,.. | FILE")
    group.add_argument("--base", help="pose of the robot's base in the world", **_POSE)


def _joints(text: str) -> Any:
    return Path(text) if text.lower().endswith(NUMBER_SUFFIXES) else numbers(text)
