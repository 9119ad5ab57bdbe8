"""Trainings in this process, without a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from lumigrad.server.core.config import Config
from lumigrad.server.core.limits import Limits
from lumigrad.server.core.record import StageTimes
from lumigrad.server.training.density import DensityState
from lumigrad.server.training.parameters import Parameters
from lumigrad.server.training.spec import TrainingPlan
from lumigrad.server.training.state import TrainingState
from lumigrad.server.training.views import Views
from lumigrad.v1 import camera_pb2, density_pb2, gaussians_pb2, training_pb2
from support.calls.gaussian_calls import gaussian_cloud
from support.calls.raw_calls import opencv_camera
from support.calls.raw_training import RATES

SIZE = (24, 16)
LIMITS = Limits.of(Config())
# Rows are added and removed at steps 2 and 4, opacities are reset at step 3.
DENSITIES: dict[str, density_pb2.DensityControl | None] = {
    "none": None,
    "adaptive": density_pb2.DensityControl(
        extent=2.0,
        adaptive=density_pb2.DefaultStrategy(
            start=0, every=2, grow_gradient=1e-7, grow_scale=0.05, prune_opacity=0.2, reset_every=3
        ),
    ),
    "mcmc": density_pb2.DensityControl(
        extent=2.0, mcmc=density_pb2.McmcStrategy(start=0, every=2, cap=50, min_opacity=0.3, noise=5e3)
    ),
}
EVERYTHING = {**RATES, "poses": 1e-3, "intrinsics": 1e-3, "exposures": 1e-2}


class Wanted:
    def __init__(self) -> None:
        self.times = StageTimes()

    def check(self) -> None:
        pass


def state_of(
    kind: str,
    rates: Mapping[str, float] = EVERYTHING,
    change: Callable[[training_pb2.TrainingSpec], object] = lambda spec: None,
    *,
    levels: bool = False,
    coefficients: int = 4,
    planes: Sequence[str] = (),
    camera: Callable[..., camera_pb2.Camera] = opencv_camera,
    calibrations: Sequence[int | None] = (None, None, None),
) -> TrainingState:
    """A training of few Gaussians; by default it optimises everything, and `change` may change its spec.

    With `levels`, target images are uint8. With 0 coefficients there are colours instead of harmonics. `planes` are
    what target images have besides colours. Views without a number in `calibrations` have one each.
    """
    known = gaussian_cloud(40, coefficients=coefficients)
    cloud = {name: torch.from_numpy(array) for name, array in known.items()}
    spec = training_pb2.TrainingSpec(
        gaussians=gaussians_pb2.GaussianSettings(),
        optimizer=training_pb2.Optimizer(rates={name: training_pb2.Rate(initial=r) for name, r in rates.items()}),
        loss=training_pb2.Loss(l1=0.8, dssim=0.2, opacity=0.01, scale=0.01),
        density=DENSITIES[kind],
        seed=7,
    )
    change(spec)
    shapes = {name: list(tensor.shape) for name, tensor in cloud.items()}
    plan = TrainingPlan.of(spec, "gaussians", shapes, LIMITS, "spec")
    generator = np.random.default_rng(0)
    pictures = [picture(generator, planes, levels=levels) for _ in range(3)]
    target_images: list[Any] = [SimpleNamespace(tensors=tensors, bytes=1) for tensors in pictures]
    cameras = [
        training_pb2.TrainingView(camera=camera(*SIZE, x=0.1 * index), calibration=calibration)
        for index, calibration in enumerate(calibrations)
    ]
    parameters = Parameters.of_scene(cloud, plan.optimizer)
    density = None if plan.density is None else DensityState(plan.density, parameters)
    reservation: Any = SimpleNamespace(bytes=0, copied_bytes=0, grow=lambda count: None, resize=lambda count: None)
    return TrainingState("scene", plan, Views(cameras, target_images), parameters, density, reservation)


def picture(generator: np.random.Generator, planes: Sequence[str], *, levels: bool) -> dict[str, torch.Tensor]:
    """A target image; a fifth of its depths is unknown, a third of its mask is 0."""
    color = torch.from_numpy(generator.random((SIZE[1], SIZE[0], 3), np.float32))
    tensors = {"color": (color * 255).round().to(torch.uint8) if levels else color}
    mask, depth = (torch.from_numpy(generator.random((SIZE[1], SIZE[0]), np.float32)) for _ in range(2))
    if "mask" in planes:
        mask = torch.where(mask < 1 / 3, 0.0, mask)
        tensors["mask"] = (mask * 255).round().to(torch.uint8) if levels else mask
    if "depth" in planes:
        tensors["depth"] = torch.where(depth < 0.2, 0.0, 2.0 + 4.0 * depth)
    return tensors


def sensor_camera(width: int, height: int, x: float = 0.0) -> camera_pb2.Camera:
    """A moving fisheye camera with a rolling shutter."""
    camera = camera_pb2.Camera(width=width, height=height)
    sensor = camera.sensor
    sensor.shutter = camera_pb2.SHUTTER_TOP_TO_BOTTOM
    for pose, along in ((sensor.start, x), (sensor.end, x + 0.02)):
        pose.rotation.extend(np.eye(3).ravel().tolist())
        pose.translation.extend([-along, 0, 0])
    lens = sensor.fisheye
    lens.fx = lens.fy = 1.5 * width
    lens.cx, lens.cy = width / 2, height / 2
    lens.radial.extend([0.01, 0.0, 0.0, 0.0])
    return camera
