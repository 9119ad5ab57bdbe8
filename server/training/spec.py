"""The specification of a training, checked once when it begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, isqrt
from typing import Any

from lumigrad.server.core.limits import Limits, known, names_of, require
from lumigrad.server.engines.content import Shapes
from lumigrad.server.training.density import Density, density_of
from lumigrad.server.training.parameters import Optimizer, paced, parameters_of
from lumigrad.v1 import gaussians_pb2, training_pb2

POSES = "poses"
END_POSES = "end_poses"
INTRINSICS = "intrinsics"
LENSES = "lenses"
# Parameters of cameras that can be refined.
OF_CAMERAS = (POSES, END_POSES, INTRINSICS, LENSES)
EXPOSURES = "exposures"
_KINDS = ("spheres", "gaussians")
_TERMS = ("l1", "l2", "dssim", "depth", "alpha", "opacity", "scale", "normal", "distortion")
# Loss terms of the surface that surfels describe, and the outputs that they need.
_OF_SURFACES = {"normal": ("alpha", "normals", "surface_normals"), "distortion": ("distortion",)}
_PADDINGS = names_of(training_pb2.Padding)
# Limits with a pool: the largest beta1^2 / beta2, and the least alpha_min with which pages reach far enough.
_LARGEST_DECAY = 0.96
_LEAST_ALPHA = 0.0039


@dataclass(frozen=True)
class Loss:
    """A loss.

    Attributes:
        weights: Weights of the terms, by name.
        padding: The border mode of its window.
        surface_start: The first step in which the loss includes the terms of surfaces.
    """

    weights: Mapping[str, float]
    padding: str
    surface_start: int

    @staticmethod
    def of(message: training_pb2.Loss, kind: str, is_surfel: bool, field: str) -> Loss:
        """Check a loss message; the InvalidArgumentError names fields below `field`."""
        weights = {name: float(getattr(message, name)) for name in _TERMS}
        for name, weight in weights.items():
            require(isfinite(weight) and weight >= 0, f"{field}.{name}", "a finite weight >= 0", weight)
        require(any(weights.values()), field, "at least one weight > 0", "none")
        has_depth = kind == "gaussians" or not weights["depth"]
        require(has_depth, f"{field}.depth", "0: spheres have no expected depth", weights["depth"])
        for name in _OF_SURFACES:
            fits = is_surfel or not weights[name]
            require(fits, f"{field}.{name}", "0 unless the primitive is PRIMITIVE_SURFEL", weights[name])
        return Loss(weights, known(_PADDINGS, message.padding, f"{field}.padding"), message.surface_start)

    @property
    def compares_color(self) -> bool:
        """Whether a term compares colours."""
        return any(self.weights[name] for name in ("l1", "l2", "dssim"))

    def at(self, step: int) -> Loss:
        """Return the loss of a step."""
        if step >= self.surface_start:
            return self
        return replace(self, weights={**self.weights, **dict.fromkeys(_OF_SURFACES, 0.0)})

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs that the loss compares."""
        wanted = {"color": True, "alpha": bool(self.weights["alpha"]), "expected_depth": bool(self.weights["depth"])}
        wanted |= {output: True for name, outputs in _OF_SURFACES.items() if self.weights[name] for output in outputs}
        return tuple(name for name, is_wanted in wanted.items() if is_wanted)


