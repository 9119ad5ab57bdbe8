"""Cameras of driving simulators, converted to sensors: sizes, lenses and windshields.

Lens parameters refer to the camera's own size, and are scaled for pictures of another size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import Message

from lumigrad.drive.v1 import sensorsim_pb2
from lumigrad.kernels.gaussians.lens import smallest_root
from lumigrad.server.core.limits import Limits, require
from lumigrad.v1 import camera_pb2

# Angle from the axis beyond which Gaussians are sorted by distance, because their Z may be 0 or negative.
_WIDE = math.radians(80.0)
_MOST_PIXELS = 1 << 31
_COEFFICIENTS = 6
# Bisection steps for an angle, down to the precision of float64.
_HALVINGS = 60
_SHUTTERS = {
    sensorsim_pb2.UNKNOWN: camera_pb2.SHUTTER_GLOBAL,
    sensorsim_pb2.GLOBAL: camera_pb2.SHUTTER_GLOBAL,
    sensorsim_pb2.ROLLING_TOP_TO_BOTTOM: camera_pb2.SHUTTER_TOP_TO_BOTTOM,
    sensorsim_pb2.ROLLING_LEFT_TO_RIGHT: camera_pb2.SHUTTER_LEFT_TO_RIGHT,
    sensorsim_pb2.ROLLING_BOTTOM_TO_TOP: camera_pb2.SHUTTER_BOTTOM_TO_TOP,
    sensorsim_pb2.ROLLING_RIGHT_TO_LEFT: camera_pb2.SHUTTER_RIGHT_TO_LEFT,
}
_BACKWARD = sensorsim_pb2.FthetaCameraParam.PIXELDIST_TO_ANGLE


@dataclass(frozen=True)
class Size:
    """The size of a picture, and the factor from the camera's own pixels to those of the picture."""

    width: int
    height: int
    scale: float

    @property
    def corners(self) -> Sequence[tuple[int, int]]:
        """The four corners, pixels."""
        return [(x, y) for x in (0, self.width) for y in (0, self.height)]


