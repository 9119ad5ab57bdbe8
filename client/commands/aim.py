"""The option --camera: where to look from, in words or from a file."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lumigrad.client.arrays import Float64
from lumigrad.client.camera import Camera
from lumigrad.client.commands.options import numbers
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.spheres import Spheres

HELP = """\
"orbit AZIMUTH,ELEVATION[,DISTANCE]" (degrees; fits the cloud into the picture if no distance is given),
"look-at X,Y,Z X,Y,Z" (eye and target), or a JSON file with either of "eye" and "target"; "fx", "fy", "cx", "cy",
"rotation" and "translation" (OpenCV, world to camera); "parameters" (Pulsar) (default: "orbit 30,20")"""


@dataclass(frozen=True)
class View:
    """The other options that a camera depends on."""

    width: int
    height: int
    fov_degrees: float
    up: tuple[float, float, float]


class Aim(Protocol):
    """One way to choose a camera."""

    def camera(self, spheres: Spheres, view: View) -> Camera:
        """The camera for a cloud."""


@dataclass(frozen=True)
class Orbit:
    """Around the middle of the cloud."""

    azimuth_degrees: float
    elevation_degrees: float
    distance: float | None = None

    def camera(self, spheres: Spheres, view: View) -> Camera:
        """At the distance given, or where the cloud fills the picture."""
        center, radius = enclosing_ball(spheres)
        half_angle = math.radians(view.fov_degrees) / 2
        narrow = min(half_angle, math.atan(math.tan(half_angle) * view.width / view.height))
        distance = self.distance if self.distance is not None else 1.1 * radius / math.sin(narrow)
        return Camera.orbit(
            center,
            distance,
            self.azimuth_degrees,
            self.elevation_degrees,
            view.up,
            fov_degrees=view.fov_degrees,
            width=view.width,
            height=view.height,
        )


@dataclass(frozen=True)
class LookAt:
    """From one point towards another."""

    eye: tuple[float, ...]
    target: tuple[float, ...]

    def camera(self, spheres: Spheres, view: View) -> Camera:
        """Does not depend on the cloud."""
        return Camera.look_at(
            self.eye, self.target, view.up, fov_degrees=view.fov_degrees, width=view.width, height=view.height
        )


@dataclass(frozen=True)
class CameraFile:
    """A JSON file."""

    path: Path

    def camera(self, spheres: Spheres, view: View) -> Camera:
        """What the file says; sizes, up and fov_degrees come from the options if it does not say them."""
        try:
            values: dict[str, Any] = json.loads(self.path.read_text())
            if "parameters" in values:
                return Camera.pulsar(**{"width": view.width, "height": view.height, **values})
            if "fx" in values:
                return Camera.opencv(**{"width": view.width, "height": view.height, **values})
            return Camera.look_at(**{**vars(view), **values})
        except (json.JSONDecodeError, TypeError) as error:
            raise InvalidArgument.of("camera", f"expected a JSON camera in {self.path}: {error}") from error


def parse(text: str) -> Aim:
    """The value of --camera."""
    kind, *rest = text.split()
    if kind == "orbit" and len(rest) == 1:
        angles = numbers(rest[0])
        if len(angles) in (2, 3):
            return Orbit(*angles)
    if kind == "look-at" and len(rest) == 2:
        eye, target = (numbers(part) for part in rest)
        if len(eye) == len(target) == 3:
            return LookAt(eye, target)
    if text.endswith(".json"):
        return CameraFile(Path(text))
    raise argparse.ArgumentTypeError(f'expected "orbit 30,20", "look-at 0,1,5 0,0,0" or a .json file, got {text!r}')


def enclosing_ball(spheres: Spheres) -> tuple[Float64, float]:
    """Centre [3] and radius of a ball around nearly all spheres; strays count little."""
    if not len(spheres):
        return np.zeros(3), 1.0
    positions = spheres.positions.astype(np.float64)
    low, high = np.percentile(positions, [2, 98], axis=0)
    center = (low + high) / 2
    reach = np.linalg.norm(positions - center, axis=1) + spheres.radii
    return center, float(np.percentile(reach, 98))
