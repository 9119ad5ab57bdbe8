"""Writes captures as files that nerfstudio, instant-ngp and COLMAP read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from lumigrad.client.base.cautions import warn_caller
from lumigrad.client.base.replacing import write_text
from lumigrad.client.datasets.calibration import Calibration
from lumigrad.client.datasets.fields import OPENGL
from lumigrad.client.datasets.frame import offset_of
from lumigrad.client.datasets.nerfstudio import END_POSE, LISTS
from lumigrad.client.datasets.points import Points
from lumigrad.client.datasets.view import PARAMETERS, Intrinsics, Split, View
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.ply_header import write_vertices
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import OpenCVModel, SensorModel
from lumigrad.client.values.lenses import FisheyeLens, PinholeLens
from lumigrad.client.values.rotations import pose_array

_COEFFICIENTS = ("k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6")


def save_nerfstudio(folder: Path, views: Sequence[View], points: Points | None, split: Split | None) -> None:
    """Writes transforms.json, which names the photographs relative to the folder, and points.ply."""
    frames, models = [], set()
    for view in views:
        if _needs_calibration(view.camera):
            frames.append(_calibrated_frame(view, folder))
            continue
        lens = intrinsics_of(view)
        frames.append(_frame(view, lens, folder))
        models.add("OPENCV" if lens.model == "FULL_OPENCV" else lens.model)
    if len(models) > 1 and "OPENCV_FISHEYE" in models:
        raise InvalidArgument.of("views", "expected one kind of lens for nerfstudio, got fisheyes and pinholes")
    # A pinhole is OpenCV's lens without coefficients.
    model = models.pop() if len(models) == 1 else "OPENCV"
    values: dict[str, object] = {"camera_model": model, "frames": frames}
    if split is not None:
        for field, names in ((LISTS[0], split.fitted), (LISTS[-1], split.held_out)):
            values[field] = [_photograph(view, folder) for view in views if view.name in names]
    folder.mkdir(parents=True, exist_ok=True)
    if points is not None:
        # float32, which all programs read, unless it is too coarse so far from 0.
        kind = np.float64 if offset_of(views) else np.float32
        columns = dict(zip(("x", "y", "z"), points.positions.T.astype(kind), strict=True))
        colors = dict(zip(("red", "green", "blue"), _bytes(points).T, strict=True))
        write_vertices(folder / "points.ply", {**columns, **colors})
        values = {"ply_file_path": "points.ply", **values}
    _write(folder / "transforms.json", [json.dumps(values, indent=1)])


def _frame(view: View, lens: Intrinsics, folder: Path) -> dict[str, object]:
    # In nerfstudio, k4 belongs to another polynomial, and there is no k5 and k6.
    if lens.model == "FULL_OPENCV" and any(lens.values.get(name) for name in ("k4", "k5", "k6")):
        raise _unwritable(view, 'nerfstudio has no k4, k5 and k6 of a pinhole; pass form="colmap"')
    keys = {"fx": "fl_x", "fy": "fl_y"}
    values = {keys.get(name, name): value for name, value in lens.values.items() if name not in ("k5", "k6")}
    size = {"w": lens.width, "h": lens.height}
    return {**_files(view, folder), **size, **values, "transform_matrix": _to_world(_matrix(view.camera))}


def _needs_calibration(camera: Camera) -> bool:
    """Whether a camera has properties that nerfstudio's fields cannot express."""
    model = camera.model
    if not isinstance(model, SensorModel) or model.rays is not None:
        return False
    lens = model.lens
    if model.shutter != "global" or model.windshield is not None:
        return True
    if isinstance(lens, PinholeLens):
        return any(lens.radial[3:]) or any(lens.thin_prism)
    return not isinstance(lens, FisheyeLens) or lens.max_angle is not None or lens.behind


def _calibrated_frame(view: View, folder: Path) -> dict[str, object]:
    """Returns a frame with a calibration of its own, as `client.datasets.calibration` reads it."""
    model = view.camera.model
    assert isinstance(model, SensorModel)
    poses = {"transform_matrix": _to_world(_matrix(view.camera))}
    if model.end_rotation is not None and model.end_translation is not None:
        end = np.eye(4)
        end[:3, :3], end[:3, 3] = model.end_rotation, model.end_translation
        poses[END_POSE] = _to_world(end)
    return {**_files(view, folder), **Calibration.of(view.camera).values(), **poses}


def _files(view: View, folder: Path) -> dict[str, object]:
    mask = {} if view.mask is None else {"mask_path": Path(os.path.relpath(view.mask, folder)).as_posix()}
    return {"file_path": _photograph(view, folder), **mask}


