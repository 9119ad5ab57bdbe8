"""Chooses a view that shows a fitted scene well: that of a typical photograph of the capture."""

from __future__ import annotations

import math

import numpy as np

from lumigrad.client.datasets.capture import Capture
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.fitting.background import Background
from lumigrad.client.formats.beside import SceneView
from lumigrad.client.values.camera_models import OpenCVModel, SensorModel

# The least distance of the view's target, relative to the distance of the point that all cameras look at.
_LEAST_DEPTH = 0.1


def first_view(capture: Capture, background: Background) -> SceneView:
    """Returns the view of the camera whose distance and height, seen from the subject, are closest to the medians."""
    models = [view.camera.model for view in capture.views if isinstance(view.camera.model, OpenCVModel | SensorModel)]
    if not models:
        raise InvalidArgument.of("dataset", "expected a camera of OpenCV's model or a sensor, got none")
    offsets = np.array([model.eye for model in models]) - capture.focus
    distances = np.maximum(np.linalg.norm(offsets, axis=1), 1e-9)
    heights = offsets @ capture.up / distances
    unusual = np.abs(heights - np.median(heights)) + np.abs(np.log(distances / np.median(distances)))
    index = int(unusual.argmin())
    model = models[index]
    view = next(view for view in capture.views if view.camera.model is model)
    depth = max(float(-offsets[index] @ model.rotation[2]), _LEAST_DEPTH * float(distances[index]))
    tangent = view.camera.height / 2 / view.camera.paraxial_focal_lengths[1]
    return SceneView(
        eye=_rounded(model.eye, depth),
        target=_rounded(model.eye + depth * model.rotation[2], depth),
        up=_rounded(capture.up, 1.0),
        fov_degrees=round(math.degrees(2 * math.atan(tangent)), 3),
        background=background.color if any(background.color) else None,
    )


def _rounded(vector: np.ndarray, size: float) -> tuple[float, ...]:
    """Returns numbers to six decimals, or in a scene of a smaller size to six digits of it."""
    decimals = 6 - min(math.floor(math.log10(size)), 0)
    return tuple(round(float(value), decimals) for value in vector)
