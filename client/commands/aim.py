"""The option --camera: where to look from, in words or from a file."""

from __future__ import annotations

import argparse
import inspect
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lumigrad.client.camera import Camera
from lumigrad.client.commands.framing import Extent, enclosing_ball
from lumigrad.client.commands.options import numbers
from lumigrad.client.datasets import Capture
from lumigrad.client.datasets.fields import read_json
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.gaussians import Gaussians
from lumigrad.client.rotations import unit
from lumigrad.client.shell.guess import meant
from lumigrad.client.spheres import Spheres

HELP = """\
"orbit AZIMUTH,ELEVATION[,DISTANCE]" (degrees; fits the scene into the picture if no distance is given),
"look-at X,Y,Z X,Y,Z" (eye and target), a JSON file with either of "eye" and "target"; "fx", "fy", "cx", "cy",
"rotation" and "translation" (OpenCV, world to camera); "parameters" (Pulsar); or a data set: cameras.json (Inria),
transforms.json (nerfstudio) or a folder with them or with COLMAP's files (default: "orbit 30,20")"""


@dataclass(frozen=True)
class View:
    """The other options that a camera depends on."""

    width: int
    height: int
    fov_degrees: float
    up: tuple[float, float, float]


class Aim(Protocol):
    """One way to choose a camera."""

    def camera(self, scene: Spheres | Gaussians, view: View) -> Camera:
        """The camera for a scene."""


@dataclass(frozen=True)
class Orbit:
    """Around the middle of the scene."""

    azimuth_degrees: float
    elevation_degrees: float
    distance: float | None = None

    def camera(self, scene: Spheres | Gaussians, view: View) -> Camera:
        """At the distance given, or where the scene fills the picture."""
        return self.turn(scene, view, (0.0,))[0]

    def turn(self, scene: Spheres | Gaussians, view: View, angles_degrees: Sequence[float]) -> list[Camera]:
        """The same further around the scene, by these angles."""
        if isinstance(scene, Gaussians):
            extent = Extent.of(scene, unit("up", np.asarray(view.up, np.float64)))
            center = extent.center
            fitting = extent.distance(self.elevation_degrees, view.fov_degrees, view.width, view.height)
        else:
            center, radius = enclosing_ball(scene)
            half_angle = math.radians(view.fov_degrees) / 2
            narrow = min(half_angle, math.atan(math.tan(half_angle) * view.width / view.height))
            fitting = 1.1 * radius / math.sin(narrow)
        return [
            Camera.orbit(
                center,
                fitting if self.distance is None else self.distance,
                self.azimuth_degrees + angle,
                self.elevation_degrees,
                view.up,
                fov_degrees=view.fov_degrees,
                width=view.width,
                height=view.height,
            )
            for angle in angles_degrees
        ]


@dataclass(frozen=True)
class LookAt:
    """From one point towards another."""

    eye: tuple[float, ...]
    target: tuple[float, ...]

    def camera(self, scene: Spheres | Gaussians, view: View) -> Camera:
        """Does not depend on the scene."""
        return Camera.look_at(
            self.eye, self.target, view.up, fov_degrees=view.fov_degrees, width=view.width, height=view.height
        )


@dataclass(frozen=True)
class CameraFile:
    """A JSON file or a folder: of one camera, or of a data set."""

    path: Path

    def camera(self, scene: Spheres | Gaussians, view: View) -> Camera:
        """What the file says; sizes, up and fov_degrees come from the options if it does not say them."""
        try:
            values: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InvalidArgument.of("camera", f"expected a JSON camera in {self.path}: {error}") from error
        size = {"width": view.width, "height": view.height}
        try:
            if "parameters" in values:
                return _made(Camera.pulsar, {**size, **values})
            if "fx" in values:
                return _made(Camera.opencv, {**size, **values})
            return _made(Camera.look_at, {**vars(view), **values})
        except (InvalidArgument, TypeError) as error:
            raise InvalidArgument.of("camera", f"expected a JSON camera in {self.path}: {error}") from error

    def capture(self) -> Capture | None:
        """The data set; None for a file of one camera."""
        if self.path.is_dir():
            return Capture.load(self.path)
        values = read_json(self.path)
        several = isinstance(values, list) or (isinstance(values, dict) and "frames" in values)
        return Capture.load(self.path) if several else None


def _made(make: Callable[..., Camera], values: dict[str, Any]) -> Camera:
    known = inspect.signature(make).parameters
    for name in values:
        if name not in known:
            raise TypeError(f"{name} is not known{meant(name, known)}")
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in values:
            raise TypeError(f"{name} is missing")
    return make(**values)


def parse(text: str) -> Aim:
    """The value of --camera."""
    kind, *rest = text.split() or [""]
    if kind == "orbit" and len(rest) == 1:
        angles = numbers(rest[0])
        if len(angles) in (2, 3):
            return Orbit(*angles)
    if kind == "look-at" and len(rest) == 2:
        eye, target = (numbers(part) for part in rest)
        if len(eye) == len(target) == 3:
            return LookAt(eye, target)
    if text and (text.endswith(".json") or Path(text).is_dir()):
        return CameraFile(Path(text))
    raise argparse.ArgumentTypeError(
        f'expected "orbit 30,20", "look-at 0,1,5 0,0,0", a .json file or the folder of a data set, got {text!r}'
    )
