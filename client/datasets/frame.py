"""The frame of a capture: whether it lies too far from 0 for float32, and cameras in another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lumigrad.client.base.arrays import Float64
from lumigrad.client.base.precision import lost_at, round_point
from lumigrad.client.datasets.view import View
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import OpenCVModel, SensorModel

Offset = tuple[float, float, float]
# Largest steps of float32, relative to the extent of the cameras. The learning rates of a fit's positions end at about
# the first, so coarser steps swallow the last refinements. The second is a fraction of a pixel, which is not yet
# visible.
_SWALLOWED, _COARSE = 1e-5, 1e-4
# Relative errors of the positions of equal poses.
_ROUNDING = 1e-12


def offset_of(views: Sequence[View], finest: float = _SWALLOWED) -> Offset | None:
    """Returns a round point among the cameras if float32 is too coarse for them; None if they are close enough to 0."""
    positions, extent = _places(views)
    if not lost_at(float(np.abs(positions).max()), finest * extent):
        return None
    x, y, z = (float(value) for value in round_point(positions.mean(axis=0), extent))
    return x, y, z


def lost_by_views(views: Sequence[View]) -> str:
    """Returns what float32 does to cameras this far from 0, and what helps; empty if its steps are fine enough."""
    offset = offset_of(views, _COARSE)
    if offset is None:
        return ""
    positions, extent = _places(views)
    text = f"{lost_at(float(np.abs(positions).max()), 0.0)}, coarse for cameras within {extent:.3g}"
    back = ", ".join(f"{-value:.15g}" for value in offset)
    return f"{text}; capture.moved(({back})) is the same near 0, with cameras and points moved in float64"


def _places(views: Sequence[View]) -> tuple[Float64, float]:
    """Returns the positions of cameras [V, 3], and their largest distance from the mean; 1 for cameras at one place."""
    positions = np.array([view.camera.position for view in views], np.float64)
    extent = float(np.linalg.norm(positions - positions.mean(axis=0), axis=1).max())
    # Smaller distances are rounding errors.
    return positions, extent if extent > _ROUNDING * float(np.abs(positions).max()) else 1.0


def moved(camera: Camera, translation: Float64) -> Camera:
    """Returns a camera of a world that was moved by a translation [3]; OpenCV's model and sensors only."""
    model = camera.model
    if isinstance(model, OpenCVModel):
        shifted = model.translation - model.rotation @ translation
        return replace(camera, model=replace(model, translation=shifted))
    if not isinstance(model, SensorModel):
        raise InvalidArgument.of("views", f"expected cameras of OpenCV's model or sensors, got {type(model).__name__}")
    changed = replace(model, translation=model.translation - model.rotation @ translation)
    if model.end_rotation is not None and model.end_translation is not None:
        changed = replace(changed, end_translation=model.end_translation - model.end_rotation @ translation)
    if model.rays is not None:
        changed = replace(changed, rays=model.rays + np.concatenate([translation, np.zeros(3)]))
    return replace(camera, model=changed)
