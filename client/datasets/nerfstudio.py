"""The transforms.json of nerfstudio, instant-ngp and the Blender scenes of NeRF."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Float64
from lumigrad.client.base.extras import require
from lumigrad.client.datasets import calibration
from lumigrad.client.datasets.fields import Fields, checked_rotation
from lumigrad.client.datasets.files import Files, unique_names
from lumigrad.client.datasets.points import Points
from lumigrad.client.datasets.view import PARAMETERS, Intrinsics, View
from lumigrad.client.formats.source import malformed
from lumigrad.client.values.camera import Camera

# OpenGL's cameras look along -z with y up.
_OPENGL = np.diag([1.0, -1.0, -1.0])
# The pose when the last row of a rolling shutter is exposed.
END_POSE = "transform_matrix_end"
_COEFFICIENTS = ("k1", "k2", "p1", "p2", "k3")
_DENOMINATOR = ("k4", "k5", "k6")


def read_transforms_json(
    path: Path, values: Any, images: Path | None, sensors: bool
) -> tuple[tuple[View, ...], Points | None]:
    """Reads the views in the file's order, and the file of points that it names.

    Intrinsics of a frame override those at the top. `transform_matrix` is camera to world, with OpenGL's axes.

    Args:
        path: the file.
        values: its content.
        images: a folder with photographs of the same names; None: the paths in the file.
        sensors: whether cameras are sensors.
    """
    top = Fields(path, values)
    frames = [Fields(path, frame, f"frames[{k}]", top) for k, frame in enumerate(top.objects("frames"))]
    if not frames:
        raise top.fail("frames", "at least one frame", [])
    files = [frame.file_name("file_path") for frame in frames]
    beside, photographs = Files(path.parent), Files(images or path.parent)
    views = []
    for frame, name, file in zip(frames, unique_names(files), files, strict=True):
        image = photographs.picture(file, moved=images is not None)
        mask = _mask(frame, beside)
        if calibration.PARAMETERS in frame:
            views.append(View(name, _sensor(frame), image, mask, file))
            continue
        lens = _lens(frame, image)
        if why := lens.unrenderable:
            raise malformed(path, f"{frame.where}.camera_model: {why}")
        views.append(View(name, lens.camera(*_pose(frame, "transform_matrix"), sensors), image, mask, file))
    return tuple(views), _points(top, beside)


def _sensor(frame: Fields) -> Camera:
    """Returns the camera of a frame that has a calibration of its own, see `client.datasets.calibration`."""
    found = calibration.Calibration.read(frame)
    end = None if found.shutter == "global" else _pose(frame, END_POSE)
    return found.camera(_pose(frame, "transform_matrix"), end)


def _pose(frame: Fields, name: str) -> tuple[Float64, Float64]:
    """Returns rotation [3, 3] and translation [3], world to camera."""
    to_world = frame.array(name, (4, 4), (3, 4))
    rotation = (checked_rotation(frame, name, to_world[:3, :3]) @ _OPENGL).T
    return rotation, -rotation @ to_world[:3, 3]


def _lens(frame: Fields, image: Path | None) -> Intrinsics:
    width, height = _size(frame, image)
    model = frame.text("camera_model") if "camera_model" in frame else "OPENCV"
    if model not in PARAMETERS:
        return Intrinsics(model, width, height, {})
    fx = _focal(frame, "x", width)
    values = {
        "fx": fx,
        "fy": _focal(frame, "y", height) if "fl_y" in frame or "camera_angle_y" in frame else fx,
        "cx": frame.number("cx", width / 2),
        "cy": frame.number("cy", height / 2),
    }
    values |= {name: frame.number(name, 0.0) for name in _COEFFICIENTS}
    last = frame.number("k4", 0.0)
    if model.endswith("FISHEYE"):
        values["k4"] = last
    elif model == "FULL_OPENCV":
        values |= {name: frame.number(name, 0.0) for name in _DENOMINATOR}
    elif last:
        # In nerfstudio k4 belongs to a polynomial of degree 8, in OpenCV's model to the denominator.
        raise frame.fail("k4", "0 unless camera_model is a fisheye or FULL_OPENCV", last)
    if model in ("PINHOLE", "SIMPLE_PINHOLE"):
        # The coefficients in such files are those from before the photographs were undistorted.
        values = {name: value for name, value in values.items() if name not in _COEFFICIENTS}
    return Intrinsics(model, width, height, values)


def _size(frame: Fields, image: Path | None) -> tuple[int, int]:
    if "w" in frame and "h" in frame:
        return frame.pixels("w"), frame.pixels("h")
    if image is None:
        raise frame.fail("w", "w and h in pixels, or a photograph at file_path", None)
    pictures = require("PIL.Image", "io", "reading the sizes of photographs")
    try:
        with pictures.open(image) as picture:
            return int(picture.width), int(picture.height)
    except (OSError, ValueError, SyntaxError, pictures.DecompressionBombError) as error:
        raise malformed(image, f"expected a picture: {error}") from error


def _focal(frame: Fields, axis: str, size: int) -> float:
    """Returns the focal length in pixels, from fl_x or from the angle of view in radians."""
    if f"fl_{axis}" in frame:
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


def _mask(frame: Fields, beside: Files) -> Path | None:
    """The path of the frame's mask, also if there is no such file."""
    if "mask_path" not in frame:
        return None
    name = frame.file_name("mask_path")
    return beside.picture(name) or beside.place(name)


def _points(top: Fields, beside: Files) -> Points | None:
    if "ply_file_path" not in top:
        return None
    name = top.file_name("ply_file_path")
    return Points.load(beside.find(name) or beside.place(name))
