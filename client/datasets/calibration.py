"""Calibrations of sensors as NCore writes them: `camera_model_type` and `camera_model_parameters` in a JSON file.

The types are "ideal-pinhole", "opencv-pinhole", "opencv-fisheye" and "ftheta", plus our own "orthographic".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lumigrad.client.base.arrays import Float64
from lumigrad.client.datasets.fields import MOST_PIXELS, Fields, read_json
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import NCORE_SHUTTERS, SensorModel, Shutter
from lumigrad.client.values.lenses import (
    NCORE_REFERENCES,
    WINDSHIELD_LENGTHS,
    FisheyeLens,
    FThetaLens,
    Lens,
    OrthographicLens,
    PinholeLens,
    SpinningLidar,
    Windshield,
)

TYPE, PARAMETERS = "camera_model_type", "camera_model_parameters"
_TYPES = ("ideal-pinhole", "opencv-pinhole", "opencv-fisheye", "ftheta", "orthographic")
_POLYNOMIALS = {
    "angle_to_pixeldist_poly": "angle_to_pixel_distance",
    "pixeldist_to_angle_poly": "pixel_distance_to_angle",
}
_WINDSHIELD = "external_distortion_parameters"
_GLASS = ("horizontal", "vertical")
# NCore counts the centre of the first pixel as 0 for f-theta lenses, as 0.5 for others.
_F_THETA_CENTER = 0.5


@dataclass(frozen=True)
class Calibration:
    """A lens with its picture size, its windshield, and its shutter."""

    lens: Lens
    width: int
    height: int
    shutter: Shutter = "global"
    windshield: Windshield | None = None

    @staticmethod
    def load(path: Path) -> Calibration:
        """Reads a JSON file of one calibration; raises InvalidArgument, which names file and field."""
        return Calibration.read(Fields(path, read_json(path)))

    @staticmethod
    def read(fields: Fields) -> Calibration:
        """Reads the fields of a JSON object."""
        kind = fields.text(TYPE)
        if kind not in _TYPES:
            raise fields.fail(TYPE, f"one of {', '.join(_TYPES)}", kind)
        values = fields.object(PARAMETERS)
        width, height = (int(size) for size in values.array("resolution", (2,)))
        if not 1 <= min(width, height) <= max(width, height) <= MOST_PIXELS:
            raise values.fail("resolution", "a width and a height of at least 1 pixel", [width, height])
        shutter = values.text("shutter_type") if "shutter_type" in values else "GLOBAL"
        if shutter not in NCORE_SHUTTERS:
            raise values.fail("shutter_type", f"one of {', '.join(NCORE_SHUTTERS)}", shutter)
        try:
            lens = _ftheta(values) if kind == "ftheta" else _with_film(kind, values)
            glass = _windshield(values.object(_WINDSHIELD)) if _WINDSHIELD in values else None
        except InvalidArgument as error:
            raise values.fail("", f"a lens of the type {kind}", str(error)) from error
        return Calibration(lens, width, height, NCORE_SHUTTERS[shutter], glass)

    @staticmethod
    def of(camera: Camera) -> Calibration:
        """Returns the calibration of a sensor's camera."""
        model = camera.model
        assert isinstance(model, SensorModel)
        return Calibration(model.lens, camera.width, camera.height, model.shutter, model.windshield)

    def camera(self, start: tuple[Float64, Float64], end: tuple[Float64, Float64] | None = None) -> Camera:
        """Returns the camera at poses of rotation and translation, world to camera; `end` is for rolling shutters."""
        moving = {} if end is None else {"end_rotation": end[0], "end_translation": end[1]}
        options: dict[str, Any] = {"shutter": self.shutter, "windshield": self.windshield, **moving}
        return Camera.sensor(self.lens, *start, self.width, self.height, **options)

    def values(self) -> dict[str, Any]:
        """Returns the fields of the JSON object that `read` reads."""
        shutter = next(name for name, ours in NCORE_SHUTTERS.items() if ours == self.shutter)
        values: dict[str, Any] = {"resolution": [self.width, self.height], "shutter_type": shutter}
        lens = self.lens
        if isinstance(lens, SpinningLidar):
            raise InvalidArgument.of("lens", "expected that of a camera, got a lidar")
        if isinstance(lens, FThetaLens):
            kind = "ftheta"
            values["principal_point"] = [lens.cx - _F_THETA_CENTER, lens.cy - _F_THETA_CENTER]
            values["reference_poly"] = next(name for name, ours in NCORE_REFERENCES.items() if ours == lens.reference)
            values |= {theirs: list(getattr(lens, ours)) for theirs, ours in _POLYNOMIALS.items()}
            values |= {"linear_cde": list(lens.linear), "max_angle": lens.max_angle}
        else:
            kinds = {FisheyeLens: "opencv-fisheye", OrthographicLens: "orthographic", PinholeLens: "opencv-pinhole"}
            kind = kinds[type(lens)]
            values |= {"principal_point": [lens.cx, lens.cy], "focal_length": [lens.fx, lens.fy]}
            for name in ("radial", "tangential", "thin_prism"):
                if hasattr(lens, name):
                    values[f"{name}_coeffs"] = list(getattr(lens, name))
            if isinstance(lens, FisheyeLens) and lens.max_angle is not None:
                values["max_angle"] = lens.max_angle
            elif isinstance(lens, FisheyeLens) and lens.behind:
                raise InvalidArgument.of("max_angle", "expected an angle, by which files tell what a fisheye shows")
        if self.windshield is not None:
            ways = {f"{name}_poly": list(getattr(self.windshield, name)) for name in _GLASS}
            back = {f"{name}_poly_inverse": list(getattr(self.windshield, f"{name}_inverse")) for name in _GLASS}
            values[_WINDSHIELD] = {**ways, **back}
        return {TYPE: kind, PARAMETERS: values}

    def resized(self, width: int, height: int) -> Calibration:
        """Returns the calibration for another picture size."""
        x, y = width / self.width, height / self.height
        return replace(self, lens=scaled_lens(self.lens, x, y), width=width, height=height)


