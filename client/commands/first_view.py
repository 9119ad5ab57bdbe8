"""The viewer's initial viewpoint, from --camera, --view, --fov and --up, and the cameras of a data set."""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from lumigrad.client.commands import aim
from lumigrad.client.commands.aim import Extent, enclosing_ball
from lumigrad.client.commands.shots import FOV_DEGREES, usual_up
from lumigrad.client.datasets import Capture
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.rotations import unit
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.viewer.lens import Viewpoint

# A typical window's aspect ratio, which determines the distance at which a scene fills it.
_WIDTH, _HEIGHT = 1280, 720


def capture_of(arguments: argparse.Namespace) -> Capture | None:
    """The data set that --camera names; None: it names none."""
    capture = arguments.camera.capture() if isinstance(arguments.camera, aim.CameraFile) else None
    if capture is None and arguments.view is not None:
        raise InvalidArgument.of("view", "expected with --camera of a data set; leave it out")
    return capture


def viewpoints(capture: Capture | None) -> dict[str, Viewpoint]:
    """The viewpoints of a data set's cameras, by name; empty without a data set."""
    return {} if capture is None else {view.name: Viewpoint.of(view.camera, capture.focus) for view in capture.views}


def first_view(
    arguments: argparse.Namespace,
    scene: Spheres | Gaussians,
    capture: Capture | None,
    up: tuple[float, float, float] | None = None,
) -> Viewpoint:
    """The initial viewpoint; its `up` is the orbit's axis, by default the scene's usual one."""
    if capture is not None:
        if arguments.fov is not None:
            raise InvalidArgument.of("fov", "is what the cameras of the data set say; leave it out")
        first = Viewpoint.of(capture.view(arguments.view or 0).camera, capture.focus)
        return replace(first, up=capture.up if arguments.up is None else _axis(arguments.up))
    up = arguments.up or up or usual_up(scene)
    camera = arguments.camera.camera(scene, aim.View(_WIDTH, _HEIGHT, arguments.fov or FOV_DEGREES, up))
    center = Extent.of(scene, _axis(up)).center if isinstance(scene, Gaussians) else enclosing_ball(scene)[0]
    return replace(Viewpoint.of(camera, center), up=_axis(up))


def _axis(up: tuple[float, float, float]) -> np.ndarray:
    return unit("up", np.asarray(up, np.float64))
