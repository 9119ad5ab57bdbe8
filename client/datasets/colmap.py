"""COLMAP reconstructions: a folder with cameras, images and points3D, binary or text."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from lumigrad.client.base.arrays import Float64
from lumigrad.client.base.counts import counted
from lumigrad.client.datasets import colmap_binary, colmap_text
from lumigrad.client.datasets.doubts import LEAST_AGREEMENT, MOST_POINTS, DoubtfulCameras, agreement
from lumigrad.client.datasets.fields import MOST_PIXELS
from lumigrad.client.datasets.files import Files, portable, unique_names
from lumigrad.client.datasets.points import Points
from lumigrad.client.datasets.view import ColmapImage, Intrinsics, View
from lumigrad.client.formats.source import malformed, shortened
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.rotations import rotated

_READERS = {".bin": colmap_binary, ".txt": colmap_text}
# Places in a data set's folder of one reconstruction, or of several with a folder each.
_PLACES = ("sparse", "colmap/sparse")


def find_model(folder: Path) -> Path | None:
    """Finds the folder of the reconstruction with most images in or below a folder; None if there is none."""
    if _file(folder, "images") is not None:
        return folder
    for place in _PLACES:
        places = [*sorted((folder / place).glob("*")), folder / place]
        if found := [each for each in places if _file(each, "images") is not None]:
            return _largest(found)
    return None


def _largest(models: list[Path]) -> Path:
    """Returns the model with the most images, the first of several; warns of the others."""
    if len(models) == 1:
        return models[0]
    counts = {model: _count(model) for model in models}
    largest = max(models, key=lambda model: counts[model])
    others = ", ".join(f"{model.name} has {counts[model]:,}" for model in models if model != largest)
    warnings.warn(
        f"{len(models)} reconstructions of COLMAP, each with axes of its own: the largest, {largest}, is read, with "
        f"{counted(counts[largest], 'images')} ({shortened(others)}); to read another one, pass its folder",
        stacklevel=3,
    )
    return largest


def _count(model: Path) -> int:
    file = _file(model, "images")
    assert file is not None
    count: int = _READERS[file.suffix].count_images(file)
    return count


def read_model(model: Path, images: Path | None, sensors: bool) -> tuple[tuple[View, ...], Points | None]:
    """Reads the views, ordered by their photographs' names, and the points.

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
    beside = Files(_dataset_folder(model))
    photographs = Files(beside.folder / "images" if images is None else images)
    views = []
    for entry, name in zip(entries, unique_names([entry.name for entry in entries]), strict=True):
        lens = cameras.get(entry.camera_id)
        if lens is None:
            raise malformed(images_file, f"image {entry.name}: no camera {entry.camera_id} is in {cameras_file.name}")
        _check(lens, cameras_file, entry)
        camera = lens.camera(_rotation(entry, images_file), entry.translation, sensors)
        image = photographs.picture(entry.name, moved=images is not None)
        views.append(View(name, camera, image, _mask(beside, entry.name), entry.name))
    _check_masks(beside.folder, views)
    points = _points(model)
    _check_agreement(model, {entry.image_id: view.camera for entry, view in zip(entries, views, strict=True)})
    return tuple(views), points


def _file(model: Path, name: str) -> Path | None:
    return next((path for path in (model / f"{name}{suffix}" for suffix in _READERS) if path.is_file()), None)


def _dataset_folder(model: Path) -> Path:
    """Returns the data set's folder: above sparse/0 or sparse, and above colmap unless that has the images."""
    sparse = model.parent if model.parent.name == "sparse" else model
    folder = sparse.parent if sparse.name == "sparse" else model
    return folder.parent if folder.name == "colmap" and not (folder / "images").is_dir() else folder


def _mask(beside: Files, name: str) -> Path | None:
    """Returns the mask of a photograph a.jpg: masks/a.jpg.png, COLMAP's own convention, or masks/a.png; else None."""
    return beside.find(f"masks/{name}.png") or beside.find(f"masks/{PurePosixPath(portable(name)).with_suffix('.png')}")


def _check_masks(folder: Path, views: Sequence[View]) -> None:
    """Warns of photographs that have no mask although there are masks in the data set's folder."""
    without = [view.file for view in views if view.mask is None]
    found = next((each for each in (folder / "masks", folder / "mask") if each.is_dir() and any(each.iterdir())), None)
    if without and found is not None:
        name = "" if found.name == "masks" else "masks/"
        have, they = ("has", "it is") if len(without) == 1 else ("have", "they are")
        warnings.warn(
            f"{found}: {len(without)} of {len(views)} photographs {have} no mask, the first is {without[0]}, whose "
            f"mask would be {name}{without[0]}.png; {they} used whole",
            stacklevel=4,
        )


def _check_agreement(model: Path, cameras: Mapping[int, Camera]) -> None:
    """Warns of cameras that are probably wrong although COLMAP found them."""
    file = _file(model, "points3D")
    share = None if file is None else agreement(_READERS[file.suffix].read_tracks(file, MOST_POINTS), cameras)
    if share is not None and share < LEAST_AGREEMENT:
        warnings.warn(
            f"{model}: the cameras are probably wrong: only {share:.0%} of the photographs nearest to one that shows a "
            f"point show it, too (right ones: {LEAST_AGREEMENT:.0%} or more); add photographs in between, 10 degrees "
            "apart, above all if it looks alike from several sides",
            DoubtfulCameras,
            stacklevel=4,
        )


def _check(lens: Intrinsics, file: Path, entry: ColmapImage) -> None:
    if why := lens.unrenderable:
        raise malformed(file, f"camera {entry.camera_id}: {why}")
    focal = min(lens.values.get(name, 1.0) for name in ("f", "fx", "fy"))
    is_sized = 1 <= min(lens.width, lens.height) <= max(lens.width, lens.height) <= MOST_PIXELS
    if not focal > 0 or not np.isfinite(list(lens.values.values())).all() or not is_sized:
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
