"""Invalid settings, cameras and transforms are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lumigrad.kernels.gaussians import Camera, Settings, Transform
from support.refusals import refused

EYE = np.eye(3).tolist()
FRAME = np.eye(4)


def view(width: int = 16, height: int = 12, **options: Any) -> Camera:
    return Camera.opencv(9.0, 9.0, 8.0, 6.0, EYE, [0.0] * 3, width, height, **options)


def inria(**changes: Any) -> Camera:
    given = {"view_matrix": FRAME, "full_projection": FRAME, "position": [0.0] * 3, "tan_fov_x": 0.5, "tan_fov_y": 0.5}
    return Camera.inria(**{**given, "width": 16, "height": 12, **changes})


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("semantics", "Exact"),
        ("semantics", "inria"),
        ("sh_degree", 5),
        ("sh_degree", -1),
        ("sh_degree", 1.5),
        ("antialiased", 1),
        ("deterministic", "yes"),
        ("eps2d", -0.1),
        ("eps2d", "a"),
        ("eps2d", float("nan")),
        ("near", 0.0),
        ("near", float("inf")),
        ("near", float("nan")),
        ("far", 0.01),
        ("far", None),
        ("far", float("nan")),
        ("radius_clip", -1.0),
        ("alpha_min", 0.0),
        ("alpha_min", 1.0),
        ("alpha_max", 1.0),
        ("alpha_max", 1 / 255),
        ("transmittance_min", 1.0),
        ("transmittance_min", -1e-9),
        ("pixel_center", 0.25),
        ("scale_modifier", 0.0),
        ("scale_modifier", float("inf")),
    ],
)
def test_setting_out_of_range_is_named(argument: str, value: object) -> None:
    options: dict[str, Any] = {argument: value}
    refused(lambda: Settings(**options), argument)


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("width", lambda: view(0, 12)),
        ("width", lambda: view(40000, 12)),
        ("height", lambda: view(16, -3)),
        ("model", lambda: view(model="ortho")),
        ("distortion", lambda: view(distortion=[0.1])),
        ("distortion", lambda: view(distortion=[float("nan")] * 4)),
        ("distortion", lambda: view(distortion=[0.1, 0, 0, 0], model="fisheye")),
        ("rotation", lambda: Camera.opencv(9.0, 9.0, 8.0, 6.0, np.eye(2).tolist(), [0.0] * 3, 16, 12)),
        ("rotation", lambda: Camera.opencv(9.0, 9.0, 8.0, 6.0, [["a"] * 3] * 3, [0.0] * 3, 16, 12)),
        ("rotation", lambda: Camera.opencv(9.0, 9.0, 8.0, 6.0, [[float("nan")] * 3] * 3, [0.0] * 3, 16, 12)),
        ("translation", lambda: Camera.opencv(9.0, 9.0, 8.0, 6.0, EYE, [0.0] * 2, 16, 12)),
        ("fx", lambda: Camera.opencv(0.0, 9.0, 8.0, 6.0, EYE, [0.0] * 3, 16, 12)),
        ("fy", lambda: Camera.opencv(9.0, -9.0, 8.0, 6.0, EYE, [0.0] * 3, 16, 12)),
        ("cx", lambda: Camera.opencv(9.0, 9.0, float("inf"), 6.0, EYE, [0.0] * 3, 16, 12)),
        ("cy", lambda: Camera.opencv(9.0, 9.0, 8.0, "6", EYE, [0.0] * 3, 16, 12)),
        ("view_matrix", lambda: inria(view_matrix=np.eye(3))),
        # This matrix is for column vectors.
        ("view_matrix", lambda: inria(view_matrix=FRAME + np.outer([1, 1, 1, 0], [0, 0, 0, 1]))),
        ("full_projection", lambda: inria(full_projection=np.full((4, 4), np.inf))),
        ("position", lambda: inria(position=[0.0, 0.0])),
        ("tan_fov_x", lambda: inria(tan_fov_x=0.0)),
        ("tan_fov_y", lambda: inria(tan_fov_y=float("nan"))),
    ],
)
def test_impossible_camera_is_named(argument: str, call: Callable[[], object]) -> None:
    refused(call, argument)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Transform(3, 3, FRAME),
        lambda: Transform(-1, 3, FRAME),
        lambda: Transform(0, 2, 2 * FRAME),
        lambda: Transform(0, 2, np.diag([1.0, 1.0, -1.0, 1.0])),
        lambda: Transform(0, 2, np.eye(3)),
        lambda: Transform(0, 2, FRAME + np.outer([0, 0, 0, 1], [1, 0, 0, 0])),
        lambda: Transform(0, 2, np.full((4, 4), np.nan)),
    ],
)
def test_impossible_transform_is_named(call: Callable[[], object]) -> None:
    refused(call, "transforms")