@dataclass(frozen=True)
class TrainingPlan:
    """A training, checked against its scene.

    Attributes:
        message: The client's message, for snapshots.
        loss: The loss; None if the client sends gradients.
        density: Settings of density control, or None.
        pool_bytes: Device memory for rows that are in the spool; 0 if all rows are on the device.
        sh_degree_every: The steps after which a degree of spherical harmonics is added; 0 to use all from the start.
        pace: Pace of the schedules, see `training_pb2.Step`.
    """

    message: training_pb2.TrainingSpec
    kind: str
    settings: Any
    optimizer: Optimizer
    loss: Loss | None
    density: Density | None
    pool_bytes: int
    sh_degree_every: int
    pace: float = 1.0

    @staticmethod
    def of(message: training_pb2.TrainingSpec, kind: str, shapes: Shapes, limits: Limits, field: str) -> TrainingPlan:
        """Check a spec for a scene of this kind and these shapes; `field` is the spec's path in the request."""
        require(kind in _KINDS, "start.scene", f"a scene of {' or '.join(_KINDS)}", kind)
        given = message.WhichOneof("settings")
        require(given in (kind, None), f"{field}.{kind}", f"settings of the {kind}", given)
        if kind == "gaussians":
            _check_gaussians(message, shapes, field)
        known = [part for name in shapes for part in parameters_of(name)]
        color = "sh" if "sh" in shapes else "colors"
        _check_background(getattr(message, kind).background, shapes[color][-1], f"{field}.{kind}.background")
        optimizer = Optimizer.of(message.optimizer, [*known, *OF_CAMERAS, EXPOSURES], f"{field}.optimizer")
        if EXPOSURES in optimizer.rates:
            channels = shapes[color][-1]
            require(channels == 3, f"{field}.optimizer.rates", "no exposures: they are for 3 channels", channels)
        is_surfel = kind == "gaussians" and message.gaussians.primitive == gaussians_pb2.PRIMITIVE_SURFEL
        if message.pool_bytes:
            _check_pool(message, optimizer, kind, shapes, field)
        return TrainingPlan(
            message=message,
            kind=kind,
            settings=getattr(message, kind),
            optimizer=optimizer,
            loss=Loss.of(message.loss, kind, is_surfel, f"{field}.loss") if message.HasField("loss") else None,
            density=density_of(message, kind, shapes, optimizer, limits, f"{field}.density"),
            pool_bytes=message.pool_bytes,
            sh_degree_every=message.sh_degree_every,
        )

    def paced(self, pace: float) -> TrainingPlan:
        """Return this plan, whose pace is 1, at another pace."""
        loss, density, rates = self.loss, self.density, self.optimizer.rates
        return replace(
            self,
            optimizer=replace(self.optimizer, rates={name: rate.paced(pace) for name, rate in rates.items()}),
            loss=None if loss is None else replace(loss, surface_start=paced(loss.surface_start, pace)),
            density=None if density is None else density.paced(pace),
            sh_degree_every=paced(self.sh_degree_every, pace),
            pace=pace,
        )

    def sh_degree(self, step: int, stored: int) -> int:
        """Return the degree of spherical harmonics used at a step."""
        wanted = self.settings.sh_degree if self.settings.HasField("sh_degree") else stored
        every = self.sh_degree_every
        return int(min(wanted, step // every)) if every else int(wanted)


def _check_pool(
    message: training_pb2.TrainingSpec, optimizer: Optimizer, kind: str, shapes: Shapes, field: str
) -> None:
    """Refuse settings that would concern rows which a step does not see."""
    is_fit = kind == "gaussians" and shapes["means"][0] > 0
    require(is_fit, f"{field}.pool_bytes", "0: it is for scenes of Gaussians", message.pool_bytes)
    require(not message.HasField("density"), f"{field}.density", "none with pool_bytes", "some")
    alpha_min, is_given = message.gaussians.alpha_min, message.gaussians.HasField("alpha_min")
    limit = f"at least {_LEAST_ALPHA} with pool_bytes"
    require(not is_given or alpha_min >= _LEAST_ALPHA, f"{field}.gaussians.alpha_min", limit, alpha_min)
    for name in ("opacity", "scale"):
        weight = getattr(message.loss, name)
        require(not weight, f"{field}.loss.{name}", "0 with pool_bytes: it is a mean over all Gaussians", weight)
    # Steps that are caught up at once ignore that epsilon grows relative to the decaying moments.
    beta1, beta2 = optimizer.betas
    decays = optimizer.visible_only or beta1**2 <= _LARGEST_DECAY * beta2
    limit = f"at most the root of {_LARGEST_DECAY} beta2 with pool_bytes and without visible_only"
    require(decays, f"{field}.optimizer.beta1", limit, beta1)


def _check_background(background: Sequence[float], channels: int, field: str) -> None:
    """Refuse backgrounds of single cameras: a step would give them to its views in their order."""
    limit = f"{channels} values, one per channel, or none: it is the same for all views"
    require(len(background) in (0, channels), field, limit, len(background))


def _check_gaussians(message: training_pb2.TrainingSpec, shapes: Shapes, field: str) -> None:
    require(len(shapes["means"]) == 2, "start.scene", "one scene of Gaussians", "several in one")
    require("covariances" not in shapes, "start.scene", "Gaussians with quats and scales", "covariances")
    colors = shapes.get("colors", ())
    require(len(colors) in (0, 2), "start.scene", "colours that are the same for all cameras", "others")
    transforms = len(message.gaussians.transforms)
    require(transforms == 0, f"{field}.gaussians.transforms", "none", transforms)
    along = message.gaussians.response == gaussians_pb2.RESPONSE_RAY
    # Adaptive density control uses the gradients of means in the image, which do not exist for rays.
    fits = not along or message.density.WhichOneof("strategy") != "adaptive"
    require(fits, f"{field}.density.adaptive", "mcmc, or none, with RESPONSE_RAY", "adaptive")
    if message.gaussians.HasField("sh_degree"):
        stored = isqrt(shapes["sh"][1]) - 1 if "sh" in shapes else -1
        limit = f"at most {stored}, the degree stored" if stored >= 0 else "no degree for colours"
        degree = message.gaussians.sh_degree
        require(degree <= stored, f"{field}.gaussians.sh_degree", limit, degree)
