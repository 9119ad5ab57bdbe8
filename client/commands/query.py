"""`lumigrad query`: measures distances of points, spheres and robots from meshes."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from lumigrad.client.clearance.chart import CHART_SUFFIXES, check_chart, require_charts, write_chart
from lumigrad.client.clearance.clearances import Clearances, Question, arrays_of, records, summary
from lumigrad.client.clearance.table import print_table, sentence
from lumigrad.client.commands.options import add_connection, connect, positive_number
from lumigrad.client.commands.surroundings import add_robot, add_surroundings, length_unit, world_of
from lumigrad.client.robots.motion import Motion
from lumigrad.client.shell import exits
from lumigrad.client.shell.files import json_text

_DESCRIPTION = f"""\
Measures how far spheres stay from obstacles: distances, closest points, normals, and on request collision costs with
their gradients. Metres everywhere; a sphere's clearance is the distance of its centre less its radius.

examples:
  lumigrad query part.stl --scale mm --spheres points.npy     near a part in millimetres
  lumigrad query world.yml --spheres robot.yml --urdf robot.urdf --joints=0,-1.3,0,-2.5,0,1.5,0.8
  lumigrad query world.yml --spheres robot.yml --urdf robot.urdf --joints plan.npy --plot near.png
  lumigrad query world.yml --spheres plan_spheres.npy --sweep --check && execute plan.npy
  lumigrad query part.stl --spheres points.csv --json | jq .closest

exit status: with --check 0 nothing collides, {exits.NOT_SO} something does
"""


class QueryCommand:
    """Measures the distances of spheres in a file."""

    help = "measure how far points, spheres or a robot stay from meshes"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.description = _DESCRIPTION
        add_surroundings(parser.add_argument_group("obstacles"))
        _add_spheres(parser.add_argument_group("spheres"))
        _add_question(parser.add_argument_group("what is asked"))
        _add_results(parser.add_argument_group("results"))
        add_connection(parser.add_argument_group("worker"))

    def run(self, arguments: argparse.Namespace) -> int:
        """Reads the files, measures and shows the results."""
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
            np.savez(arguments.output, **arrays_of(found))
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


def _add_spheres(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--spheres",
        type=Path,
        required=True,
        metavar="FILE",
        help="points [N, 3], spheres [N, 4] or a trajectory [T, N, 3 | 4] of them (.npy, .npz, .csv, .txt), "
        "or a robot's in cuRobo's .yml",
    )
    add_robot(group)
    group.add_argument("--radius", type=_length, default=0.0, metavar="METRES", help="of points (default: 0)")
    group.add_argument(
        "--spheres-scale", type=length_unit, default=1.0, metavar="UNIT", help="of points and spheres (default: m)"
    )


def _add_question(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--margin", type=_length, default=0.0, metavar="METRES", help="less clearance is a collision (default: 0)"
    )
    group.add_argument("--sweep", action="store_true", help="look between time steps as well, along straight lines")
    group.add_argument("--costs", action="store_true", help="also collision costs and their gradients")
    group.add_argument(
        "--activation-distance",
        type=_length,
        default=0.0,
        metavar="METRES",
        help="clearance at which costs begin; says --costs too (default: 0)",
    )
    group.add_argument(
        "--max-distance", type=positive_number, metavar="METRES", help="how far to look from centres (default: any)"
    )


def _add_results(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--rows", type=_rows, default=20, metavar="N", help="of the table at most; 0: all (default: 20)")
    group.add_argument(
        "--json", action="store_true", help="print JSON instead: a summary, and a record for each sphere"
    )
    group.add_argument("-o", "--output", type=_arrays_path, metavar="FILE", help="also write all arrays: .npz")
    group.add_argument(
        "--plot", type=_chart_path, metavar="FILE", help="also draw the clearance over time: .png, .svg or .pdf"
    )
    group.add_argument("--check", action="store_true", help=f"exit with status {exits.NOT_SO} unless all is free")


def _length(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected metres >= 0, got {text}")
    return value


def _rows(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number >= 0, got {text}")
    return int(text)


def _arrays_path(text: str) -> Path:
    path = Path(text)
    if path.suffix != ".npz":
        raise argparse.ArgumentTypeError(f"expected a file that ends in .npz, got {text}")
    return path


def _chart_path(text: str) -> Path:
    path = Path(text)
    if path.suffix not in CHART_SUFFIXES:
        raise argparse.ArgumentTypeError(f"expected a file that ends in {', '.join(CHART_SUFFIXES)}, got {text}")
    return path


command = QueryCommand()
