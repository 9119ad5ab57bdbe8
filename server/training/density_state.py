"""What density control remembers between steps, and what it does to the parameters."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from lumigrad.kernels import density
from lumigrad.server.training.density import Density
from lumigrad.server.training.parameters import Parameter, Parameters
from lumigrad.server.training.rates import Optimizer
from lumigrad.v1 import density_pb2

if TYPE_CHECKING:
    from lumigrad.server.training.footprint import Room
    from lumigrad.server.training.images import Gradients, Rendered


class DensityState:
    """Density control of one training."""

    def __init__(self, plan: Density, parameters: Parameters) -> None:
        self._plan = plan
        self._statistics = None if plan.is_mcmc else density.Statistics.zeros(_rows(parameters))
        self._was_reset = False

    @property
    def outputs(self) -> tuple[str, ...]:
        """What must be rendered for it."""
        return () if self._plan.is_mcmc else ("radii",)

    @property
    def gradients(self) -> tuple[str, ...]:
        """What must be differentiated for it."""
        if self._plan.is_mcmc:
            return ()
        return ("means2d_abs",) if self._plan.absolute_gradients else ("means2d",)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """What it remembers, by name."""
        if self._statistics is None:
            return {}
        known = self._statistics
        was_reset = torch.tensor([self._was_reset], dtype=torch.int32)
        return {"gradient": known.gradient, "views": known.views, "radii": known.radii, "was_reset": was_reset}

    @staticmethod
    def row_bytes(plan: Density) -> int:
        """Memory that it takes of each primitive."""
        return 0 if plan.is_mcmc else 3 * 4

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over what `tensors` gave."""
        if self._statistics is not None:
            self._statistics = density.Statistics(tensors["gradient"], tensors["views"], tensors["radii"])
            self._was_reset = bool(tensors["was_reset"].item())

    def is_due(self, step: int) -> bool:
        """Whether a step changes more than the optimiser and noise do."""
        return self._plan.schedule.is_due(step) or self._plan.is_reset_due(step)

    def observed(self, rendered: Rendered, gradients: Gradients) -> DensityState:
        """What it is with what a step tells of each row. This one stays."""
        known = self._statistics
        if known is None:
            return self
        statistics = density.Statistics(known.gradient.clone(), known.views.clone(), known.radii.clone())
        camera = rendered.planned.plan.cameras[0]
        gradient, radii = gradients.by_name[self.gradients[0]], rendered.outputs["radii"]
        density.accumulate(statistics, gradient, radii, width=camera.width, height=camera.height)
        return self._with(statistics, self._was_reset)

    def noise(self, parameters: Parameters, optimizer: Optimizer, step: int) -> Callable[[], object]:
        """What moves the means at random after a step; it has nothing left to fail at."""
        if not self._plan.is_mcmc:
            return lambda: None
        rate = optimizer.rates["means"].at(step)
        noise = self._plan.values["noise"]
        return density.prepare_noise(_rows(parameters), self._draw(step), learning_rate=rate, noise_rate=noise)

    def controlled(
        self, parameters: Parameters, step: int, room: Room
    ) -> tuple[density_pb2.DensityReport, DensityState]:
        """Do what is due at a step to parameters; returns what that was, and what this one is then. This one stays.

        Before rows come `room` is made for them.
        """
        report, statistics, was_reset = density_pb2.DensityReport(), self._statistics, self._was_reset
        if self._plan.schedule.is_due(step) and statistics is None:
            report = self._move(parameters, step, room)
        elif self._plan.schedule.is_due(step) and statistics is not None:
            report, statistics = self._grow(statistics, parameters, step, room)
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
        self, statistics: density.Statistics, parameters: Parameters, step: int, room: Room
    ) -> tuple[density_pb2.DensityReport, density.Statistics]:
        rows, thresholds = _rows(parameters), self._plan.thresholds(step)
        extent, was_reset = self._plan.extent, self._was_reset
        plan = density.plan(rows, statistics, thresholds, extent=extent, after_reset=was_reset)
        if plan.count > self._plan.most:
            fewer = _without_growth(thresholds)
            plan = density.plan(rows, statistics, fewer, extent=extent, after_reset=was_reset)
        room.grow(plan.count)
        grown = density.apply(plan, rows, self._draw(step)).parameters
        _take_over(parameters, grown)
        report = density_pb2.DensityReport(cloned=plan.cloned, split=plan.split, pruned=plan.pruned)
        return report, density.Statistics.zeros(grown)

    def _move(self, parameters: Parameters, step: int, room: Room) -> density_pb2.DensityReport:
        draw, values = self._draw(step), self._plan.values
        least = values["min_opacity"]
        count = parameters.count
        room.grow(min(self._plan.most, int((1.0 + values["growth"]) * count)))
        moved = density.relocate(_rows(parameters), draw, min_opacity=least)
        added = density.add_gaussians(
            _rows(parameters), draw, cap=self._plan.most, growth=values["growth"], min_opacity=least
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
    """Go on with other rows."""
    for name, raw in rows.tensors.items():
        first, second = rows.moments.get(name, (None, None))
        parameters.by_name[name] = Parameter(name, raw, raw, first, second)
    parameters.activate()


def _without_growth(thresholds: density.Thresholds) -> density.Thresholds:
    return dataclasses.replace(thresholds, grow_gradient=float("inf"), split_radius=None)


def has_changed_rows(report: density_pb2.DensityReport) -> bool:
    """Whether rows came, went or moved."""
    return bool(report.cloned or report.split or report.pruned or report.added or report.relocated)
