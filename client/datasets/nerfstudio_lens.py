"""The lens of a frame in a transforms.json, and the fields of such files that are not used."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path

from lumigrad.client.base.extras import require
from lumigrad.client.datasets.fields import Fields
from lumigrad.client.datasets.view import PARAMETERS, Intrinsics
from lumigrad.client.formats.source import malformed, shortened

_COEFFICIENTS = ("k1", "k2", "p1", "p2", "k3")
_HIGHER = ("k4", "k5", "k6")
_PRISMS = ("sx1", "sy1")
_FISHEYE = "is_fisheye"
# Lenses of instant-ngp that have no equivalent here.
_OTHER_LENSES = ("ftheta_p0", "latlong", "equirectangular")
_CALIBRATION = ("camera_model_type", "camera_model_parameters")
# In pictures wider than this, a principal point within the first pixel must be a fraction of the size.
_WIDE = 8
_USED = {
    *("camera_model", "w", "h", "fl_x", "fl_y", "cx", "cy", "camera_angle_x", "camera_angle_y", _FISHEYE),
    *(*_COEFFICIENTS, *_HIGHER, *_PRISMS, *_CALIBRATION),
}
# Entries that change neither cameras nor photographs: bounds, notes, and other programs' initial views.
_HARMLESS = {
    *("aabb_scale", "aabb", "scale", "offset", "up", "render_aabb", "render_aabb_to_local"),
    *("sharpness", "colmap_im_id", "timestamp", "rotation", "enable_depth_loading", "integer_depth_scale"),
}


def lens_of(frame: Fields, image: Path | None) -> Intrinsics:
    """Returns the lens of a frame; the picture size is the photograph's unless the file states one."""
    for name in _OTHER_LENSES:
        if name in frame.saying([name]):
            raise frame.fail(name, "a pinhole or a fisheye of OpenCV; undistort the photographs", frame.raw(name))
    width, height = _size(frame, image)
    model = _model(frame)
    if model not in PARAMETERS:
        return Intrinsics(model, width, height, {})
    fx = _focal(frame, "x", width)
    values = {
        "fx": fx,
        "fy": _focal(frame, "y", height) if "fl_y" in frame or "camera_angle_y" in frame else fx,
        "cx": frame.number("cx", width / 2),
        "cy": frame.number("cy", height / 2),
    }
    for name, size in (("cx", width), ("cy", height)):
        if size > _WIDE and 0 < values["cx"] <= 1 and 0 < values["cy"] <= 1:
            raise frame.fail(name, f"pixels, not a fraction of {size}", values[name])
    if model not in ("PINHOLE", "SIMPLE_PINHOLE"):
        values |= _coefficients(frame, model)
    return Intrinsics(model, width, height, values)


class SharedFocal:
    """Checks that a focal length for all frames, in pixels, belongs to photographs of one size, upright or turned."""

    def __init__(self, top: Fields) -> None:
        """Begins without photographs."""
        self._top = top
        self._first: tuple[str, Intrinsics] | None = None

    def check(self, frame: Fields, lens: Intrinsics) -> None:
        """Raises InvalidArgument if the photograph's size is not the first one's, and the file states no size."""
        if "w" in frame or frame.closest("fl_x", "camera_angle_x") != "fl_x" or frame.owns("fl_x"):
            return
        file = frame.text("file_path")
        if self._first is None:
            self._first = file, lens
        before, other = self._first
        if sorted((lens.width, lens.height)) != sorted((other.width, other.height)):
            sizes = f"{before} has {other.width} x {other.height} pixels, {file} {lens.width} x {lens.height}"
            expected = f"photographs of one size, w and h of the camera, or fl_x in each frame ({sizes})"
            raise self._top.fail("fl_x", expected, self._top.number("fl_x"))


def _model(frame: Fields) -> str:
    """Returns the camera model by COLMAP's name; instant-ngp only tells fisheyes from pinholes."""
    is_fisheye = frame.flag(_FISHEYE)
    model = frame.text("camera_model") if "camera_model" in frame else None
    if model is None:
        return "OPENCV_FISHEYE" if is_fisheye else "OPENCV"
    if is_fisheye is not None and model in PARAMETERS and is_fisheye != model.endswith("FISHEYE"):
        raise frame.fail(_FISHEYE, f"what camera_model says, {model}", is_fisheye)
    return model


def _coefficients(frame: Fields, model: str) -> dict[str, float]:
    values = {name: frame.number(name, 0.0) for name in (*_COEFFICIENTS, *_HIGHER, *_PRISMS)}
    if model == "FULL_OPENCV":
        return values
    for name in _HIGHER[1:] if model.endswith("FISHEYE") else _HIGHER:
        if values.pop(name):
            # k4 belongs to a polynomial of degree 8 in nerfstudio, and to the denominator in OpenCV's model.
            text = "0 unless camera_model is a fisheye or FULL_OPENCV" if name == "k4" else "0 for this camera_model"
            raise frame.fail(name, text, frame.number(name))
    return values


def say_ignored(top: Fields, frames: Sequence[Fields], used: Collection[str]) -> None:
    """Warns of fields with content that are used neither for lenses nor as one of `used`."""
    known = _USED | _HARMLESS | set(used)
    ignored = dict.fromkeys(name for each in (top, *frames) for name in each.saying() if name not in known)
    # The coefficients in files of pinholes are those from before the photographs were undistorted.
    pinholes = [frame for frame in frames if _model(frame) in ("PINHOLE", "SIMPLE_PINHOLE")]
    ignored |= dict.fromkeys(name for frame in pinholes for name in frame.saying((*_COEFFICIENTS, *_HIGHER, *_PRISMS)))
    if ignored:
        warnings.warn(f"{top.path}: fields that are ignored: {shortened(', '.join(ignored), 300)}", stacklevel=3)


def _size(frame: Fields, image: Path | None) -> tuple[int, int]:
    if "w" in frame and "h" in frame:
        return frame.pixels("w"), frame.pixels("h")
    if "w" in frame or "h" in frame:
        missing = "h" if "w" in frame else "w"
        raise frame.fail(missing, "w and h in pixels, or neither to take the photograph's size", None)
    if image is None:
        raise frame.fail("w", f"w and h in pixels, or the photograph {frame.text('file_path')}", None)
    pictures = require("PIL.Image", "io", "reading the sizes of photographs")
    try:
        with pictures.open(image) as picture:
            return int(picture.width), int(picture.height)
    except (OSError, ValueError, SyntaxError, pictures.DecompressionBombError) as error:
        raise malformed(image, f"expected a picture: {error}") from error


def _focal(frame: Fields, axis: str, size: int) -> float:
    """Returns the focal length in pixels, from fl_x or the angle of view in radians; prefers a frame's own field."""
    if frame.closest(f"fl_{axis}", f"camera_angle_{axis}") == f"fl_{axis}":
        focal = frame.number(f"fl_{axis}")
        if focal <= 0:
            raise frame.fail(f"fl_{axis}", "a focal length in pixels > 0", focal)
        return focal
    if f"camera_angle_{axis}" not in frame:
        raise frame.fail(f"fl_{axis}", f"a focal length in pixels, or camera_angle_{axis} in radians", None)
    angle = frame.number(f"camera_angle_{axis}")
    if not 0 < angle < math.pi:
        raise frame.fail(f"camera_angle_{axis}", "radians in (0, pi)", angle)
    return size / 2 / math.tan(angle / 2)