def _to_world(matrix: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[list[float]]:
    """Returns [4, 4], camera to world with OpenGL's axes, for a matrix [4, 4] world to camera."""
    to_world = np.linalg.inv(matrix)
    to_world[:3, :3] = to_world[:3, :3] @ OPENGL
    rows: list[list[float]] = to_world.tolist()
    return rows


def save_colmap(folder: Path, views: Sequence[View], points: Points | None, split: Split | None) -> None:
    """Writes sparse/0/cameras.txt, images.txt and points3D.txt; photographs are named relative to folder/images.

    COLMAP's files do not say what is held out.
    Masks are left out: COLMAP's lie in one folder, and those of photographs elsewhere would have to be copied.
    """
    masked = sum(view.mask is not None for view in views)
    if masked:
        text = f"files of COLMAP name no masks: those of {masked} of {len(views)} views are left out"
        warn_caller(f"views: {text}; keep them in masks/, each named as its photograph with .png behind it")
    if split is not None:
        warn_caller("split: files of COLMAP do not say what is held out; it is left out")
    lenses: dict[str, int] = {}
    images = []
    for number, view in enumerate(views, start=1):
        lens = intrinsics_of(view)
        values = " ".join(repr(lens.values.get(name, 0.0)) for name in PARAMETERS[lens.model])
        camera = lenses.setdefault(f"{lens.model} {lens.width} {lens.height} {values}", len(lenses) + 1)
        x, y, z, *quaternion = (repr(float(value)) for value in pose_array("views", _matrix(view.camera)))
        pose = " ".join((*quaternion, x, y, z))
        photograph = _photograph(view, folder / "images")
        if photograph.splitlines() != [photograph.strip()]:
            raise _unwritable(view, f"expected a name that a line of text holds, got {photograph!r}")
        images += [f"{number} {pose} {camera} {photograph}", ""]
    model = folder / "sparse" / "0"
    # Paths that go up from a folder do not resolve unless it exists.
    for made in (model, folder / "images"):
        made.mkdir(parents=True, exist_ok=True)
    _write(model / "cameras.txt", (f"{number} {lens}" for lens, number in lenses.items()))
    _write(model / "images.txt", images)
    _write(model / "points3D.txt", () if points is None else _rows(points))


SAVERS: dict[str, Callable[[Path, Sequence[View], Points | None, Split | None], None]] = {
    "nerfstudio": save_nerfstudio,
    "colmap": save_colmap,
}


def intrinsics_of(view: View) -> Intrinsics:
    """Returns the calibration of a view's camera.

    Raises:
        InvalidArgument: a lens, a shutter or a pose that the files of data sets cannot express; names the view.
    """
    camera, model = view.camera, view.camera.model
    lens = model.lens if isinstance(model, SensorModel) else model
    if isinstance(model, SensorModel) and (
        model.shutter != "global" or model.windshield is not None or model.rays is not None
    ):
        raise _unwritable(view, "files of data sets have no rolling shutters, windshields or rays")
    if isinstance(lens, FisheyeLens):
        coefficients = dict(zip(("k1", "k2", "k3", "k4"), (*lens.radial, 0.0, 0.0, 0.0, 0.0), strict=False))
        kind = "OPENCV_FISHEYE"
    elif isinstance(lens, OpenCVModel) and lens.projection == "fisheye":
        coefficients, kind = {}, "OPENCV_FISHEYE"
    elif isinstance(lens, PinholeLens) and not any(lens.thin_prism):
        k1, k2, *others = (*lens.radial, *[0.0] * (6 - len(lens.radial)))
        ordered = (k1, k2, *(lens.tangential or (0.0, 0.0)), *others)
        coefficients, kind = _pinhole(ordered)
    elif isinstance(lens, OpenCVModel) and lens.projection == "pinhole":
        coefficients, kind = _pinhole(lens.distortion)
    else:
        raise _unwritable(view, "expected OpenCV's pinhole or fisheye")
    film = {name: float(getattr(lens, name)) for name in ("fx", "fy", "cx", "cy")}
    return Intrinsics(kind, camera.width, camera.height, {**film, **coefficients})


def _pinhole(ordered: Sequence[float]) -> tuple[dict[str, float], str]:
    """Returns coefficients in OpenCV's order by name, and the smallest model that has them."""
    named = {name: float(value) for name, value in zip(_COEFFICIENTS, ordered, strict=False)}
    if not any(named.values()):
        return {}, "PINHOLE"
    if any(named.get(name) for name in _COEFFICIENTS[4:]):
        return named, "FULL_OPENCV"
    return {name: named[name] for name in _COEFFICIENTS[:4]}, "OPENCV"


def _matrix(camera: Camera) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Returns [4, 4], world to camera."""
    return np.array(camera.view_matrix, np.float64)


def _photograph(view: View, folder: Path) -> str:
    return view.name if view.image is None else Path(os.path.relpath(view.image, folder)).as_posix()


def _bytes(points: Points) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.asarray(np.rint(255 * points.colors.clip(0, 1)), np.uint8)


def _rows(points: Points) -> Iterator[str]:
    for number, (place, color) in enumerate(zip(points.positions.tolist(), _bytes(points).tolist(), strict=True), 1):
        # The reprojection error is unknown, and no photograph is named.
        yield " ".join(map(repr, (number, *place, *color, 0.0)))


def _write(path: Path, lines: Sequence[str] | Iterator[str]) -> None:
    write_text(path, "".join(f"{line}\n" for line in lines))


def _unwritable(view: View, text: str) -> InvalidArgument:
    return InvalidArgument.of("views", f"the camera of {view.name!r} cannot be saved: {text}")
