"""`lumigrad query`: measures distances of points, spheres and robots from meshes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, get_args

import numpy as np

from lumigrad.client.base.replacing import replaced
from lumigrad.client.clearance.chart import CHART_SUFFIXES, check_chart, require_charts, write_chart
from lumigrad.client.clearance.clearances import Clearances, Question, arrays_of, records, summary
from lumigrad.client.clearance.table import print_table, sentence
from lumigrad.client.commands.options import FILE, add_connection, connect, ending, option, positive_number, whole
from lumigrad.client.commands.surroundings import MESHES, UNIT, UNITS, add_placement, add_robot, world_of
from lumigrad.client.robots.motion import Motion
from lumigrad.client.shell import exits
from lumigrad.client.shell.catalog import Command
from lumigrad.client.shell.exits import json_text, naming
from lumigrad.client.shell.parser import path_of
from lumigrad.client.values.world import Sign

_DESCRIPTION = f"""\
Measures the distances of spheres from obstacles, with closest points, normals, and on request collision costs with
their gradients. All lengths are in metres; a sphere's clearance is the distance of its centre less its radius.

examples:
  lumigrad query part.stl --scale mm --spheres points.npy     near a part in millimetres
  lumigrad query world.yml --spheres robot.yml --urdf robot.urdf --joints=0,-1.3,0,-2.5,0,1.5,0.8
  lumigrad query world.yml --spheres robot.yml --urdf robot.urdf --joints plan.npy --plot near.png
  lumigrad query world.yml --spheres plan_spheres.npy --sweep --check && execute plan.npy
  lumigrad query part.stl --spheres points.csv --json | jq .closest

exit status with --check: 0 if nothing collides, {exits.NOT_SO} if something does
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    _add_obstacles(parser.add_argument_group("obstacles"))
    _add_spheres(parser.add_argument_group("spheres"))
    _add_question(parser.add_argument_group("measurement"))
    _add_results(parser.add_argument_group("results"))
    add_connection(parser)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.plot is not None:
        require_charts()
    world, motion = world_of(arguments), _motion(arguments)
    question = Question(
        margin=arguments.margin,
        costs=arguments.costs or arguments.activation_distance > 0,
        activation_distance=arguments.activation_distance,
        max_distance=arguments.max_distance,
        sweep=arguments.sweep,
    )
    with connect(arguments) as client:
        found = Clearances.measure(client, world, motion, question)
    if arguments.plot is not None:
        check_chart(found)
        write_chart(arguments.plot, found, f"{arguments.spheres.name} near {_named(arguments.meshes)}")
    if arguments.output is not None:
        with naming(arguments.output), replaced(arguments.output) as new:
            np.savez(new, **arrays_of(found))
    _print(found, arguments)
    return exits.NOT_SO if arguments.check and not found.is_free else exits.OK


def _motion(arguments: argparse.Namespace) -> Motion:
    return Motion.load(
        arguments.spheres,
        urdf=arguments.urdf,
        joints=arguments.joints,
        base=arguments.base,
        radius=arguments.radius,
        scale=arguments.spheres_scale,
    )


def _print(found: Clearances, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(json_text({**summary(found), "records": records(found)}))
        return
    print_table(found, arguments.rows)
    print(sentence(found))
    for path in (arguments.output, arguments.plot):
        if path is not None:
            print(path)


def _named(paths: list[Path]) -> str:
    return ", ".join(path.name for path in paths)


def _add_obstacles(group: argparse._ArgumentGroup) -> None:
    group.add_argument("meshes", nargs="+", type=path_of, metavar="MESH", help=f"files of obstacles: {MESHES}")
    add_placement(group, f"{', '.join(UNITS)}, or metres per unit (default: m)")
    option(group, "--sign", "how to decide what is inside a mesh", "auto", choices=get_args(Sign))


def _add_spheres(group: argparse._ArgumentGroup) -> None:
    help_text = "points [N, 3], spheres [N, 4] or a trajectory [T, N, 3 | 4] of them (.npy, .npz, .csv, .txt), "
    option(group, "--spheres", f"{help_text}or a robot's in cuRobo's .yml", required=True, **FILE)
    add_robot(group)
    option(group, "--radius", "radius of points (default: 0)", **_LENGTH)
    group.add_argument("--spheres-scale", help="unit of points and spheres (default: m)", **UNIT)


def _add_question(group: argparse._ArgumentGroup) -> None:
    option(group, "--margin", "a smaller clearance is a collision", 0.0, **_LENGTH)
    group.add_argument("--sweep", action="store_true", help="also check between time steps, along straight lines")
    group.add_argument("--costs", action="store_true", help="also compute collision costs and their gradients")
    option(group, "--activation-distance", "clearance at which costs begin; implies --costs", 0.0, **_LENGTH)
    help_text = "search radius around centres (default: unlimited)"
    option(group, "--max-distance", help_text, type=positive_number, metavar="METRES")


def _add_results(group: argparse._ArgumentGroup) -> None:
    option(group, "--rows", "most rows of the table; 0: all", 20, type=whole("a whole number >= 0", 0), metavar="N")
    help_text = "print JSON instead: a summary, and a record for each sphere"
    group.add_argument("--json", action="store_true", help=help_text)
    help_text = "also write all arrays: .npz"
    group.add_argument("-o", "--output", type=ending(".npz"), metavar="FILE", help=help_text)
    help_text = "also draw the clearance over time: .png, .svg or .pdf"
    option(group, "--plot", help_text, type=ending(", ".join(CHART_SUFFIXES)), metavar="FILE")
    group.add_argument("--check", action="store_true", help=f"exit with status {exits.NOT_SO} unless all is free")


def _length(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected metres >= 0, got {text}")
    return value


_LENGTH: dict[str, Any] = {"type": _length, "metavar": "METRES"}
command = Command("measure the distances of points, spheres or a robot from meshes", _add_arguments, _run)
