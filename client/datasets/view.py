"""Photograph of a capture: its camera, intrinsics and file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float64
from lumigrad.client.datasets.calibration import scaled_lens
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import OpenCVModel, Projection, SensorModel
from lumigrad.client.values.lenses import FisheyeLens, Lens, PinholeLens

# The parameters of each model in COLMAP's order.
PARAMETERS = {
    "SIMPLE_PINHOLE": ("f", "cx", "cy"),
    "PINHOLE": ("fx", "fy", "cx", "cy"),
    "SIMPLE_RADIAL": ("f", "cx", "cy", "k1"),
    "RADIAL": ("f", "cx", "cy", "k1", "k2"),
    "OPENCV": ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2"),
    "FULL_OPENCV": ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6"),
    "OPENCV_FISHEYE": ("fx", "fy", "cx", "cy", "k1", "k2", "k3", "k4"),
    "SIMPLE_RADIAL_FISHEYE": ("f", "cx", "cy", "k1"),
    "RADIAL_FISHEYE": ("f", "cx", "cy", "k1", "k2"),
    "THIN_PRISM_FISHEYE": ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2", "k3", "k4", "sx1", "sy1"),
    "SIMPLE_DIVISION": ("f", "cx", "cy", "k"),
    "DIVISION": ("fx", "fy", "cx", "cy", "k"),
    "SIMPLE_FISHEYE": ("f", "cx", "cy"),
    "FISHEYE": ("fx", "fy", "cx", "cy"),
}
READABLE = ", ".join(PARAMETERS)
_DISTORTION = ("k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6")
_OF_PRISMS = ("p1", "p2", "sx1", "sy1")


@dataclass(frozen=True)
class Intrinsics:
    """A calibrated lens.

    Attributes:
        model: one of `PARAMETERS`.
        width: picture width in pixels.
        height: picture height in pixels.
        values: values of the model's parameters; absent ones are 0.
    """

    model: str
    width: int
    height: int
    values: dict[str, float]

    @property
    def unrenderable(self) -> str:
        """The reason why it cannot be rendered; empty if it can."""
        if self.model not in PARAMETERS:
            return f"the camera model {self.model} is not supported; expected {READABLE}"
        if self._is_fisheye and any(self.values.get(name, 0.0) for name in _OF_PRISMS):
            return f"{self.model} is supported without p1, p2, sx1 and sy1 only; undistort the pictures"
        if self.values.get("k"):
            return f"{self.model} is supported with k = 0 only, got {self.values['k']:g}; undistort the pictures"
        return ""

    @property
    def _is_fisheye(self) -> bool:
        return self.model.endswith("FISHEYE")

    def camera(self, rotation: Float64, translation: Float64, sensors: bool) -> Camera:
        """Returns the camera at a pose, world to camera: x right, y down, z forward.

        It is a sensor with `sensors`, or if only sensors support its lens: a fisheye with coefficients.
        """
        values = self.values
        coefficients = [values.get(name, 0.0) for name in _DISTORTION]
        if sensors or (self._is_fisheye and any(coefficients)):
            return Camera.sensor(self._lens(coefficients), rotation, translation, self.width, self.height)
        # OpenCV accepts 4, 5 or 8 coefficients: the smallest number that has all that are not 0.
        kept = 8 if any(coefficients[5:]) else 5 if coefficients[4] else 4 if any(coefficients) else 0
        projection: Projection = "fisheye" if self._is_fisheye else "pinhole"
        return Camera.opencv(
            *self._film,
            rotation,
            translation,
            self.width,
            self.height,
            model=projection,
            distortion=coefficients[:kept],
        )

    @property
    def _film(self) -> tuple[float, float, float, float]:
        """Focal lengths and principal point, pixels."""
        values, focal = self.values, self.values.get("f", 0.0)
        center = values.get("cx", self.width / 2), values.get("cy", self.height / 2)
        return values.get("fx", focal), values.get("fy", focal), *center

    def _lens(self, coefficients: Sequence[float]) -> Lens:
        k1, k2, p1, p2, *others = coefficients
        film: dict[str, Any] = dict(zip(("fx", "fy", "cx", "cy"), self._film, strict=True))
        if self._is_fisheye:
            return FisheyeLens(**film, radial=(k1, k2, *others[:2]))
        if not any(coefficients):
            return PinholeLens(**film)
        while others and not others[-1]:
            others.pop()
        return PinholeLens(**film, radial=(k1, k2, *others), tangential=(p1, p2))


@dataclass(frozen=True)
class ColmapImage:
    """A photograph with its pose.

    Attributes:
        name: name of its file.
        image_id: its id, which tracks of points name.
        camera_id: id of its camera.
        quaternion: (w, x, y, z) world to camera; x right, y down, z forward.
        translation: [3] world to camera.
    """

    name: str
    image_id: int
    camera_id: int
    quaternion: tuple[float, float, float, float]
    translation: Float64


@dataclass(frozen=True, eq=False)
class Track:
    """A point of a reconstruction, and the photographs that see it.

    Attributes:
        place: [3] scene units.
        image_ids: [T] ids of the photographs; a photograph may be named twice.
    """

    place: Float64
    image_ids: npt.NDArray[np.int64]


@dataclass(frozen=True)
class View:
    """One view of a scene.

    Attributes:
        name: unique in its data set.
        camera: intrinsics and pose, and the photograph's size at calibration.
        image: path of the photograph; None if there is no such file.
        mask: path of an image that is black where the photograph is ignored; None without one. A data set may name a
            file that is not there.
        file: the photograph's path as the data set's file has it; empty if the view comes from no file.
    """

    name: str
    camera: Camera
    image: Path | None = None
    mask: Path | None = None
    file: str = ""

    def resized(self, width: int, height: int) -> View:
        """Returns a copy with another image size, in pixels.

        Args:
            width: picture width in pixels.
            height: picture height in pixels.

        Raises:
            InvalidArgument: a camera whose picture has one size only, such as a lidar's.

        Example:
            small = capture.view(0).resized(32, 24)
        """
        return replace(self, camera=resized(self.camera, width, height))


@dataclass(frozen=True)
class Split:
    """The views that a data set sets apart for a fit, by their names.

    Attributes:
        fitted: the views to fit.
        held_out: the views to evaluate the fit with; some may be fitted, too.
    """

    fitted: frozenset[str]
    held_out: frozenset[str]


def resized(camera: Camera, width: int, height: int) -> Camera:
    """Returns a camera with the same view and another image size; cameras of data sets only.

    Args:
        camera: the camera.
        width: picture width in pixels.
        height: picture height in pixels.

    Raises:
        InvalidArgument: a camera whose picture has one size only, such as a lidar's.

    Example:
        small = resized(camera, 32, 24)
    """
    if (width, height) == (camera.width, camera.height):
        return camera
    model, x, y = camera.model, width / camera.width, height / camera.height
    if isinstance(model, SensorModel) and model.rays is None:
        return Camera(width, height, replace(model, lens=scaled_lens(model.lens, x, y)))
    if not isinstance(model, OpenCVModel):
        raise InvalidArgument.of("size", f"expected the camera's own, {camera.width}x{camera.height}")
    return Camera(width, height, replace(model, fx=model.fx * x, fy=model.fy * y, cx=model.cx * x, cy=model.cy * y))
