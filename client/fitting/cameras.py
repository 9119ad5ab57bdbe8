"""The cameras of a fit: their calibrations and their refined poses and lenses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lumigrad.client.datasets.capture import Capture
from lumigrad.client.datasets.view import resized
from lumigrad.client.fitting.centring import with_offset
from lumigrad.client.fitting.recipe import Recipe
from lumigrad.client.fitting.shot import Shot
from lumigrad.client.formats.beside import Offset
from lumigrad.client.training.options import calibrations_of
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import OpenCVModel, SensorModel
from lumigrad.client.values.lenses import FisheyeLens, PinholeLens

# If less than this share of the axes' directions is perpendicular to their common one, where they meet is undetermined.
_LEAST_SPREAD = 0.02


def begun(shots: Sequence[Shot], recipe: Recipe) -> list[Shot]:
    """Returns shots ready to be refined: if the recipe refines lenses, those without coefficients get k1 = k2 = 0."""
    return [replace(shot, camera=_with_coefficients(shot.camera)) for shot in shots] if recipe.lenses else list(shots)


def _with_coefficients(camera: Camera) -> Camera:
    model = camera.model
    if not isinstance(model, SensorModel) or not isinstance(model.lens, PinholeLens | FisheyeLens) or model.lens.radial:
        return camera
    return replace(camera, model=replace(model, lens=replace(model.lens, radial=(0.0, 0.0))))


def shared_calibrations(fitted: Sequence[Shot], views: int) -> list[int]:
    """Returns the calibration of each view of a training; the views at half size, which come last, share them."""
    return calibrations_of([shot.camera for shot in fitted]) * (views // len(fitted))


def with_refined(shots: Sequence[Shot], fitted: Sequence[Shot], found: Sequence[Camera]) -> list[Shot]:
    """Returns shots with refined cameras; shots that were not fitted get only the refined lens of their calibration.

    Args:
        shots: the shots.
        fitted: the fitted shots, with their original cameras.
        found: the refined cameras of the fitted shots.
    """
    by_name = {shot.name: camera for shot, camera in zip(fitted, found, strict=True)}
    numbers = calibrations_of([shot.camera for shot in (*fitted, *shots)])
    lenses = dict(zip(numbers, found, strict=False))
    result = []
    for shot, number in zip(shots, numbers[len(fitted) :], strict=True):
        camera = by_name.get(shot.name)
        if camera is None:
            camera = _with_lens(shot.camera, lenses[number]) if number in lenses else shot.camera
        result.append(replace(shot, camera=camera))
    return result


def _with_lens(camera: Camera, other: Camera) -> Camera:
    """Returns a camera with the intrinsics and the lens of another."""
    model, found = camera.model, other.model
    if isinstance(model, SensorModel) and isinstance(found, SensorModel):
        return replace(camera, model=replace(model, lens=found.lens, windshield=found.windshield))
    assert isinstance(model, OpenCVModel) and isinstance(found, OpenCVModel)
    return replace(camera, model=replace(model, fx=found.fx, fy=found.fy, cx=found.cx, cy=found.cy))


def looking_away(capture: Capture) -> int:
    """Returns how many cameras have the point where their axes meet behind them; 0 if the axes are nearly parallel."""
    models = [view.camera.model for view in capture.views]
    known = [model for model in models if isinstance(model, OpenCVModel | SensorModel)]
    axes = np.array([model.rotation[2] for model in known]).reshape(-1, 3)
    # The squared spectral norm is the axes' spread along their common direction.
    if np.linalg.norm(axes, 2) ** 2 > (1 - _LEAST_SPREAD) * len(axes):
        return 0
    offsets = capture.focus - np.array([model.eye for model in known])
    return int((np.sum(axes * offsets, axis=1) < 0).sum())


def save_refined(capture: Capture, shots: Sequence[Shot], folder: Path, offset: Offset | None) -> None:
    """Writes the refined cameras of a data set to transforms.json in a folder, in the data set's frame.

    Args:
        capture: the data set, in the frame of the fit.
        shots: the refined cameras, by name.
        folder: the folder.
        offset: the offset that was subtracted from the data set's coordinates; None: none.
    """
    cameras = {shot.name: shot.camera for shot in shots}
    views = [
        replace(view, camera=resized(cameras[view.name], view.camera.width, view.camera.height))
        for view in capture.views
        if view.name in cameras
    ]
    with_offset(Capture(tuple(views), split=capture.split), offset).save(folder)