def scaled_lens(lens: Lens, x: float, y: float) -> Lens:
    """Returns a lens for pictures that are larger by the factors `x` and `y`."""
    if isinstance(lens, SpinningLidar):
        raise InvalidArgument.of("size", "expected the lidar's own, since its pictures have the size of its tables")
    if isinstance(lens, FThetaLens):
        c, d, e = lens.linear
        return replace(
            lens,
            cx=lens.cx * x,
            cy=lens.cy * y,
            angle_to_pixel_distance=tuple(y * value for value in lens.angle_to_pixel_distance),
            pixel_distance_to_angle=tuple(value / y**power for power, value in enumerate(lens.pixel_distance_to_angle)),
            # The polynomials are scaled by y.
            linear=(c * x / y, d * x / y, e),
        )
    return replace(lens, fx=lens.fx * x, fy=lens.fy * y, cx=lens.cx * x, cy=lens.cy * y)


def _with_film(kind: str, values: Fields) -> Lens:
    (fx, fy), (cx, cy) = values.array("focal_length", (2,)), values.array("principal_point", (2,))
    film: dict[str, Any] = {"fx": fx, "fy": fy, "cx": cx, "cy": cy}
    if kind == "orthographic":
        return OrthographicLens(**film)
    if kind == "opencv-fisheye":
        if "max_angle" in values and values.number("max_angle") > 0:
            film["max_angle"] = values.number("max_angle")
            film["behind"] = film["max_angle"] > math.pi / 2
        return FisheyeLens(**film, radial=_numbers(values, "radial_coeffs"))
    if kind == "ideal-pinhole":
        return PinholeLens(**film)
    coefficients: dict[str, Any] = {
        name: _numbers(values, f"{name}_coeffs") for name in ("radial", "tangential", "thin_prism")
    }
    return PinholeLens(**film, **coefficients)


def _ftheta(values: Fields) -> FThetaLens:
    cx, cy = values.array("principal_point", (2,)) + _F_THETA_CENTER
    reference = values.text("reference_poly")
    if reference not in NCORE_REFERENCES:
        raise values.fail("reference_poly", f"one of {', '.join(NCORE_REFERENCES)}", reference)
    polynomials: dict[str, Any] = {ours: _numbers(values, theirs) for theirs, ours in _POLYNOMIALS.items()}
    linear = tuple(values.array("linear_cde", (3,))) if "linear_cde" in values else (1.0, 0.0, 0.0)
    angle = values.number("max_angle")
    return FThetaLens(
        cx=cx, cy=cy, max_angle=angle, reference=NCORE_REFERENCES[reference], linear=linear, **polynomials
    )


def _windshield(values: Fields) -> Windshield:
    lengths = [(length,) for length in WINDSHIELD_LENGTHS]
    ways = {name: tuple(values.array(f"{name}_poly", *lengths)) for name in _GLASS}
    back = {f"{name}_inverse": _numbers(values, f"{name}_poly_inverse") for name in _GLASS}
    return Windshield(**ways, **back)


def _numbers(values: Fields, name: str) -> tuple[float, ...]:
    """Returns coefficients, none if the field is absent."""
    if name not in values:
        return ()
    return tuple(values.array(name, *((count,) for count in range(22))).tolist())
