"""The requested images: named cameras, from --camera, --orbit, --view, --size, --fov and --up."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np

from lumigrad.client.base.cautions import said
from lumigrad.client.commands import aim
from lumigrad.client.datasets import Capture, View
from lumigrad.client.datasets.calibration import TYPE
from lumigrad.client.datasets.fields import read_json
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.beside import SceneView
from lumigrad.client.shell.exits import say
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.rotations import axis_angle_rotation, unit
from lumigrad.client.values.spheres import Spheres

# The largest ratio of proportions that differ by the rounding of pixels.
_STRETCH = 1.02
_SPHERES_SIZE, _GAUSSIANS_SIZE = (640, 480), (1280, 720)


def shots_of(arguments: argparse.Namespace, scene: Spheres | Gaussians) -> list[View]:
    """Returns all images that the options request."""
    aimed = arguments.camera
    capture = aimed.capture(arguments.scene) if isinstance(aimed, aim.CameraFile) else None
    if arguments.view is not None and (capture is None or arguments.orbit):
        raise InvalidArgument.of("view", "expected with --camera of a data set and without --orbit; leave it out")
    if capture is not None:
        return _ring(arguments, capture) if arguments.orbit else _views(arguments, capture)
    small = _SPHERES_SIZE if isinstance(scene, Spheres) else _GAUSSIANS_SIZE
    width, height = arguments.size or small
    given = {"width": width, "height": height, "fov_degrees": arguments.fov, "up": arguments.up}
    aimed, options = aim.resolved(aimed, scene, SceneView.load(arguments.scene), given)
    if not arguments.orbit:
        return [View("frame", aimed.camera(scene, options))]
    if not isinstance(aimed, aim.Orbit | aim.Saved):
        raise InvalidArgument.of("orbit", 'expected with --camera "orbit …" or a data set, or without --camera')
    return _numbered(aimed.turn(scene, options, _angles(arguments.orbit)))


def check_camera_file(aimed: aim.Aim | None, **given: object) -> None:
    """Raises InvalidArgument for options that the file of one camera defines itself.

    Args:
        aimed: --camera.
        given: values of --size, --fov and --up by name; None: not given.
    """
    if not isinstance(aimed, aim.CameraFile) or aimed.path.is_dir():
        return
    values = read_json(aimed.path)
    if not isinstance(values, dict) or "frames" in values:
        return
    is_calibrated = any(name in values for name in (TYPE, "fx", "parameters"))
    defined = {
        "size": TYPE in values or "width" in values or "height" in values,
        "fov": is_calibrated or "fov_degrees" in values,
        "up": is_calibrated or "up" in values,
    }
    for name, value in given.items():
        if value is not None and defined[name]:
            raise InvalidArgument.of(name, f"is defined by the camera in {aimed.path}; leave it out")


def say_stretched(size: tuple[int, int], *own: tuple[int, int]) -> None:
    """Says on standard error if pictures of cameras are stretched because --size has other proportions.

    Args:
        size: width and height of the pictures.
        own: those of each camera.
    """
    for width, height in own:
        ratio = size[0] * height / (size[1] * width)
        if not 1 / _STRETCH < ratio < _STRETCH:
            text = f"{size[0]}x{size[1]} has other proportions than a camera of {width}x{height}"
            say(f"{text}, whose pictures are stretched")
            return


def _views(arguments: argparse.Namespace, capture: Capture) -> list[View]:
    """Returns the cameras of a data set, or the one that --view names."""
    for name in ("fov", "up"):
        if getattr(arguments, name) is not None:
            raise InvalidArgument.of(name, "is defined by the cameras of the data set; leave it out, or add --orbit")
    views = capture.views if arguments.view is None else (capture.view(arguments.view),)
    # Other lenses have proportions of their own.
    if arguments.size and arguments.lens is None and arguments.camera_model is None:
        say_stretched(arguments.size, *((view.camera.width, view.camera.height) for view in views))
    sized = [view.resized(*arguments.size) if arguments.size else view for view in views]
    # Names may contain folders.
    return [replace(view, name=view.name.replace("/", "_")) for view in sized]


def _ring(arguments: argparse.Namespace, capture: Capture) -> list[View]:
    """Returns an orbit around the point that a data set's cameras look at, at their median height and distance."""
    template = capture.views[0].camera
    size = arguments.size or (template.width, template.height)
    up = capture.up if arguments.up is None else unit("up", np.asarray(arguments.up, np.float64))
    focus = capture.focus
    offsets = np.array([view.camera.model.eye - focus for view in capture.views])
    heights = offsets @ up
    levels = offsets - heights[:, None] * up
    height, reach = float(np.median(heights)), float(np.median(np.linalg.norm(levels, axis=1)))
    start = reach * unit("camera", levels[0])
    fov = arguments.fov or math.degrees(2 * math.atan(template.height / 2 / template.paraxial_focal_lengths[1]))
    # The angle of a long lens is small, and in degrees.
    with said() if arguments.fov is None else nullcontext():
        return _numbered(
            [
                Camera.look_at(
                    focus + height * up + axis_angle_rotation(math.radians(angle) * up) @ start,
                    focus,
                    up,
                    fov_degrees=fov,
                    width=size[0],
                    height=size[1],
                )
                for angle in _angles(arguments.orbit)
            ]
        )


def _angles(count: int) -> list[float]:
    """Returns the angles of a full turn in `count` steps, degrees."""
    return [index * 360.0 / count for index in range(count)]


def _numbered(cameras: Sequence[Camera]) -> list[View]:
    return [View(f"frame_{index:04d}", camera) for index, camera in enumerate(cameras)]
