"""Intrinsics and lenses as dimensionless vectors, which trainings refine.

A vector holds offsets from a camera's own values: logarithms of factors of the focal lengths, the principal point in
units of the focal lengths, and coefficients of the lens, in units that each move pixels about equally far. The same
vector therefore fits all cameras of one calibration, even with pictures of different sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf
from typing import Any

import numpy as np

from lumigrad.server.core.errors import InvalidArgumentError
from lumigrad.server.engines.cameras import gaussian_cameras
from lumigrad.server.engines.content import Tensors
from lumigrad.v1 import camera_pb2, render_pb2

INTRINSICS_WIDTH = 4
_OF_LENSES = ("radial", "tangential", "thin_prism")
_POLYNOMIALS = {
    camera_pb2.F_THETA_REFERENCE_PIXEL_DISTANCE_TO_ANGLE: "pixel_distance_to_angle",
}
_OF_WINDSHIELDS = ("horizontal", "vertical")
# Logarithm of about the largest float.
_LARGEST_OFFSET = 709.0


@dataclass(frozen=True)
class _Coefficients:
    """Coefficients of a camera.

    Attributes:
        gradient: The engine's name of their gradient, which may have more columns.
        of: The message that holds them.
        name: Field of the message.
        units: A unit for each coefficient; 0 for coefficients that are not refined.
    """

    gradient: str
    of: Any
    name: str
    units: Sequence[float]


def film_of(camera: camera_pb2.Camera) -> Any:
    """Return the message that holds a camera's principal point, and its focal lengths if it has any."""
    if camera.HasField("opencv"):
        return camera.opencv
    lens = camera.sensor.WhichOneof("lens")
    return getattr(camera.sensor, str(lens))


def layout(camera: camera_pb2.Camera) -> tuple[Any, ...]:
    """Return what cameras of one calibration must have in common: model, lens and the numbers of coefficients."""
    film = film_of(camera)
    return film.DESCRIPTOR.name, *((part.gradient, len(part.units)) for part in _coefficients(camera))


def lens_width(camera: camera_pb2.Camera) -> int:
    """Return the number of coefficients of a camera's lens and windshield."""
    return sum(len(part.units) for part in _coefficients(camera))


def refined(camera: camera_pb2.Camera, intrinsics: Sequence[float], lens: Sequence[float]) -> camera_pb2.Camera:
    """Return a copy of a camera with these offsets, either of which may be empty."""
    result = camera_pb2.Camera()
    result.CopyFrom(camera)
    if intrinsics:
        film, (x, y) = film_of(result), _focal_lengths(camera)
        if hasattr(film, "fx"):
            film.fx *= _factor(intrinsics[0])
            film.fy *= _factor(intrinsics[1])
        film.cx += x * intrinsics[2]
        film.cy += y * intrinsics[3]
    begin = 0
    for part in _coefficients(result) if lens else ():
        offsets = lens[begin : begin + len(part.units)]
        begin += len(part.units)
        values = getattr(part.of, part.name)
        values[:] = [value + unit * offset for value, unit, offset in zip(values, part.units, offsets, strict=True)]
    return result


def intrinsics_gradient(camera: camera_pb2.Camera, intrinsics: Sequence[float], gradient: np.ndarray) -> np.ndarray:
    """Return the gradient [4] of a camera's offsets, from that of the refined fx fy cx cy in pixels."""
    x, y = _focal_lengths(camera)
    has_focal = hasattr(film_of(camera), "fx")
    focal = [x * _factor(intrinsics[0]), y * _factor(intrinsics[1])] if has_focal else [0.0, 0.0]
    found: np.ndarray = gradient * np.array([*focal, x, y])
    return found


def lens_gradient(camera: camera_pb2.Camera, gradients: Tensors, row: int, width: int) -> np.ndarray:
    """Return the gradient [width] of a camera's offsets, from row `row` of the engine's gradients of coefficients."""
    found = np.zeros(width)
    begin = 0
    for part in _coefficients(camera):
        count = len(part.units)
        found[begin : begin + count] = gradients[part.gradient][row, :count].numpy() * part.units
        begin += count
    return found


def is_valid(camera: camera_pb2.Camera) -> bool:
    """Return whether the engine accepts a camera's lens."""
    try:
        gaussian_cameras(render_pb2.RenderSpec(cameras=[camera]), "start.views")
    except InvalidArgumentError:
        return False
    return True


def _factor(offset: float) -> float:
    """Return the factor of a focal length; infinite on overflow, after which the step is undone."""
    return exp(offset) if offset < _LARGEST_OFFSET else inf


def _focal_lengths(camera: camera_pb2.Camera) -> tuple[float, float]:
    """Return the pixels per unit of angle on the axis, or per scene unit for an orthographic lens."""
    film = film_of(camera)
    if isinstance(film, camera_pb2.FThetaLens):
        polynomial = getattr(film, _reference(film))
        slope = polynomial[1] if film.reference not in _POLYNOMIALS else 1.0 / polynomial[1]
        return slope, slope
    return abs(film.fx), abs(film.fy)


def _reference(lens: camera_pb2.FThetaLens) -> str:
    return _POLYNOMIALS.get(lens.reference, "angle_to_pixel_distance")


def _coefficients(camera: camera_pb2.Camera) -> list[_Coefficients]:
    if not camera.HasField("sensor"):
        return []
    lens, parts = film_of(camera), []
    for name in _OF_LENSES:
        if name in lens.DESCRIPTOR.fields_by_name:
            parts.append(_Coefficients(f"lens_{name}", lens, name, [1.0] * len(getattr(lens, name))))
    if isinstance(lens, camera_pb2.FThetaLens):
        name = _reference(lens)
        parts.append(_Coefficients(f"lens_{name}", lens, name, _polynomial_units(lens, name)))
        parts.append(_Coefficients("lens_linear", lens, "linear", [1.0] * len(lens.linear)))
    if camera.sensor.HasField("windshield"):
        for name in _OF_WINDSHIELDS:
            of = camera.sensor.windshield
            parts.append(_Coefficients(f"windshield_{name}", of, name, [1.0] * len(getattr(of, name))))
    return parts


def _polynomial_units(lens: camera_pb2.FThetaLens, name: str) -> list[float]:
    """Return units in which each coefficient but the constant one moves the lens's edge as far as focal lengths do."""
    polynomial = getattr(lens, name)
    # The largest angle, or the approximate distance in pixels at which it is seen.
    edge = lens.max_angle / (polynomial[1] if lens.reference in _POLYNOMIALS else 1.0)
    return [0.0, *(polynomial[1] * edge ** (1 - power) for power in range(1, len(polynomial)))]
