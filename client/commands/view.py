"""`lumigrad view`: shows a scene in the browser, rendered by the worker."""

from __future__ import annotations

import argparse
import threading
from contextlib import suppress

from lumigrad.client.base.extras import require
from lumigrad.client.commands import aim, scene_file
from lumigrad.client.commands.options import FILE, add_connection, option, positive_number, whole
from lumigrad.client.commands.surroundings import MESHES, add_placement, add_robot
from lumigrad.client.shell.catalog import Command
from lumigrad.client.shell.exits import ending_at_once

_EXAMPLES = """\
examples:
  lumigrad view sample:vase                             a scene that comes with Lumigrad
  lumigrad view scene.ply                               prints the address of a page
  lumigrad view scene.ply --up z --port 8090
  lumigrad view scene.ply --camera capture/             begins at a photograph's camera
  lumigrad view --world cell.yml --urdf robot.urdf --spheres robot.yml    distances as colours
  lumigrad view --world part.stl --compare scan.ply --scale mm    how far a scan is from a part
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    scene_file.add_scene(parser, nargs="?")
    scene_file.add_kind(parser)
    views = parser.add_argument_group("first view")
    aim.add_camera(views)
    option(views, "--view", "camera of a data set to begin with (default: 0)", metavar="NAME | INDEX")
    aim.add_field(views, "vertical field of view", "axis that the camera turns around")
    scene_file.add_looks(parser.add_argument_group("looks"))
    cell = parser.add_argument_group("obstacles and a robot")
    option(cell, "--world", f"obstacles: {MESHES}; with or without SCENE", dest="meshes", nargs="+", **FILE)
    add_placement(cell, "mm, in, .., or metres per unit")
    cell.set_defaults(sign="auto")
    help_text = "mesh to show in the colours of its signed distances to the obstacles"
    option(cell, "--compare", help_text, **FILE)
    help_text = "spheres of the robot's links, in cuRobo's .yml; coloured by distance"
    option(cell, "--spheres", help_text, **FILE)
    add_robot(cell)
    page = parser.add_argument_group("page")
    help_text = "address to listen on; anyone who can reach it sees the scene (default: 127.0.0.1, this machine only)"
    page.add_argument("--host", default="127.0.0.1", help=help_text)
    help_text = "port to listen on; 0: any (default: 8080, or the next free one)"
    page.add_argument("--port", type=whole("a port, 0 to 65535", 0, 65535), default=8080, help=help_text)
    option(page, "--fps", "pictures per second while the camera moves", 30.0, type=positive_number)
    add_connection(parser)


def _run(arguments: argparse.Namespace) -> int:
    with ending_at_once():
        require("viser", "viewer", "lumigrad view")
        from lumigrad.client.commands.view_page import opened

    with opened(arguments) as viewer:
        print(f"{viewer.title}: {viewer.url}\nCtrl-C ends it", flush=True)
        # Ctrl-C and SIGTERM are normal ways to end.
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
    return 0


command = Command("show a scene in the browser", _add_arguments, _run)
