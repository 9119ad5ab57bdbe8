"""A data set: views of a scene, and initial points of a reconstruction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np

from lumigrad.client.base.arguments import file_path, one_of
from lumigrad.client.base.arrays import Float64, float64_array
from lumigrad.client.base.cautions import warn_caller, warn_of
from lumigrad.client.datasets.colmap import find_model, read_model
from lumigrad.client.datasets.doubts import doubts
from lumigrad.client.datasets.fields import Fields, read_json
from lumigrad.client.datasets.files import Files, unique_names
from lumigrad.client.datasets.frame import lost_by_views, moved
from lumigrad.client.datasets.inria import read_cameras_json
from lumigrad.client.datasets.nerfstudio import read_transforms_json
from lumigrad.client.datasets.points import Points
from lumigrad.client.datasets.polycam import find_keyframes, read_keyframes
from lumigrad.client.datasets.save import SAVERS
from lumigrad.client.datasets.view import Split, View
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.load import is_gaussian_scene
from lumigrad.client.formats.ply_header import PlyHeader
from lumigrad.client.formats.save import WRITABLE
from lumigrad.client.formats.sog import META_NAME, STREAM_NAME
from lumigrad.client.formats.source import malformed
from lumigrad.client.values.camera_models import OpenCVModel, SensorModel

# NeRF's Blender scenes have a file of the photographs to fit, and one or two of those to evaluate a fit with.
_BLENDER, _HELD_OUT = "transforms_train.json", ("transforms_test.json", "transforms_val.json")


@dataclass(frozen=True)
class Capture:
    """Views in a fixed order, with unique names.

    Attributes:
        views: the views, at least one.
        points: the initial points; None if the data set has none.
        split: which views the data set fits and holds out; None if it does not say.

    Example:
        capture = Capture((View("front", camera), View("back", cameras[1])))
        capture.save(folder / "capture")
    """

    views: tuple[View, ...]
    points: Points | None = None
    split: Split | None = None

    def __post_init__(self) -> None:
        if self.points is not None and not len(self.points):
            object.__setattr__(self, "points", None)
        warn_of("views", lost_by_views(self.views))

    def __len__(self) -> int:
        return len(self.views)

    @staticmethod
    def load(path: str | PathLike[str], *, images: str | PathLike[str] | None = None, sensors: bool = False) -> Capture:
        """Reads cameras.json (Inria), transforms.json (nerfstudio, Blender), or the folder of a data set.

        A folder is searched for transforms.json, transforms_train.json, Polycam's keyframes, a COLMAP reconstruction
        (also in sparse/0), and cameras.json, in this order. Beside transforms_train.json, the views of
        transforms_test.json, or else of transforms_val.json, are held out if their photographs are there.

        Args:
            path: the file or folder.
            images: the folder of the photographs, relative to the data set's; None: the format's default. They are
                found by their paths in the data set, whose first parts may be missing there. Masks come from mask_path
                in transforms.json, or for COLMAP from masks/<name of the photograph>.png; pixels of 0 are ignored.
            sensors: make all cameras sensors, which show Gaussians by sigma points (`Camera.sensor`), and whose lenses
                trainings refine; False: only cameras that have to be, such as fisheyes with coefficients.

        Raises:
            InvalidArgument: no data set, or a camera that cannot be rendered; names the file and the field.

        Example:
            capture = Capture.load("captures/garden")
        """
        path = file_path("path", path)
        folder = path if path.is_dir() else path.parent
        capture = _load(path, None if images is None else folder / images, sensors)
        for doubt in doubts(capture.views, capture.points):
            warn_caller(f"{path}: {doubt}")
        return capture

    def save(self, folder: str | PathLike[str], *, form: str = "nerfstudio") -> None:
        """Writes cameras and points as a data set that `load`, and the program that the form is named after, read.

        Photographs are named by their paths and not copied. Cameras that nerfstudio's fields cannot express have
        NCore's `camera_model_type` and `camera_model_parameters` in transforms.json, and `transform_matrix_end` for a
        rolling shutter, which `load` reads.

        Args:
            folder: the data set's folder; it is made if there is none.
            form: "nerfstudio": transforms.json and points.ply. "colmap": cameras.txt, images.txt and points3D.txt in
                sparse/0, which name photographs relative to the folder images, which is made; masks and the split are
                not written, which a warning says.

        Raises:
            InvalidArgument: another form, or a camera that the files cannot express; names the view.

        Example:
            Capture(tuple(View(f"view_{k}", camera) for k, camera in enumerate(cameras))).save("capture")
        """
        one_of("form", form, tuple(SAVERS), quote='"')
        SAVERS[form](file_path("folder", folder), self.views, self.points, self.split)

    def moved(self, translation: Any) -> Capture:
        """Returns the capture in a world that was moved, in float64: a translation is added to cameras and points.

        Scenes far from 0, as in the coordinates of maps and globes, are too coarse in float32: move them near it.

        Args:
            translation: [3] scene units.

        Raises:
            InvalidArgument: no three finite numbers, or a camera that is neither of OpenCV's model nor a sensor.

        Example:
            higher = capture.moved((0, -2, 0))
        """
        by = float64_array("translation", translation, (3,))
        views = tuple(replace(view, camera=moved(view.camera, by)) for view in self.views)
        points = None if self.points is None else Points(self.points.positions + by, self.points.colors)
        return replace(self, views=views, points=points)

    def view(self, which: str | int) -> View:
        """Returns a view by its name or index (also as text); negative indices count from the end.

        Args:
            which: the name or the index.

        Raises:
            InvalidArgument: there is no such view.

        Example:
            camera = capture.view(-1).camera
        """
        named = {view.name: view for view in self.views}
        if isinstance(which, str) and which in named:
            return named[which]
        try:
            return self.views[int(which)]
        except (ValueError, IndexError) as error:
            names = [view.name for view in self.views]
            raise InvalidArgument.of(
                "view",
                f"expected an index below {len(names)}, or a name such as {names[0]!r} or {names[-1]!r}, got {which!r}",
            ) from error

    @property
    def up(self) -> Float64:
        """The mean up direction [3] of the images, a unit vector in the world frame."""
        total = np.sum([-rotation[1] for rotation, _ in self._poses()], axis=0)
        length = float(np.linalg.norm(total))
        return total / length if length > 0 else np.array([0.0, -1.0, 0.0])

    @property
    def focus(self) -> Float64:
        """The point [3] closest to the axes of all cameras, by least squares; scene units."""
        normal, offset = 1e-9 * np.eye(3), np.zeros(3)
        for rotation, eye in self._poses():
            across = np.eye(3) - np.outer(rotation[2], rotation[2])
            normal, offset = normal + across, offset + across @ eye
        return np.asarray(np.linalg.solve(normal, offset), np.float64)

    def _poses(self) -> list[tuple[Float64, Float64]]:
        """Returns the rotation, world to camera, and the position of each camera."""
        models = [view.camera.model for view in self.views]
        return [(model.rotation, model.eye) for model in models if isinstance(model, OpenCVModel | SensorModel)]


def _load(path: Path, photographs: Path | None, sensors: bool) -> Capture:
    if not path.is_dir():
        if path.is_file() and path.suffix.lower() != ".json":
            raise _no_data_set(path)
        return _load_file(path, photographs, sensors)
    if (path / "transforms.json").is_file():
        return _load_file(path / "transforms.json", photographs, sensors)
    if (path / _BLENDER).is_file():
        return _load_blender(path, photographs, sensors)
    if (keyframes := find_keyframes(path)) is not None:
        return Capture(read_keyframes(keyframes, photographs, sensors))
    model = find_model(path)
    if model is not None:
        return Capture(*read_model(model, photographs, sensors))
    if (path / "cameras.json").is_file():
        return _load_file(path / "cameras.json", photographs, sensors)
    if _is_scene(path):
        raise _no_data_set(path)
    raise malformed(
        path,
        "expected transforms.json or transforms_train.json, cameras.json, images.bin or images.txt of COLMAP, also "
        "in sparse/0, or keyframes/ of Polycam; photographs alone have no cameras: `lumigrad capture` finds "
        "them",
    )


def _is_scene(folder: Path) -> bool:
    """Whether a folder is an unbundled .sog or has levels of detail; other programs have a meta.json, too."""
    meta = folder / META_NAME
    return (folder / STREAM_NAME).is_file() or (meta.is_file() and b'"means"' in meta.read_bytes())


def _is_mesh(path: Path) -> bool:
    """Whether a path is that of a file of triangles."""
    if path.suffix.lower() != ".ply" or is_gaussian_scene(path):
        return path.suffix.lower() in (".obj", ".stl")
    faces = PlyHeader.read(path).elements.get("face")
    return faces is not None and faces.count > 0


def _no_data_set(path: Path) -> InvalidArgument:
    """Returns the error for what is no data set, such as a scene."""
    expected = "expected a data set: a folder of photographs with their poses, or its .json file"
    if _is_mesh(path):
        return malformed(path, f"{expected}, got a mesh; `lumigrad query {path} --spheres FILE` measures distances")
    if path.is_dir() or path.suffix.lower() in WRITABLE:
        begin = f"`lumigrad fit DATASET --begin {path}` begins with it"
        return malformed(path, f"{expected}, got a scene; `lumigrad render` and `lumigrad info` read it, and {begin}")
    return malformed(path, f"{expected}; unzip it first" if is_zipfile(path) else expected)


def _load_blender(folder: Path, photographs: Path | None, sensors: bool) -> Capture:
    fitted = _load_file(folder / _BLENDER, photographs, sensors)
    for path in (folder / name for name in _HELD_OUT):
        if fitted.split is None and path.is_file() and _has_others(path, photographs, fitted.views):
            views = [*fitted.views, *_load_file(path, photographs, sensors).views]
            # Both files call their photographs r_0, r_1 and so on.
            names = unique_names([view.file for view in views])
            named = [replace(view, name=name) for view, name in zip(views, names, strict=True)]
            split = Split(frozenset(names[: len(fitted)]), frozenset(names[len(fitted) :]))
            return replace(fitted, views=tuple(named), split=split)
    return fitted


def _has_others(path: Path, photographs: Path | None, views: Sequence[View]) -> bool:
    """Whether a transforms.json names photographs that are there and are not those of the views.

    Such a file need not say sizes, so it cannot be read without its photographs.
    """
    top, files = Fields(path, read_json(path)), Files(photographs or path.parent)
    frames = [Fields(path, frame, f"frames[{k}]") for k, frame in enumerate(top.objects("frames"))]
    found = [files.picture(frame.file_name("file_path"), moved=photographs is not None) for frame in frames]
    return not set(found) <= {None, *(view.image for view in views)}


def _load_file(path: Path, photographs: Path | None, sensors: bool) -> Capture:
    values = read_json(path)
    if isinstance(values, dict) and "frames" in values:
        return Capture(*read_transforms_json(path, values, photographs, sensors))
    if isinstance(values, list):
        folder = path.parent / "images" if photographs is None else photographs
        views = read_cameras_json(path, values, folder, sensors)
        # The initial points of the training.
        points = path.with_name("input.ply")
        return Capture(views, Points.load(points) if points.is_file() else None)
    raise malformed(path, 'expected a list of cameras (Inria) or an object with "frames" (nerfstudio)')
