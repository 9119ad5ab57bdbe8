"""Trainings of random kinds, and the views of some steps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from lumigrad.server.training.state import TrainingState
from lumigrad.v1 import gaussians_pb2, training_pb2
from support.calls.raw_calls import opencv_camera
from support.calls.raw_training import RATES
from support.training.states import DENSITIES, sensor_camera, state_of

STEPS = 7


def _look(chance: random.Random, settings: gaussians_pb2.GaussianSettings, kind: str) -> Any:
    """Chooses how Gaussians are drawn; returns a function that makes the cameras."""
    of = chance.choice(("film", "film", "sensors", "rays", "surfels"))
    if of == "surfels":
        settings.primitive = gaussians_pb2.PRIMITIVE_SURFEL
        return opencv_camera
    settings.semantics = chance.choice(
        (gaussians_pb2.GAUSSIAN_SEMANTICS_EXACT, gaussians_pb2.GAUSSIAN_SEMANTICS_GSPLAT)
    )
    settings.antialiased = of == "film" and chance.random() < 0.5
    if of == "rays" and kind != "adaptive":
        settings.response = gaussians_pb2.RESPONSE_RAY
    if of != "film" and chance.random() < 0.3:
        settings.projection_method = gaussians_pb2.PROJECTION_METHOD_UNSCENTED
        return opencv_camera
    return opencv_camera if of == "film" else sensor_camera


def random_state(seed: int, *, deterministic: bool = False) -> tuple[TrainingState, list[list[int]]]:
    chance = random.Random(seed)
    kind = chance.choice(list(DENSITIES))
    count, planes = chance.choice((1, 1, 2, 3)), chance.choice(((), ("mask",), ("depth",), ("mask", "depth")))
    seen = gaussians_pb2.GaussianSettings()
    camera = _look(chance, seen, kind)
    # Parameters that density control needs.
    needed = {"means", "quats", "scales", "opacities"} if kind != "none" else {chance.choice(list(RATES))}
    coefficients = chance.choice((0, 1, 4, 9))
    color = {"colors": 1e-2} if not coefficients else {name: RATES[name] for name in ("sh0", "sh_rest")}
    rates = {**{name: rate for name, rate in RATES.items() if not name.startswith("sh")}, **color}
    rates = {name: rate for name, rate in rates.items() if name in needed or chance.random() < 0.8} or color
    if chance.random() < 0.4:
        rates["exposures"] = 1e-2
    is_exact, is_film = seen.semantics != gaussians_pb2.GAUSSIAN_SEMANTICS_GSPLAT, not seen.projection_method
    refined = ("poses", "intrinsics" if camera is opencv_camera else "end_poses")
    for name in refined if is_exact else ("poses",) if camera is opencv_camera and is_film else ():
        if chance.random() < 0.6 and (is_film or name == "poses"):
            rates[name] = 1e-3

    def change(spec: training_pb2.TrainingSpec) -> None:
        weights = {name: chance.choice((0.0, chance.random())) for name in ("l1", "l2", "dssim", "opacity", "scale")}
        weights |= {name: chance.random() for name, plane in (("depth", "depth"), ("alpha", "mask")) if plane in planes}
        if not any(weights[name] for name in weights if name not in ("opacity", "scale")):
            weights["l1"] = 0.5
        spec.loss.CopyFrom(training_pb2.Loss(**weights))
        spec.loss.padding = chance.choice((training_pb2.PADDING_SAME, training_pb2.PADDING_VALID))
        spec.optimizer.visible_only = chance.random() < 0.5
        for rate in spec.optimizer.rates.values():
            if chance.random() < 0.5:
                rate.final, rate.steps = rate.initial * 0.01, 5
        spec.sh_degree_every = chance.choice((0, 2)) if coefficients else 0
        spec.gaussians.CopyFrom(seen)
        spec.gaussians.deterministic = deterministic
        spec.gaussians.background.extend(chance.choice(((), (0.2, 0.5, 0.7))))
        if kind == "adaptive":
            spec.density.adaptive.absolute_gradients = chance.random() < 0.5

    levels = chance.random() < 0.5
    calibrations = chance.choice(((None, None, None), (0, 1, 0)))
    options: dict[str, Any] = {"coefficients": coefficients, "camera": camera, "calibrations": calibrations}
    state = state_of(kind, rates, change, levels=levels, planes=planes, **options)
    return state, [chance.sample(range(3), count) for _ in range(STEPS)]


def with_surfaces(kind: str, planes: Sequence[str] = (), **weights: float) -> TrainingState:
    """A training of surfels with terms of surfaces, by default from step 2 on."""

    def change(spec: training_pb2.TrainingSpec) -> None:
        spec.gaussians.primitive = gaussians_pb2.PRIMITIVE_SURFEL
        spec.loss.surface_start = 2
        for name, weight in weights.items():
            setattr(spec.loss, name, weight)

    return state_of(kind, {**RATES, "exposures": 1e-2}, change, planes=planes)


def with_everything(kind: str, *, deterministic: bool = False, of_sensors: bool = False) -> TrainingState:
    """A training that compares and optimises all that steps without Python can, of OpenCV's cameras or of sensors."""

    def change(spec: training_pb2.TrainingSpec) -> None:
        spec.gaussians.deterministic = deterministic
        spec.loss.depth = spec.loss.alpha = 0.1

    rates = {**RATES, "exposures": 1e-2, "poses": 1e-3, "end_poses" if of_sensors else "intrinsics": 1e-3}
    options: dict[str, Any] = {"calibrations": (0, 1, 0), "camera": sensor_camera if of_sensors else opencv_camera}
    return state_of(kind, rates, change, planes=("mask", "depth"), **options)


def too_fast(*, deterministic: bool = False) -> TrainingState:
    """A training whose intrinsics no number can hold after the first steps, for their rate falls."""

    def change(spec: training_pb2.TrainingSpec) -> None:
        spec.gaussians.deterministic = deterministic
        spec.optimizer.rates["intrinsics"].CopyFrom(training_pb2.Rate(initial=1e6, final=1e-3, steps=3))

    return state_of("none", RATES, change, calibrations=(0, 1, 0))
