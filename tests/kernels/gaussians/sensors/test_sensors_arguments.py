"""Invalid arguments of sensors are refused, each by name, with the expected and the actual value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels.gaussians import (
    Camera,
    FisheyeLens,
    FThetaLens,
    Gaussians,
    OrthographicLens,
    PinholeLens,
    Settings,
    UnscentedTransform,
    Windshield,
    backward,
    forward,
)
from support.gaussians.sensor_cases import END, FISHEYE, FOCAL, GLASS, PINHOLE, START, scene
from support.refusals import refused

FTHETA = {"cx": 8.0, "cy": 6.0, "max_angle": 1.2, "angle_to_pixel_distance": (0.0, 20.0)}
POSE = {"rotation": START[:3, :3], "translation": START[:3, 3]}
END_POSE = {"end_rotation": END[:3, :3], "end_translation": END[:3, 3]}


def ftheta(**changes: Any) -> FThetaLens:
    return FThetaLens(**{**FTHETA, **changes})


def sensor(lens: Any = PINHOLE, **changes: Any) -> Camera:
    return Camera.sensor(lens, **{**POSE, "width": 16, "height": 12, **changes})


def render(cameras: list[Camera], gaussians: Gaussians | None = None, **settings: Any) -> Any:
    return forward(gaussians or Gaussians(**scene(5)), cameras, Settings(**settings), retain=True)


@pytest.mark.parametrize(
    ("make", "argument", "words"),
    [
        (lambda: PinholeLens(**{**FOCAL, "fx": 0.0}), "fx", ("other than 0", "0.0")),
        (lambda: PinholeLens(**{**FOCAL, "fy": float("inf")}), "fy", ("inf",)),
        (lambda: PinholeLens(**{**FOCAL, "cx": float("nan")}), "cx", ("finite", "nan")),
        (lambda: PinholeLens(**FOCAL, radial=[0.1] * 7), "radial", ("0 to 6",)),
        (lambda: PinholeLens(**FOCAL, radial=[float("nan")]), "radial", ("nan",)),
        (lambda: PinholeLens(**FOCAL, radial="many"), "radial", ("many",)),
        (lambda: PinholeLens(**FOCAL, tangential=[0.1]), "tangential", ("0 or 2",)),
        (lambda: PinholeLens(**FOCAL, thin_prism=[0.1] * 3), "thin_prism", ("0 or 4",)),
        (lambda: PinholeLens(**FOCAL, domain="all"), "domain", ("monotone", "all")),
        (lambda: FisheyeLens(**FOCAL, radial=[0.1] * 5), "radial", ("0 to 4",)),
        (lambda: FisheyeLens(**FOCAL, max_angle=3.2), "max_angle", ("3.2",)),
        (lambda: FisheyeLens(**FOCAL, behind="yes"), "behind", ("True or False", "yes")),
        (lambda: FisheyeLens(**FOCAL, radial=(-0.2,), max_angle=1.5), "max_angle", ("1.29", "1.5")),
        (lambda: ftheta(angle_to_pixel_distance=(0.0, -20.0)), "angle_to_pixel_distance", ("rises",)),
        (lambda: ftheta(angle_to_pixel_distance=()), "angle_to_pixel_distance", ("rises",)),
        (lambda: ftheta(reference="pixel_distance_to_angle"), "pixel_distance_to_angle", ("rises",)),
        (lambda: ftheta(angle_to_pixel_distance=(0, 20.0, -10.0)), "max_angle", ("at most 1,", "1.2")),
        (
            lambda: ftheta(reference="pixel_distance_to_angle", pixel_distance_to_angle=(0, 0.05, -0.001)),
            "max_angle",
            ("at most 0.625", "1.2"),
        ),
        (lambda: ftheta(max_angle=0.0), "max_angle", ("above 0",)),
        (lambda: ftheta(linear=(0.0, 1.0, 0.0)), "linear", ("other than 0",)),
        (lambda: ftheta(reference="both"), "reference", ("both",)),
        (lambda: Windshield(horizontal=[0.0, 1.0], vertical=[0.0]), "horizontal", ("1 or 3 or 6",)),
        (lambda: UnscentedTransform(alpha=0.0), "unscented.alpha", ("0.001", "0.0")),
        (lambda: UnscentedTransform(kappa=-3.0), "unscented.kappa", ("-3",)),
        (lambda: UnscentedTransform(require_all=1), "unscented.require_all", ("True or False",)),  # type: ignore[arg-type]
        (lambda: Settings(depth_order="near"), "depth_order", ("near",)),
        (lambda: Settings(projection_method="affine"), "projection_method", ("affine",)),
        (lambda: Settings(tile_bounds="none"), "tile_bounds", ("none",)),
        (lambda: Settings(unscented=None), "unscented", ("UnscentedTransform",)),  # type: ignore[arg-type]
        (lambda: sensor(rotation=np.eye(3) * 1.001), "rotation", ("orthonormal to 0.0001",)),
        (lambda: sensor(rotation=np.diag([1.0, 1.0, -1.0])), "rotation", ("determinant 1",)),
        (lambda: sensor(translation=[0.0, float("nan"), 0.0]), "translation", ("nan",)),
        (lambda: sensor(width=0), "width", ("0",)),
        (lambda: sensor(shutter="sideways"), "end_rotation", ("sideways",)),
        (lambda: sensor(shutter="sideways", **END_POSE), "shutter", ("sideways",)),
        (lambda: sensor(shutter="top_to_bottom"), "end_rotation", ("top_to_bottom",)),
        (lambda: sensor(end_translation=[0.0] * 3), "end_translation", ("global",)),
        (lambda: sensor(shutter="top_to_bottom", row_time="late", **END_POSE), "row_time", ("late",)),
        (lambda: sensor(lens="wide"), "lens", ("str",)),
        (lambda: sensor(windshield=3), "windshield", ("int",)),
        (lambda: sensor(OrthographicLens(**FOCAL), windshield=GLASS), "windshield", ("orthographic",)),
    ],
)
def test_lenses_and_shutters_that_make_no_sense_are_refused(
    make: Callable[[], object], argument: str, words: tuple[str, ...]
) -> None:
    refused(make, argument, *words)


def test_calls_that_do_not_fit_sensors_are_refused() -> None:
    plain = Camera.opencv(9.0, 9.0, 8.0, 6.0, np.eye(3), [0.0] * 3, 16, 12)
    refused(lambda: render([sensor(), plain]), "cameras", "all sensors", "1 of 2")
    refused(lambda: render([sensor(), sensor(FISHEYE)]), "cameras", "one kind", "FisheyeLens")
    refused(lambda: render([sensor()], semantics="inria_depth"), "cameras", "inria_depth")
    refused(lambda: render([sensor()], antialiased=True), "antialiased", "sensors")
    refused(lambda: render([sensor()], pixel_center=0.0), "pixel_center", "0.5")
    tensors = {name: value for name, value in scene(5).items() if name not in ("quats", "scales")}
    covariances = Gaussians(**tensors, covariances=torch.eye(3).reshape(9)[[0, 1, 2, 4, 5, 8]].expand(5, 6))
    refused(lambda: render([sensor()], covariances), "covariances", "quats and scales")
    for name, value in (("depth_order", "distance"), ("tile_bounds", "gsplat")):
        refused(lambda name=name, value=value: render([plain], **{name: value}), name, "sensors")  # type: ignore[misc]
    jacobian = {"projection_method": "jacobian"}
    refused(lambda: render([plain], **jacobian), "projection_method", "sensors")
    moving = sensor(shutter="top_to_bottom", **END_POSE)
    refused(lambda: render([sensor(), moving], **jacobian), "projection_method", "rolling")
    state = render([plain]).state
    refused(lambda: backward(state, {"color": torch.zeros(1, 12, 16, 3)}, ["lenses"]), "wanted", "sensors")
