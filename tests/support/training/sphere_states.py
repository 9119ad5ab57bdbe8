"""Trainings of spheres in this process, of random kinds, and the views of some steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from lumigrad.server.training.parameters import Parameters
from lumigrad.server.training.spec import TrainingPlan
from lumigrad.server.training.state import TrainingState
from lumigrad.server.training.views import Views
from lumigrad.v1 import camera_pb2, spheres_pb2, training_pb2
from support.calls.raw_calls import opencv_camera, pulsar_camera, sphere_cloud
from support.training.states import LIMITS, SIZE

SPHERE_RATES = {"positions": 2e-3, "colors": 1e-2, "radii": 5e-3, "opacities": 2e-2}
STEPS = 7


def sphere_state(
    change: Callable[[training_pb2.TrainingSpec], object] = lambda spec: None,
    *,
    rates: Mapping[str, float] = SPHERE_RATES,
    channels: int = 3,
    has_opacities: bool = True,
    has_masks: bool = False,
    levels: bool = False,
    pulsars: tuple[bool, bool, bool] = (False, False, False),
) -> TrainingState:
    """A training of few spheres; `change` may change its spec, and `pulsars` tells which of three cameras are Pulsar's.

    With `levels`, target images are uint8.
    """
    cloud = {name: torch.from_numpy(array) for name, array in sphere_cloud(40, channels).items()}
    if not has_opacities:
        cloud.pop("opacities", None)
    elif "opacities" not in cloud:
        cloud["opacities"] = torch.linspace(0.2, 0.9, 40)
    known = {*cloud, "exposures", "poses"}
    spec = training_pb2.TrainingSpec(
        spheres=spheres_pb2.SphereSettings(gamma=0.1),
        optimizer=training_pb2.Optimizer(
            rates={name: training_pb2.Rate(initial=rate) for name, rate in rates.items() if name in known}
        ),
        loss=training_pb2.Loss(l1=0.8, dssim=0.2, opacity=0.01, scale=0.01),
    )
    change(spec)
    shapes = {name: list(tensor.shape) for name, tensor in cloud.items()}
    plan = TrainingPlan.of(spec, "spheres", shapes, LIMITS, "spec")
    generator = np.random.default_rng(0)
    pictures = [_picture(generator, channels, has_masks=has_masks, levels=levels) for _ in range(3)]
    images: list[Any] = [SimpleNamespace(tensors=tensors, bytes=1) for tensors in pictures]
    views = [training_pb2.TrainingView(camera=_camera(number, is_pulsar)) for number, is_pulsar in enumerate(pulsars)]
    parameters = Parameters.of_scene(cloud, plan.optimizer)
    reservation: Any = SimpleNamespace(bytes=0, copied_bytes=0, grow=lambda count: None, resize=lambda count: None)
    return TrainingState("scene", plan, Views(views, images), parameters, None, reservation)


def random_spheres(seed: int) -> tuple[TrainingState, list[list[int]]]:
    chance = random.Random(seed)
    channels, count = chance.choice((1, 3, 3, 5)), chance.choice((1, 1, 2, 3))
    is_exact, has_masks = chance.random() < 0.6, chance.random() < 0.5
    rates = {name: rate for name, rate in SPHERE_RATES.items() if chance.random() < 0.8} or {"colors": 1e-2}
    has_opacities = chance.random() < 0.6
    if rates.keys() <= {"opacities"} and not has_opacities:
        rates["radii"] = 5e-3
    if channels == 3 and chance.random() < 0.4:
        rates["exposures"] = 1e-2

    def change(spec: training_pb2.TrainingSpec) -> None:
        weights = {name: chance.choice((0.0, chance.random())) for name in ("l1", "l2", "dssim", "opacity", "scale")}
        if is_exact and has_masks:
            weights["alpha"] = chance.choice((0.0, chance.random()))
        if not any(weights[name] for name in weights if name not in ("opacity", "scale")):
            weights["l1"] = 0.5
        spec.loss.CopyFrom(training_pb2.Loss(**weights))
        spec.loss.padding = chance.choice((training_pb2.PADDING_SAME, training_pb2.PADDING_VALID))
        spec.optimizer.visible_only = chance.random() < 0.5
        for rate in spec.optimizer.rates.values():
            if chance.random() < 0.5:
                rate.final, rate.steps = rate.initial * 0.01, 5
        _set_blending(spec.spheres, chance, channels, is_exact=is_exact)

    state = sphere_state(
        change,
        rates=rates,
        channels=channels,
        has_opacities=has_opacities,
        has_masks=has_masks,
        levels=chance.random() < 0.5,
        pulsars=chance.choice(((False,) * 3, (True,) * 3, (False, True, False))),
    )
    return state, [chance.sample(range(3), count) for _ in range(STEPS)]


def _set_blending(
    settings: spheres_pb2.SphereSettings, chance: random.Random, channels: int, *, is_exact: bool
) -> None:
    settings.semantics = spheres_pb2.SEMANTICS_EXACT if is_exact else spheres_pb2.SEMANTICS_COMPAT
    settings.gamma = chance.choice((0.0, 0.1, 0.5))
    settings.min_depth = chance.choice((0.0, 1.5))
    settings.max_depth = chance.choice((0.0, 20.0))
    settings.max_hits = chance.choice((0, 3))
    settings.n_track = chance.choice((0, 2))
    if chance.random() < 0.5:
        settings.background.extend([0.1 * channel for channel in range(channels)])


def _camera(number: int, is_pulsar: bool) -> camera_pb2.Camera:
    x = 0.1 * number
    return pulsar_camera(*SIZE, focal=1.0 + x, x=x) if is_pulsar else opencv_camera(*SIZE, x=x)


def _picture(
    generator: np.random.Generator, channels: int, *, has_masks: bool, levels: bool
) -> dict[str, torch.Tensor]:
    tensors = {"color": torch.from_numpy(generator.random((SIZE[1], SIZE[0], channels), np.float32))}
    if has_masks:
        mask = torch.from_numpy(generator.random((SIZE[1], SIZE[0]), np.float32))
        tensors["mask"] = torch.where(mask < 1 / 3, 0.0, mask)
    return {name: (tensor * 255).round().to(torch.uint8) if levels else tensor for name, tensor in tensors.items()}
