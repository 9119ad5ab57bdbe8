"""Density control: its settings, and its state between steps."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch

from lumigrad.kernels import density, resident
from lumigrad.server.core.limits import Limits, require
from lumigrad.server.engines.content import Shapes, Tensors
from lumigrad.server.storage.trainings import TrainingReservation
from lumigrad.server.training.parameters import Optimizer, Parameter, Parameters, paced
from lumigrad.v1 import density_pb2, training_pb2

_ADAPTIVE = {
    **{"start": 500, "stop": 15_000, "every": 100, "reset_every": 3000, "pause_after_reset": 0, "screen_stop": 0},
    **{"grow_gradient": 2e-4, "grow_scale": 0.01, "prune_scale": 0.1, "prune_opacity": 0.005},
    **{"grow_screen": 0.05, "prune_screen": 0.15},
}
_MCMC = {"start": 500, "stop": 25_000, "every": 100, "noise": 5e5, "min_opacity": 0.005, "growth": 0.05}
# Fields that count steps.
_STEPS = ("start", "stop", "every", "reset_every", "pause_after_reset", "screen_stop")
_NEEDED = ("means", "quats", "scales", "opacities")


@dataclass(frozen=True)
class Density:
    """Checked settings of density control."""

    is_mcmc: bool
    values: Mapping[str, float]
    absolute_gradients: bool
    revised_opacity: bool
    extent: float
    most: int
    seed: int

    def thresholds(self, step: int) -> density.Thresholds:
        """Return the thresholds of adaptive control at a step."""
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

    def paced(self, pace: float) -> Density:
        """Return these settings at another pace, see `training_pb2.Step`."""
        steps = {name: paced(int(self.values[name]), pace) for name in _STEPS if name in self.values}
        return dataclasses.replace(self, values={**self.values, **steps})

    def is_due(self, step: int) -> bool:
        """Return whether rows are added and removed at a step, counted from 0."""
        values = self.values
        return values["start"] < step <= values["stop"] and step % values["every"] == 0

    def is_reset_due(self, step: int) -> bool:
        """Return whether opacities are reset at a step."""
        every = int(self.values.get("reset_every", 0))
        return bool(every) and step > 0 and step % every == 0 and step <= self.values["stop"]


def density_of(
    message: training_pb2.TrainingSpec,
    kind: str,
    shapes: Shapes,
    optimizer: Optimizer,
    limits: Limits,
    field: str,
) -> Density | None:
    """Check a request's settings; None if it has no density control."""
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
    limit = f"at most {limits.primitives} Gaussians"
    require(cap <= limits.primitives, where, limit, cap)
    extent = control.extent
    require(isfinite(extent) and extent > 0, f"{field}.extent", "a finite value > 0, scene units", extent)
    return Density(
        is_mcmc=is_mcmc,
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
    # Resets clamp opacities to a multiple of it.
    is_reset = 0 < values.get("reset_every", 0) <= values["stop"]
    limit = "a value above 0 with resets; reset_every = 0 has none"
    require(not is_reset or values["prune_opacity"] > 0, f"{field}.prune_opacity", limit, values.get("prune_opacity"))
    return values


class DensityState:
    """Density control of one training."""

    def __init__(self, plan: Density, parameters: Parameters) -> None:
        self._plan = plan
        self._statistics = None if plan.is_mcmc else density.Statistics.zeros(_rows(parameters))
        self._was_reset = False

    def planned(self, plan: Density) -> DensityState:
        """Return the same state with other settings."""
        other = copy.copy(self)
        other._plan = plan
        return other

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs that density control needs."""
        return () if self._plan.is_mcmc else ("radii",)

    @property
    def gradients(self) -> tuple[str, ...]:
        """The gradients that density control needs."""
        if self._plan.is_mcmc:
            return ()
        return ("means2d_abs",) if self._plan.absolute_gradients else ("means2d",)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors of its state, by name."""
        if self._statistics is None:
            return {}
        known = self._statistics
        was_reset = torch.tensor([self._was_reset], dtype=torch.int32)
        return {"gradient": known.gradient, "views": known.views, "radii": known.radii, "was_reset": was_reset}

    @staticmethod
    def row_bytes(plan: Density) -> int:
        """Return the bytes of its state per primitive."""
        return 0 if plan.is_mcmc else 3 * 4

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore the tensors that `tensors` returned."""
        if self._statistics is not None:
            self._statistics = density.Statistics(tensors["gradient"], tensors["views"], tensors["radii"])
            self._was_reset = bool(tensors["was_reset"].item())

    def is_due(self, step: int) -> bool:
        """Return whether a step changes rows or resets opacities."""
        return self._plan.is_due(step) or self._plan.is_reset_due(step)

    def copied(self) -> DensityState:
        """Return a copy with statistics of its own."""
        known = self._statistics
        if known is None:
            return self
        statistics = density.Statistics(known.gradient.clone(), known.views.clone(), known.radii.clone())
        return self._with(statistics, self._was_reset)

    def observed(self, gradients: Tensors, outputs: Tensors, camera: Any) -> DensityState:
        """Return a new state that includes the statistics of one more step."""
        after = self.copied()
        if after._statistics is not None:
            gradient, radii = gradients[self.gradients[0]], outputs["radii"]
            density.accumulate(after._statistics, gradient, radii, width=camera.width, height=camera.height)
        return after

    def noise(self, parameters: Parameters, optimizer: Optimizer, step: int) -> Callable[[], object]:
        """Return a function, which cannot fail, that adds random noise to the means after a step."""
        if not self._plan.is_mcmc:
            return lambda: None
        rate = optimizer.rates["means"].at(step)
        noise = self._plan.values["noise"]
        return density.prepare_noise(_rows(parameters), self._draw(step), learning_rate=rate, noise_rate=noise)

    def bound(
        self, parameters: Parameters, optimizer: Optimizer
    ) -> tuple[resident.Noise | None, resident.Observation | None]:
        """Return what density control needs from steps without Python: noise to add, or statistics to observe."""
        if self._statistics is not None:
            return None, resident.Observation(self._statistics, self._plan.absolute_gradients)
        raw = {name: parameter.raw for name, parameter in parameters.by_name.items()}
        rate = optimizer.rates["means"].numbers
        return resident.Noise(raw, rate, self._plan.values["noise"], self._plan.seed), None

    def controlled(
        self, parameters: Parameters, step: int, reservation: TrainingReservation
    ) -> tuple[density_pb2.DensityReport, DensityState]:
        """Apply the density control due at a step to `parameters`; returns a report and the new state.

        Reserves memory in `reservation` before rows are added.
        """
        report, statistics, was_reset = density_pb2.DensityReport(), self._statistics, self._was_reset
        if self._plan.is_due(step) and statistics is None:
            report = self._move(parameters, step, reservation)
        elif self._plan.is_due(step) and statistics is not None:
            report, statistics = self._grow(statistics, parameters, step, reservation)
        if self._plan.is_reset_due(step):
            density.reset_opacities(_rows(parameters), 2 * self._plan.values["prune_opacity"])
            parameters.activate()
            was_reset = report.opacities_reset = True
        return report, self._with(statistics, was_reset)

    def _with(self, statistics: density.Statistics | None, was_reset: bool) -> DensityState:
        other = copy.copy(self)
        other._statistics, other._was_reset = statistics, was_reset
        return other

    def _grow(
        self, statistics: density.Statistics, parameters: Parameters, step: int, reservation: TrainingReservation
    ) -> tuple[density_pb2.DensityReport, density.Statistics]:
        rows, thresholds = _rows(parameters), self._plan.thresholds(step)
        extent, was_reset = self._plan.extent, self._was_reset
        plan = density.plan(rows, statistics, thresholds, extent=extent, after_reset=was_reset, most=self._plan.most)
        reservation.grow(plan.count)
        grown = density.apply(plan, rows, self._draw(step)).parameters
        _take_over(parameters, grown)
        report = density_pb2.DensityReport(cloned=plan.cloned, split=plan.split, pruned=plan.pruned)
        return report, density.Statistics.zeros(grown)

    def _move(self, parameters: Parameters, step: int, reservation: TrainingReservation) -> density_pb2.DensityReport:
        draw, values = self._draw(step), self._plan.values
        least = values["min_opacity"]
        count = parameters.count
        reservation.grow(min(self._plan.most, int((1.0 + values["growth"]) * count)))
        moved = density.relocate(_rows(parameters), draw, min_opacity=least)
        added = density.add_gaussians(
            _rows(parameters),
            draw,
            cap=self._plan.most,
            growth=values["growth"],
            min_opacity=least,
            some_are_seen=moved.dead < count,
        )
        _take_over(parameters, added.parameters)
        return density_pb2.DensityReport(relocated=moved.relocated, added=added.added)

    def _draw(self, step: int) -> density.Draw:
        return density.Draw(self._plan.seed, step)


def _rows(parameters: Parameters) -> density.Parameters:
    by_name = parameters.by_name
    moments = {
        name: (parameter.first, parameter.second)
        for name, parameter in by_name.items()
        if parameter.first is not None and parameter.second is not None
    }
    return density.Parameters({name: parameter.raw for name, parameter in by_name.items()}, moments)


def _take_over(parameters: Parameters, rows: density.Parameters) -> None:
    """Replace the rows of `parameters`."""
    for name, raw in rows.tensors.items():
        first, second = rows.moments.get(name, (None, None))
        parameters.by_name[name] = Parameter(name, raw, raw, first, second)
    parameters.activate()


def has_changed_rows(report: density_pb2.DensityReport) -> bool:
    """Return whether rows were added, removed or moved."""
    return bool(report.cloned or report.split or report.pruned or report.added or report.relocated)
