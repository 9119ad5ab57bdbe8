"""Cameras of commands: framing, orbits, look-at."""

from __future__ import annotations

import argparse
import inspect
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Float32, Float64
from lumigrad.client.base.cautions import said, warn_of_radians
from lumigrad.client.commands.options import AXES, direction, numbers, option, positive_number
from lumigrad.client.datasets import Capture
from lumigrad.client.datasets.calibration import TYPE, Calibration
from lumigrad.client.datasets.fields import Fields, checked_rotation, read_json
from lumigrad.client.errors import InvalidArgument, Violation
from lumigrad.client.formats.beside import SceneView, read_offset
from lumigrad.client.shell.parser import meant
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import OpenCVModel, SensorModel
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.rotations import axis_angle_rotation, look_rotation, orbit_direction, unit, why_no_rotation
from lumigrad.client.values.spheres import Spheres

# The share of the opacity that is ignored at either end.
_STRAYS = 0.005
# Distances from the median, in median deviations: an object, however long, ends within the first and is framed as a
# whole; of open scenes, such as a place with its surroundings, cameras frame the dense part within the second.
_OBJECT_DEVIATIONS, _DENSE_DEVIATIONS = 10.0, 3.0
_MARGIN = 1.08
_RIM_POINTS = 64
# Sampling for the range of depths: the least visible opacity, and how many points and cameras are sampled.
_VISIBLE = 0.1
_SAMPLES, _SAMPLED_CAMERAS = 20000, 16
FOV_DEGREES = 40.0


@dataclass(frozen=True)
class Extent:
    """An upright cylinder around nearly all of a scene.

    Attributes:
        center: [3] world frame, scene units.
        up: [3] the direction of its axis.
        radius: scene units.
        half_height: scene units.
    """

    center: Float64
    up: Float64
    radius: float
    half_height: float

    @staticmethod
    def of(gaussians: Gaussians, up: Float64) -> Extent:
        """Returns the extent of Gaussians, weighted by their opacities; `up` is a unit vector."""
        if not len(gaussians):
            return Extent(np.zeros(3), up, 1.0, 1.0)
        means = gaussians.means.reshape(-1, 3).astype(np.float64)
        weights = gaussians.opacities.reshape(-1).astype(np.float64)
        weights = weights if weights.any() else np.ones(len(means))
        level = orbit_direction(0.0, 0.0, up)
        axes = np.stack([level, np.cross(up, level), up])
        places, sizes = means @ axes.T, _sizes(gaussians)
        low, high = np.array([_span(places[:, axis], sizes, weights) for axis in range(3)]).T
        center = (low + high) / 2
        across = np.linalg.norm(places[:, :2] - center[:2], axis=1)
        both = np.concatenate([across, -across])
        radius = _span(both, np.tile(sizes, 2), np.tile(weights, 2))[1]
        height = float(high[2] - low[2]) / 2
        smallest = 1e-6 + 1e-3 * max(radius, height)
        return Extent(axes.T @ center, up, max(radius, smallest), max(height, smallest))

    def distance(self, elevation_degrees: float, fov_degrees: float, width: int, height: int) -> float:
        """Returns the distance, scene units, at which a camera at this elevation shows the cylinder from every side."""
        toward = orbit_direction(0.0, elevation_degrees, self.up)
        rotation = look_rotation(-toward, self.up)
        vertical = math.tan(math.radians(fov_degrees) / 2)
        tangents = np.array([vertical * width / height, vertical])
        level = orbit_direction(0.0, 0.0, self.up)
        side = np.cross(self.up, level)
        angles = np.linspace(0.0, 2 * math.pi, _RIM_POINTS, endpoint=False)
        rim = self.radius * (np.cos(angles)[:, None] * level + np.sin(angles)[:, None] * side)
        points = np.concatenate([rim + self.half_height * self.up, rim - self.half_height * self.up]) @ rotation.T
        # A point at (x, y, z) from the centre is visible if |x| <= tangent * (distance + z).
        needed = (np.abs(points[:, :2]) / tangents - points[:, 2:]).max()
        return _MARGIN * float(needed)


