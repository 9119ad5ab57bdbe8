"""COLMAP reconstructions: a folder with cameras, images and points3D, binary or text."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from lumigrad.client.base.arrays import Float64
from lumigrad.client.datasets import colmap_binary, colmap_text
from lumigrad.client.datasets.points import Points
from lumigrad.client.datasets.view import ColmapImage, Intrinsics, View, photograph, unique_names
from lumigrad.client.formats.source import malformed
from lumigrad.client.values.rotations import rotated

_READERS = {".bin": colmap_binary, ".txt": colmap_text}
# Places of a reconstruction in the folder of a data set.
_PLACES = ("", "sparse/0", "sparse", "colmap/sparse/0")


def find_model(folder: Path) -> Path | None:
    """Finds the folder of the reconstruction in or below a folder; None if there is none."""
    places = [folder / place for place in _PLACES]
    return next((place for place in places if _file(place, "images") is not None), None)


def read_model(model: Path, images: Path | None, sensors: bool) -> tuple[tuple[View, ...], Points | None]:
    """Reads the views, ordered by their photographs' names, and the points.

    The mask of a photograph is masks/<its name>.png in the data set's folder, COLMAP's own convention.

    Args:
        model: the folder of the reconstruction.
        images: the folder of the photographs; None: "images" in the data set's folder.
        sensors: whether cameras are sensors.
    """
    cameras_file, images_file = _file(model, "cameras"), _file(model, "images")
    if cameras_file is None or images_file is None:
        missing = "cameras" if cameras_file is None else "images"
        raise malformed(model, f"expected a file {missing}.bin or {missing}.txt; there is none")
    cameras = _READERS[cameras_file.suffix].read_cameras(cameras_file)
    entries = _READERS[images_file.suffix].read_images(images_file)
    if not entries:
        raise malformed(images_file, "expected at least one image, got none")
    entries = sorted(entries, key=lambda entry: entry.name)
    folder = _dataset_folder(model) / "images" if images is None else images
    views = []
    for entry, name in zip(entries, unique_names([entry.name for entry in entries]), strict=True):
        lens = cameras.get(entry.camera_id)
        if lens is None:
            raise malformed(images_file, f"image {entry.name}: no camera {entry.camera_id} is in {cameras_file.name}")
        _check(lens, cameras_file, entry)
        camera = lens.camera(_rotation(entry, images_file), entry.translation, sensors)
        mask = _dataset_folder(model) / "masks" / f"{entry.name}.png"
        views.append(View(name, camera, photograph(folder, entry.name), mask if mask.is_file() else None))
    return tuple(views), _points(model)


def _file(model: Path, name: str) -> Path | None:
    return next((path for path in (model / f"{name}{suffix}" for suffix in _READERS) if path.is_file()), None)


def _dataset_folder(model: Path) -> Path:
    """Returns the data set's folder in COLMAP's layout: the one above sparse/0 or sparse."""
    if model.parent.name == "sparse":
        return model.parent.parent
    return model.parent if model.name == "sparse" else model


def _check(lens: Intrinsics, file: Path, entry: ColmapImage) -> None:
    if why := lens.unrenderable:
        raise malformed(file, f"camera {entry.camera_id}: {why}")
    focal = min(lens.values.get(name, 1.0) for name in ("f", "fx", "fy"))
    if not focal > 0 or not np.isfinite(list(lens.values.values())).all() or min(lens.width, lens.height) < 1:
        raise malformed(file, f"camera {entry.camera_id}: expected a size and focal lengths > 0, got {lens}")


def _rotation(entry: ColmapImage, file: Path) -> Float64:
    pose = [*entry.quaternion, *entry.translation]
    # The squares of longer vectors would overflow.
    if not np.isfinite(pose).all() or not 1e-150 < math.hypot(*entry.quaternion) < 1e150:
        raise malformed(
            file,
            f"image {entry.name}: expected a finite pose with a quaternion of about length 1, got {pose}",
        )
    quaternion = np.array(entry.quaternion) / np.linalg.norm(entry.quaternion)
    return np.asarray(rotated(quaternion, np.eye(3)).T)


def _points(model: Path) -> Points | None:
    file = _file(model, "points3D")
    if file is not None:
        points: Points = _READERS[file.suffix].read_points(file)
        return points
    file = model / "points3D.ply"
    return Points.load(file) if file.is_file() else None
