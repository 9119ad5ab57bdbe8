"""The transforms.json of nerfstudio, instant-ngp and the Blender scenes of NeRF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from lumigrad.client.base.arrays import Float64
from lumigrad.client.base.cautions import warn_caller
from lumigrad.client.datasets import calibration
from lumigrad.client.datasets.fields import Fields, opengl_pose
from lumigrad.client.datasets.files import Files, portable, unique_names
from lumigrad.client.datasets.nerfstudio_lens import SharedFocal, lens_of, say_ignored
from lumigrad.client.datasets.points import Points
from lumigrad.client.datasets.view import Split, View
from lumigrad.client.formats.source import malformed, shortened
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import SensorModel

# The pose when the last row of a rolling shutter is exposed.
END_POSE = "transform_matrix_end"
# The lists of photographs to fit, and of those to evaluate a fit with.
LISTS = ("train_filenames", "val_filenames", "test_filenames")
_FIELDS = ("frames", "file_path", "mask_path", "ply_file_path", "transform_matrix")


def read_transforms_json(
    path: Path, values: Any, images: Path | None, sensors: bool
) -> tuple[tuple[View, ...], Points | None, Split | None]:
    """Reads the views in the file's order, the file of points that it names, and which views it holds out.

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
    names = unique_names(files)
    beside, photographs = Files(path.parent), Files(images or path.parent)
    views, shared = [], SharedFocal(top)
    for frame, name, file in zip(frames, names, files, strict=True):
        image = photographs.picture(file, moved=images is not None)
        mask = _mask(frame, beside)
        if calibration.PARAMETERS in frame:
            views.append(View(name, _sensor(frame), image, mask, file))
            continue
        lens = lens_of(frame, image)
        shared.check(frame, lens)
        if why := lens.unrenderable:
            raise malformed(path, f"{frame.where}.camera_model: {why}")
        views.append(View(name, lens.camera(*_pose(frame, "transform_matrix"), sensors), image, mask, file))
    rolling = any(
        isinstance(view.camera.model, SensorModel) and view.camera.model.shutter != "global" for view in views
    )
    say_ignored(top, frames, (*_FIELDS, *LISTS, *([END_POSE] if rolling else [])))
    return tuple(views), _points(top, beside), _split(top, files, names)


def _sensor(frame: Fields) -> Camera:
    """Returns the camera of a frame that has a calibration of its own, see `client.datasets.calibration`."""
    found = calibration.Calibration.read(frame)
    end = None if found.shutter == "global" else _pose(frame, END_POSE)
    return found.camera(_pose(frame, "transform_matrix"), end)


def _pose(frame: Fields, name: str) -> tuple[Float64, Float64]:
    """Returns rotation [3, 3] and translation [3], world to camera."""
    return opengl_pose(frame, name, frame.array(name, (4, 4), (3, 4)))


def _split(top: Fields, files: Sequence[str], names: Sequence[str]) -> Split | None:
    """Returns the views that the file's lists name for fitting and for evaluation; None without lists."""
    named: dict[PurePosixPath, list[str]] = {}
    for file, name in zip(files, names, strict=True):
        named.setdefault(PurePosixPath(portable(file)), []).append(name)
    lists = {}
    for field in (field for field in LISTS if field in top):
        for file in top.objects(field):
            if not isinstance(file, str) or PurePosixPath(portable(file)) not in named:
                raise top.fail(field, "a list of the file_path of frames", file)
        lists[field] = {name for file in top.objects(field) for name in named[PurePosixPath(portable(file))]}
    if not lists:
        return None
    _warn_of_both(top, lists)
    train, *others = (lists.get(field) for field in LISTS)
    held_out = set().union(*(each for each in others if each))
    if train is None:
        return Split(frozenset(set(names) - held_out), frozenset(held_out))
    return Split(frozenset(train), frozenset(held_out or set(names) - train))


def _warn_of_both(top: Fields, lists: Mapping[str, set[str]]) -> None:
    """Warns of photographs that the file's lists name both for fitting and for evaluation."""
    train, *others = LISTS
    for field in others:
        both = sorted(lists.get(train, set()) & lists.get(field, set()))
        if both:
            text = f"{train} and {field} both name {shortened(', '.join(both), 300)}"
            warn_caller(f"{top.path}: {text}: scores of a fit will be those of photographs that it was fitted to")


def _mask(frame: Fields, beside: Files) -> Path | None:
    """Returns the path of the frame's mask, even if there is no such file."""
    if "mask_path" not in frame:
        return None
    name = frame.file_name("mask_path")
    return beside.picture(name) or beside.place(name)


def _points(top: Fields, beside: Files) -> Points | None:
    if "ply_file_path" not in top:
        return None
    name = top.file_name("ply_file_path")
    return Points.load(beside.find(name) or beside.place(name))
