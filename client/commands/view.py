"""`lumigrad view`: shows a scene in the browser, rendered by the worker."""

from __future__ import annotations

import argparse
import signal
import threading
from contextlib import suppress
from pathlib import Path

from lumigrad.client.base.extras import require
from lumigrad.client.commands import aim, scene_file
from lumigrad.client.commands.options import add_connection, direction, port_number, positive_number
from lumigrad.client.commands.surroundings import add_robot, length_unit, pose

_EXAMPLES = """\
examples:
  lumigrad view scene.ply                               prints the address of a page
  lumigrad view scene.ply --up z --port 8090
  lumigrad view scene.ply --camera capture/             begins where its photographs were taken
  lumigrad view --world cell.yml --urdf robot.urdf --spheres robot.yml    distances as colours
"""


class ViewCommand:
    """Serves the page until Control-C."""

    help = "orbit a scene in the browser"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.epilog = _EXAMPLES
        scene_file.add_scene(parser, nargs="?")
        scene_file.add_kind(parser)
        views = parser.add_argument_group("first view")
        views.add_argument("--camera", type=aim.parse, default="orbit 30,20", metavar="AIM", help=aim.HELP)
        views.add_argument("--view", metavar="NAME | INDEX", help="camera of a data set to begin with (default: 0)")
        views.add_argument(
            "--fov", type=positive_number, metavar="DEGREES", help="vertical angle of view (default: 40)"
        )
        views.add_argument(
            "--up",
            type=direction,
            metavar="AXIS",
            help="what cameras turn around: x, y, z, -x, -y, -z, or X,Y,Z; e.g. --up=-z (default: y for spheres; for "
            "Gaussians -y, or up in the photographs of a data set)",
        )
        scene_file.add_looks(parser.add_argument_group("looks"))
        _add_cell(parser.add_argument_group("obstacles and a robot"))
        page = parser.add_argument_group("page")
        page.add_argument(
            "--host", default="127.0.0.1", help="address to listen on; who reaches it sees the scene (default: this "
            "machine's own, 127.0.0.1)"
        )  # fmt: skip
        page.add_argument("--port", type=port_number, default=8080, help="0: any (default: 8080, or the next free one)")
        page.add_argument(
            "--fps", type=positive_number, default=30.0, help="pictures per second while the camera moves (default: 30)"
        )
        add_connection(parser.add_argument_group("worker"))

    def run(self, arguments: argparse.Namespace) -> int:
        """Serves the page."""
        require("viser", "viewer", "lumigrad view")
        from lumigrad.client.commands.view_page import opened

        with opened(arguments) as viewer:
            print(f"{viewer.title}: {viewer.url}\nControl-C ends it", flush=True)
            _wait()
        return 0


def _add_cell(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--world",
        dest="meshes",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="obstacles: .stl, .obj, .ply, .glb, or cuRobo's .yml of a world; with or without SCENE",
    )
    group.add_argument(
        "--scale", type=length_unit, default=1.0, metavar="UNIT", help="of mesh files: mm, in, .., or metres per unit"
    )
    group.add_argument(
        "--pose",
        type=pose,
        action="append",
        metavar="X,Y,Z[,QW,QX,QY,QZ]",
        help="of the obstacles of a file in the world, metres; once for all files, or once for each",
    )
    group.set_defaults(sign="auto")
    group.add_argument(
        "--spheres", type=Path, metavar="FILE", help="of the robot's links, in cuRobo's .yml; coloured by distance"
    )
    add_robot(group)


def _wait() -> None:
    """Waits for Control-C or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Control-C is the normal end.
    with suppress(KeyboardInterrupt):
        threading.Event().wait()


command = ViewCommand()