def size_of(request: sensorsim_pb2.RGBRenderRequest, limits: Limits, field: str) -> Size:
    """Return the size of a picture, which has the camera's aspect ratio and covers the requested size."""
    width, height, spec = request.resolution_w, request.resolution_h, request.camera_intrinsics
    for name, pixels in (("resolution_w", width), ("resolution_h", height)):
        require(0 < pixels < _MOST_PIXELS, f"{field}{name}", f"1 to {_MOST_PIXELS - 1} pixels", pixels)
    own_width, own_height = spec.resolution_w or width, spec.resolution_h or height
    if width * own_height >= height * own_width:
        size = Size(width, max(1, width * own_height // own_width), width / own_width)
    else:
        size = Size(max(1, height * own_width // own_height), height, height / own_height)
    limit = f"at most {limits.pixels} pixels (the worker's --max-pixels)"
    found = f"{size.width}x{size.height}"
    require(size.width * size.height <= limits.pixels, f"{field}resolution_w", limit, found)
    return size


@dataclass(frozen=True)
class Optics:
    """The lens of a picture.

    Attributes:
        sensor: A sensor with its lens, windshield and shutter, but without poses.
        is_wide: Whether Gaussians must be sorted by distance.
    """

    sensor: camera_pb2.SensorCamera
    is_wide: bool

    @property
    def is_rolling(self) -> bool:
        """Whether rows or columns are exposed one after the other."""
        return self.sensor.shutter != camera_pb2.SHUTTER_GLOBAL


def optics_of(spec: sensorsim_pb2.CameraSpec, size: Size, field: str) -> Optics:
    """Return the lens for pictures of a size; `field` is the path of the camera in the request."""
    model = spec.WhichOneof("camera_param")
    require(model is not None, field, f"one of {', '.join(_LENSES)}", "none")
    require(spec.shutter_type in _SHUTTERS, f"{field}.shutter_type", "a known shutter", spec.shutter_type)
    lens = getattr(spec, str(model))
    where = f"{field}.{model}"
    check_finite_message(lens, where)
    sensor = camera_pb2.SensorCamera(shutter=_SHUTTERS[spec.shutter_type])
    widest = _LENSES[str(model)](lens, sensor, size, where)
    if spec.WhichOneof("external_distortion") is not None:
        _add_windshield(spec.bivariate_windshield_model_param, sensor, f"{field}.bivariate_windshield_model_param")
    return Optics(sensor, widest > _WIDE)


def check_finite_message(message: Message, field: str) -> None:
    """Check all numbers of a message that has no other fields; `field` is its path."""
    for descriptor, value in message.ListFields():
        where = f"{field}.{descriptor.name}"
        if isinstance(value, Message):
            check_finite_message(value, where)
        elif descriptor.is_repeated:
            for index, number in enumerate(value):
                require(math.isfinite(number), f"{where}[{index}]", "a finite number", number)
        else:
            require(math.isfinite(value), where, "a finite number", value)


def _padded(values: Sequence[float], most: int, field: str) -> list[float]:
    """Return coefficients, filled up with zeros; empty if all are 0."""
    require(len(values) <= most, field, f"at most {most} coefficients", len(values))
    return [*values, *[0.0] * (most - len(values))] if any(values) else []


def _film(
    lens: sensorsim_pb2.OpenCVPinholeCameraParam | sensorsim_pb2.OpenCVFisheyeCameraParam, size: Size, field: str
) -> dict[str, Any]:
    _check_center(lens, field)
    for name in ("focal_length_x", "focal_length_y"):
        require(getattr(lens, name) > 0.0, f"{field}.{name}", "a focal length above 0, pixels", getattr(lens, name))
    return {
        "fx": lens.focal_length_x * size.scale,
        "fy": lens.focal_length_y * size.scale,
        "cx": lens.principal_point_x * size.scale,
        "cy": lens.principal_point_y * size.scale,
    }


def _check_center(lens: Any, field: str) -> None:
    for name in ("principal_point_x", "principal_point_y"):
        value = getattr(lens, name)
        require(abs(value) <= _MOST_PIXELS, f"{field}.{name}", f"at most {_MOST_PIXELS} pixels either way", value)


def _pinhole(
    lens: sensorsim_pb2.OpenCVPinholeCameraParam, sensor: camera_pb2.SensorCamera, size: Size, field: str
) -> float:
    made = camera_pb2.PinholeLens(
        **_film(lens, size, field),
        radial=_padded(lens.radial_coeffs, 6, f"{field}.radial_coeffs"),
        tangential=_padded(lens.tangential_coeffs, 2, f"{field}.tangential_coeffs"),
        thin_prism=_padded(lens.thin_prism_coeffs, 4, f"{field}.thin_prism_coeffs"),
    )
    sensor.pinhole.CopyFrom(made)
    return 0.0


def _angle(given: float, furthest: float, field: str) -> float:
    """Return the largest visible angle: the given one, or else that of the furthest corner."""
    require(given >= 0.0, f"{field}.max_angle", "an angle >= 0, radians", given)
    return min(given or furthest, math.pi)


def _fisheye(
    lens: sensorsim_pb2.OpenCVFisheyeCameraParam, sensor: camera_pb2.SensorCamera, size: Size, field: str
) -> float:
    film = _film(lens, size, field)
    radial = _padded(lens.radial_coeffs, 4, f"{field}.radial_coeffs")
    rising = [0.0] * 10
    rising[1::2] = [1.0, *(radial or [0.0] * 4)]
    distance = max(math.hypot((x - film["cx"]) / film["fx"], (y - film["cy"]) / film["fy"]) for x, y in size.corners)
    widest = _angle(lens.max_angle, _angle_at(rising, distance), field)
    sensor.fisheye.CopyFrom(camera_pb2.FisheyeLens(**film, radial=radial, max_angle=widest, behind=True))
    return widest


def _ftheta(lens: sensorsim_pb2.FthetaCameraParam, sensor: camera_pb2.SensorCamera, size: Size, field: str) -> float:
    known = (_BACKWARD, sensorsim_pb2.FthetaCameraParam.ANGLE_TO_PIXELDIST)
    limit = "PIXELDIST_TO_ANGLE or ANGLE_TO_PIXELDIST"
    require(lens.reference_poly in known, f"{field}.reference_poly", limit, lens.reference_poly)
    for name in ("pixeldist_to_angle_poly", "angle_to_pixeldist_poly"):
        values = getattr(lens, name)
        limit = f"at most {_COEFFICIENTS} coefficients"
        require(len(values) <= _COEFFICIENTS, f"{field}.{name}", limit, len(values))
    _check_center(lens, field)
    is_backward = lens.reference_poly == _BACKWARD
    backward = [c * size.scale**-power for power, c in enumerate(lens.pixeldist_to_angle_poly)]
    forward = [c * size.scale for c in lens.angle_to_pixeldist_poly]
    reference, name = (backward, "pixeldist_to_angle_poly") if is_backward else (forward, "angle_to_pixeldist_poly")
    rises = len(reference) > 1 and reference[1] > 0.0
    require(rises, f"{field}.{name}", "a polynomial that rises at 0: its second coefficient is above 0", reference)
    cde = lens.linear_cde
    linear = [cde.linear_c, cde.linear_d, cde.linear_e]
    c, d, e = linear = linear if any(linear) else [1.0, 0.0, 0.0]
    require(abs(c - d * e) > 1e-8, f"{field}.linear_cde", "c - d e other than 0", linear)
    # The centre of the first pixel is at 0 in the calibration, and at 0.5 in our cameras.
    cx, cy = ((value + 0.5) * size.scale for value in (lens.principal_point_x, lens.principal_point_y))
    inverse = np.linalg.inv([[c, d], [e, 1.0]])
    distance = max(float(np.linalg.norm(inverse @ (x - cx, y - cy))) for x, y in size.corners)
    furthest = _value(reference, min(distance, _fold(reference))) if is_backward else _angle_at(reference, distance)
    widest = _angle(lens.max_angle, furthest, field)
    made = camera_pb2.FThetaLens(
        cx=cx,
        cy=cy,
        reference=camera_pb2.F_THETA_REFERENCE_PIXEL_DISTANCE_TO_ANGLE
        if is_backward
        else camera_pb2.F_THETA_REFERENCE_ANGLE_TO_PIXEL_DISTANCE,
        angle_to_pixel_distance=forward,
        pixel_distance_to_angle=backward,
        max_angle=widest,
        linear=linear,
    )
    sensor.ftheta.CopyFrom(made)
    return widest


# Functions that add a lens to a sensor and return its largest visible angle, or 0 for a pinhole.
_LENSES: Mapping[str, Callable[[Any, camera_pb2.SensorCamera, Size, str], float]] = {
    "ftheta_param": _ftheta,
    "opencv_pinhole_param": _pinhole,
    "opencv_fisheye_param": _fisheye,
}


def _fold(polynomial: Sequence[float]) -> float:
    """Return the argument at which a polynomial stops rising."""
    return smallest_root([power * c for power, c in enumerate(polynomial)][1:])


def _value(polynomial: Sequence[float], at: float) -> float:
    """Return the value by Horner's rule, which overflows to infinity where powers would raise."""
    value = 0.0
    for c in reversed(polynomial):
        value = value * at + c
    return value


def _angle_at(polynomial: Sequence[float], distance: float) -> float:
    """Return the angle, at most half a turn, at which a polynomial reaches a distance, or where it ends."""
    low, high = 0.0, min(math.pi, _fold(polynomial))
    if _value(polynomial, high) <= distance:
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _value(polynomial, middle) < distance else (low, middle)
    return high


def _add_windshield(
    glass: sensorsim_pb2.BivariateWindshieldModelParameters, sensor: camera_pb2.SensorCamera, field: str
) -> None:
    check_finite_message(glass, field)
    counts = (1, 3, 6, 10, 15, 21)
    for name in ("horizontal_poly", "vertical_poly", "horizontal_poly_inverse", "vertical_poly_inverse"):
        values = getattr(glass, name)
        allowed = (0, *counts) if name.endswith("inverse") else counts
        require(len(values) in allowed, f"{field}.{name}", f"{', '.join(map(str, counts))} coefficients", len(values))
    made = camera_pb2.BivariateWindshield(
        horizontal=glass.horizontal_poly,
        vertical=glass.vertical_poly,
        horizontal_inverse=glass.horizontal_poly_inverse,
        vertical_inverse=glass.vertical_poly_inverse,
    )
    sensor.windshield.CopyFrom(made)
