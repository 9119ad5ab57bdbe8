"""`lumigrad view`: a scene in the browser, rendered by the worker."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from lumigrad.client.commands import aim, scene_file
from lumigrad.client.commands.options import add_connection, connect, direction, port_number, positive_number
from lumigrad.client.extras import require
from lumigrad.client.gaussians import Gaussians

if TYPE_CHECKING:
    import viser

    from lumigrad.client.viewer.session import Session
    from lumigrad.client.viewer.viewer import Viewer

_EXAMPLES = """\
examples:
  lumigrad view scene.ply                               prints the address of a page
  lumigrad view scene.ply --up z --port 8090
  lumigrad view scene.ply --camera capture/             begins where its photographs were taken
"""


class ViewCommand:
    """Serves a page for each browser that comes, until Control-C."""

    help = "orbit a scene in the browser"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.epilog = _EXAMPLES
        scene_file.add_scene(parser)
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
        """Serves."""
        require("viser", "viewer", "lumigrad view")
        with opened(arguments) as viewer:
            print(f"{arguments.scene}: {viewer.url}\nControl-C ends it", flush=True)
            _wait()
        return 0


@contextmanager
def opened(arguments: argparse.Namespace) -> Iterator[Viewer]:
    """The page that the options describe, for the length of a `with` block."""
    from lumigrad.client.commands.first_view import capture_of, first_view, viewpoints
    from lumigrad.client.viewer.painter import Painter
    from lumigrad.client.viewer.session import Session
    from lumigrad.client.viewer.viewer import Viewer

    scene, settings = scene_file.read(arguments)
    capture = capture_of(arguments)
    first, views = first_view(arguments, scene, capture), viewpoints(capture)
    is_gaussians = isinstance(scene, Gaussians)
    # As the worker has it where nothing is said.
    background = settings.pop("background") or ((0.0,) if is_gaussians else (1.0,)) * 3

    def begin(browser: viser.ClientHandle) -> Session:
        painter = Painter(client, stored, scene, settings)
        return Session(browser, painter, first, views, background, target_s=1 / arguments.fps, is_solid=False)

    with connect(arguments) as client:
        stored = client.put(scene)
        with Viewer(arguments.host, arguments.port, first) as viewer:
            noun = "Gaussians" if is_gaussians else "spheres"
            viewer.say(arguments.scene.name, {noun: f"{len(scene):,}", "worker": client.target})
            viewer.serve(begin)
            yield viewer


def _wait() -> None:
    """Until Control-C, or whoever else ends it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # The way to end it.
    with suppress(KeyboardInterrupt):
        threading.Event().wait()


command = ViewCommand()