def enclosing_ball(spheres: Spheres) -> tuple[Float64, float]:
    """Returns centre [3] and radius of a ball around nearly all spheres, robust to outliers."""
    if not len(spheres):
        return np.zeros(3), 1.0
    positions = spheres.positions.astype(np.float64)
    low, high = np.percentile(positions, [2, 98], axis=0)
    center = (low + high) / 2
    reach = np.linalg.norm(positions - center, axis=1) + spheres.radii
    return center, float(np.percentile(reach, 98))


def depth_range(points: Float32, opacities: Float32 | None, cameras: Sequence[Camera]) -> tuple[float, float]:
    """Returns the least and largest depth, along the view direction, of nearly all visible points; scene units.

    Args:
        points: [N, 3] world frame.
        opacities: [N]; None: all opaque. Nearly transparent points are ignored.
        cameras: OpenCV's cameras and sensors, whose distortion is ignored; others are ignored.
    """
    visible = points if opacities is None else points[opacities > _VISIBLE]
    sample = visible[:: max(1, len(visible) // _SAMPLES)].astype(np.float64)
    found = [np.zeros(0)]
    for camera in cameras[:: max(1, len(cameras) // _SAMPLED_CAMERAS)]:
        model = camera.model
        if isinstance(model, OpenCVModel | SensorModel):
            x, y, depth = model.rotation @ sample.T + model.translation[:, None]
            fx, fy = camera.paraxial_focal_lengths
            inside = (depth > 0) & (np.abs(x * fx) < depth * camera.width)
            found.append(depth[inside & (np.abs(y * fy) < depth * camera.height)])
    depths = np.concatenate(found)
    if not len(depths):
        return 0.0, 1.0
    low, high = np.percentile(depths, [0.5, 98])
    return float(low), max(float(high), float(low) * 1.001 + 1e-9)


def _sizes(gaussians: Gaussians) -> Float64:
    """Returns [N], the visible radius of each Gaussian: two standard deviations along its middle axis."""
    if gaussians.scales is None:
        return np.zeros(len(gaussians))
    return 2.0 * np.median(gaussians.scales.reshape(-1, 3), axis=1).astype(np.float64)


def _span(values: Float64, sizes: Float64, weights: Float64) -> tuple[float, float]:
    """Returns the ends of an interval with nearly all of the weight, or with its dense part if the rest is far away."""
    low = _quantile(values - sizes, weights, _STRAYS)
    middle = _quantile(values, weights, 0.5)
    high = _quantile(values + sizes, weights, 1 - _STRAYS)
    deviation = _quantile(np.abs(values - middle) + sizes, weights, 0.5)
    if max(middle - low, high - middle) <= _OBJECT_DEVIATIONS * deviation:
        return low, high
    reach = _DENSE_DEVIATIONS * deviation
    return max(low, middle - reach), min(high, middle + reach)


def _quantile(values: Float64, weights: Float64, share: float) -> float:
    order = np.argsort(values)
    sums = np.cumsum(weights[order])
    return float(np.interp(share * sums[-1], sums, values[order]))


HELP = """\
"orbit AZIMUTH,ELEVATION[,DISTANCE]" in degrees; "look-at X,Y,Z X,Y,Z", eye and target; the .json file of a camera;
or a data set, its folder or .json file (docs/formats.md has all files; default: the view beside the scene,
SCENE.view.json, which `lumigrad fit` writes, else "orbit 30,20")"""


# Arguments of cameras that are options of their own; the others are parts of --camera.
_OPTIONS = ("fov_degrees", "width", "height", "up")


@contextmanager
def _by_options(view: View) -> Iterator[None]:
    """Names the options that a camera's arguments come from in errors; --target, say, is the worker's address.

    Whether the angle of a saved view is in radians was asked when its file was read.
    """
    is_saved = view.saved is not None and view.fov_degrees == view.saved.fov_degrees
    try:
        with said() if is_saved else nullcontext():
            yield
    except InvalidArgument as error:
        found = [
            each
            if each.field in _OPTIONS
            else Violation("camera", f"{each.field.removesuffix('_degrees')}: {each.description}")
            for each in error.violations
        ]
        text = "; ".join(f"{each.field}: {each.description}" for each in found)
        raise InvalidArgument(text, violations=tuple(found)) from error


@dataclass(frozen=True)
class View:
    """The other options that a camera depends on."""

    width: int
    height: int
    fov_degrees: float
    up: tuple[float, float, float]
    saved: SceneView | None = None


@dataclass(frozen=True)
class Orbit:
    """A camera on an orbit around the centre of the scene."""

    azimuth_degrees: float
    elevation_degrees: float
    distance: float | None = None

    def camera(self, scene: Spheres | Gaussians, view: View) -> Camera:
        """Returns the camera at the given distance, or where the scene fills the image."""
        return self.turn(scene, view, (0.0,))[0]

    def turn(self, scene: Spheres | Gaussians, view: View, angles_degrees: Sequence[float]) -> list[Camera]:
        """Returns the cameras rotated around the scene by these angles."""
        if view.saved is not None:
            center = np.asarray(view.saved.target, np.float64)
            fitting = float(np.linalg.norm(center - view.saved.eye))
        elif isinstance(scene, Gaussians):
            extent = Extent.of(scene, unit("up", np.asarray(view.up, np.float64)))
            center = extent.center
            fitting = extent.distance(self.elevation_degrees, view.fov_degrees, view.width, view.height)
        else:
            center, radius = enclosing_ball(scene)
            half_angle = math.radians(view.fov_degrees) / 2
            narrow = min(half_angle, math.atan(math.tan(half_angle) * view.width / view.height))
            fitting = 1.1 * radius / math.sin(narrow)
        distance = fitting if self.distance is None else self.distance
        size: dict[str, Any] = {"fov_degrees": view.fov_degrees, "width": view.width, "height": view.height}
        with _by_options(view):
            return [
                Camera.orbit(center, distance, self.azimuth_degrees + angle, self.elevation_degrees, view.up, **size)
                for angle in angles_degrees
            ]


@dataclass(frozen=True)
class Saved:
    """The view that is saved beside the scene."""

    view: SceneView

    def camera(self, scene: Spheres | Gaussians, view: View) -> Camera:
        """Returns its camera, with the size, field of view and up direction of `view`."""
        return self.turn(scene, view, (0.0,))[0]

    def turn(self, scene: Spheres | Gaussians, view: View, angles_degrees: Sequence[float]) -> list[Camera]:
        """Returns the cameras rotated around the point looked at by these angles."""
        target, up = np.asarray(self.view.target), unit("up", np.asarray(view.up, np.float64))
        turns = [axis_angle_rotation(math.radians(angle) * up) for angle in angles_degrees]
        eyes = [target + turn @ (np.asarray(self.view.eye) - target) for turn in turns]
        size: dict[str, Any] = {"fov_degrees": view.fov_degrees, "width": view.width, "height": view.height}
        with _by_options(view):
            return [Camera.look_at(eye, target, up, **size) for eye in eyes]


@dataclass(frozen=True)
class LookAt:
    """A camera at one point that looks at another."""

    eye: tuple[float, ...]
    target: tuple[float, ...]

    def camera(self, scene: Spheres | Gaussians, view: View) -> Camera:
        """Returns the camera, which does not depend on the scene."""
        with _by_options(view):
            return Camera.look_at(
                self.eye, self.target, view.up, fov_degrees=view.fov_degrees, width=view.width, height=view.height
            )


@dataclass(frozen=True)
class CameraFile:
    """A JSON file of one camera, or the file or folder of a data set."""

    path: Path

    def camera(self, scene: Spheres | Gaussians, view: View) -> Camera:
        """Returns the file's camera; missing sizes, up and fov_degrees come from the options."""
        try:
            values: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InvalidArgument.of("camera", f"expected a JSON camera in {self.path}: {error}") from error
        size = {"width": view.width, "height": view.height}
        if isinstance(values, dict) and TYPE in values:
            return self._sensor(Fields(self.path, values))
        try:
            if "parameters" in values:
                return _made(Camera.pulsar, {**size, **values})
            if "fx" in values:
                camera = _made(Camera.opencv, {**size, **values})
                if why := why_no_rotation(np.array(values["rotation"], np.float64)):
                    raise InvalidArgument.of("rotation", f"expected an orthonormal one of determinant 1, got {why}")
                return camera
            values.pop("background", None)
            look: dict[str, Any] = {"fov_degrees": view.fov_degrees, "up": view.up, **size}
            if "fov_degrees" not in values:
                return _made(Camera.look_at, {**look, **values})
            with said():
                camera = _made(Camera.look_at, {**look, **values})
            warn_of_radians(f"{self.path}: fov_degrees", values["fov_degrees"])
            return camera
        except (InvalidArgument, TypeError) as error:
            raise InvalidArgument.of("camera", f"expected a JSON camera in {self.path}: {error}") from error

    def _sensor(self, fields: Fields) -> Camera:
        """Returns the camera of a file with a calibration of NCore's."""
        calibration = Calibration.read(fields)
        ends = ("", "end_") if calibration.shutter != "global" else ("",)
        poses = [
            (
                checked_rotation(fields, f"{end}rotation", fields.array(f"{end}rotation", (3, 3))),
                fields.array(f"{end}translation", (3,)),
            )
            for end in ends
        ]
        return calibration.camera(*poses)

    def capture(self, scene: Path | None) -> Capture | None:
        """Returns the data set in the frame of a scene's file, see `read_offset`; None for a file of one camera."""
        if not self.path.is_dir():
            values = read_json(self.path)
            if not isinstance(values, list) and not (isinstance(values, dict) and "frames" in values):
                return None
        offset = None if scene is None else read_offset(scene)
        if offset is None:
            return Capture.load(self.path)
        with said():
            return Capture.load(self.path).moved(-np.array(offset))


Aim = Orbit | Saved | LookAt | CameraFile
DEFAULT = Orbit(30.0, 20.0)


def resolved(
    aimed: Aim | None, scene: Spheres | Gaussians, saved: SceneView | None, options: dict[str, Any]
) -> tuple[Aim, View]:
    """Returns the camera and the options that it depends on, with defaults from the view beside the scene.

    Args:
        aimed: --camera; None: not given.
        scene: the scene.
        saved: the view beside it; None without one.
        options: width and height, and `fov_degrees` and `up`, None where they were not given.
    """
    usual = {"fov_degrees": FOV_DEGREES, "up": usual_up(scene)}
    if saved is not None:
        usual = {"fov_degrees": saved.fov_degrees, "up": saved.up}
    given = {name: value for name, value in options.items() if value is not None}
    view = View(**{**usual, **given}, saved=saved)
    return aimed or (DEFAULT if saved is None else Saved(saved)), view


def usual_up(scene: Spheres | Gaussians) -> tuple[float, float, float]:
    """Returns the default up direction: y down for Gaussians, trained with the axes of COLMAP's first photograph."""
    return AXES["y" if isinstance(scene, Spheres) else "-y"]


def _made(make: Callable[..., Camera], values: dict[str, Any]) -> Camera:
    known = inspect.signature(make).parameters
    for name in values:
        if name not in known:
            raise TypeError(f"{name} is not known{meant(name, known)}")
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in values:
            raise TypeError(f"{name} is missing")
    return make(**values)


def add_camera(group: argparse._ActionsContainer) -> None:
    """Declares --camera."""
    group.add_argument("--camera", type=parse, metavar="AIM", help=HELP)


def add_field(group: argparse._ActionsContainer, fov: str, up: str) -> None:
    """Declares --fov and --up, with their descriptions."""
    option(
        group,
        "--fov",
        f"{fov} (default: that of the view beside the scene, else 40)",
        type=positive_number,
        metavar="DEGREES",
    )
    help_text = (
        f"{up}: x, y, z, -x, -y, -z, or X,Y,Z; e.g. --up -z (default: that of the view beside the scene, or up in the "
        "photographs of a data set; else y for spheres, -y for Gaussians)"
    )
    option(group, "--up", help_text, type=direction, metavar="AXIS")


def parse(text: str) -> Aim:
    """Parses --camera."""
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
