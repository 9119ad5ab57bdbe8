"""Density control: which Gaussians come and go, by the strategy that a training names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from lumigrad.kernels import density
from lumigrad.server.arrivals import Shapes
from lumigrad.server.limits import Limits, require
from lumigrad.server.training.rates import Optimizer
from lumigrad.v1 import training_pb2

_ADAPTIVE = {
    **{"start": 500, "stop": 15_000, "every": 100, "reset_every": 3000, "pause_after_reset": 0, "screen_stop": 0},
    **{"grow_gradient": 2e-4, "grow_scale": 0.01, "prune_scale": 0.1, "prune_opacity": 0.005},
    **{"grow_screen": 0.05, "prune_screen": 0.15},
}
_MCMC = {"start": 500, "stop": 25_000, "every": 100, "noise": 5e5, "min_opacity": 0.005, "growth": 0.05}
_NEEDED = ("means", "quats", "scales", "opacities")


@dataclass(frozen=True)
class Schedule:
    """The steps, counted from 0, at which rows come and go."""

    start: int
    stop: int
    every: int

    def is_due(self, step: int) -> bool:
        """Whether a step is one of them."""
        return self.start < step <= self.stop and step % self.every == 0


@dataclass(frozen=True)
class Density:
    """What a request says of density control, checked."""

    is_mcmc: bool
    schedule: Schedule
    values: Mapping[str, float]
    absolute_gradients: bool
    revised_opacity: bool
    extent: float
    most: int
    seed: int

    def thresholds(self, step: int) -> density.Thresholds:
        """Of adaptive control at a step."""
        values = self.values
        by_screen = step < values["screen_stop"]
        paused = values["reset_every"] and step % values["reset_every"] < values["pause_after_reset"]
        return density.Thresholds(
            grow_gradient=float("inf") if paused else values["grow_gradient"],
            clone_size=values["grow_scale"],
            split_radius=values["grow_screen"] if by_screen else None,
            prune_opacity=values["prune_opacity"],
            prune_size=values["prune_scale"],
            prune_radius=values["prune_screen"] if by_screen else None,
            revised_opacity=self.revised_opacity,
        )

    def is_reset_due(self, step: int) -> bool:
        """Whether opacities are cut at a step."""
        every = int(self.values.get("reset_every", 0))
        return bool(every) and step > 0 and step % every == 0 and step <= self.schedule.stop


def density_of(
    message: training_pb2.TrainingSpec,
    kind: str,
    shapes: Shapes,
    optimizer: Optimizer,
    limits: Limits,
    field: str,
) -> Density | None:
    """Check what a request says; None: rows stay as they are."""
    if not message.HasField("density"):
        return None
    control = message.density
    strategy = control.WhichOneof("strategy")
    require(strategy is not None, field, "adaptive or mcmc", "neither")
    require(kind == "gaussians", field, "none: it is for Gaussians", kind)
    for name in _NEEDED:
        require(name in optimizer.rates, f"{field}.{strategy}", f"a training that optimises {name}", "another")
    is_mcmc = strategy == "mcmc"
    where = f"{field}.{strategy}"
    values = _values(getattr(control, str(strategy)), _MCMC if is_mcmc else _ADAPTIVE, where)
    require(values["every"] >= 1, f"{where}.every", "at least 1", values["every"])
    cap = control.mcmc.cap if is_mcmc else control.max_count
    require(not is_mcmc or cap >= 1, f"{where}.cap", "at least 1", cap)
    require(cap <= limits.primitives, where, f"at most {limits.primitives} Gaussians", cap)
    extent = control.extent
    require(isfinite(extent) and extent > 0, f"{field}.extent", "a finite value > 0, scene units", extent)
    return Density(
        is_mcmc=is_mcmc,
        schedule=Schedule(int(values["start"]), int(values["stop"]), int(values["every"])),
        values=values,
        absolute_gradients=control.adaptive.absolute_gradients,
        revised_opacity=control.adaptive.revised_opacity,
        extent=extent,
        most=cap or limits.primitives,
        seed=message.seed,
    )


def _values(message: Any, defaults: Mapping[str, float], field: str) -> dict[str, float]:
    values = {name: getattr(message, name) if message.HasField(name) else value for name, value in defaults.items()}
    for name, value in values.items():
        require(isfinite(value) and value >= 0, f"{field}.{name}", "a finite value >= 0", value)
    require(values.get("growth", 0) <= 1, f"{field}.growth", "at most 1", values.get("growth"))
    for name in ("prune_opacity", "min_opacity"):
        require(values.get(name, 0) < 0.5, f"{field}.{name}", "a value below 0.5", values.get(name))
    return values
