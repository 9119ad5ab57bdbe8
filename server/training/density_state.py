"""What density control remembers between steps, and what it does to the parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from lumigrad.kernels import density
from lumigrad.server.training.density import Density
from lumigrad.server.training.parameters import Parameter, Parameters
from lumigrad.v1 import density_pb2

if TYPE_CHECKING:
    from lumigrad.server.training.images import Gradients, Rendered
    from lumigrad.server.training.state import TrainingState


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

    def after_step(
        self, state: TrainingState, rendered: Rendered, gradients: Gradients
    ) -> tuple[density_pb2.DensityReport | None, bool]:
        """Do what is due after a step; also tells whether rows came or went."""
        if self._statistics is not None:
            self._note(self._statistics, rendered, gradients)
        report, parameters = None, state.parameters
        if self._plan.schedule.is_due(state.step):
            report = self._move(state) if self._plan.is_mcmc else self._grow(state)
        if self._plan.is_reset_due(state.step):
            report = report or density_pb2.DensityReport()
            density.reset_opacities(_rows(parameters), 2 * self._plan.values["prune_opacity"])
            parameters.activate()
            self._was_reset = report.opacities_reset = True
        if self._plan.is_mcmc:
            rate = state.plan.optimizer.rates["means"].at(state.step)
            noise = self._plan.values["noise"]
            density.add_noise(_rows(parameters), self._draw(state.step), learning_rate=rate, noise_rate=noise)
        return report, report is not None and not _is_only_reset(report)

    def _note(self, statistics: density.Statistics, rendered: Rendered, gradients: Gradients) -> None:
        camera = rendered.planned.plan.cameras[0]
        gradient, radii = gradients.by_name[self.gradients[0]], rendered.outputs["radii"]
        density.accumulate(statistics, gradient, radii, width=camera.width, height=camera.height)

    def _grow(self, state: TrainingState) -> density_pb2.DensityReport:
        assert self._statistics is not None
        rows, statistics = _rows(state.parameters), self._statistics
        thresholds = self._plan.thresholds(state.step)
        extent, was_reset = self._plan.extent, self._was_reset
        plan = density.plan(rows, statistics, thresholds, extent=extent, after_reset=was_reset)
        if plan.count > self._plan.most:
            fewer = _without_growth(thresholds)
            plan = density.plan(rows, statistics, fewer, extent=extent, after_reset=was_reset)
        state.room.grow(plan.count)
        grown = density.apply(plan, rows, self._draw(state.step)).parameters
        _take_over(state.parameters, grown)
        self._statistics = density.Statistics.zeros(grown)
        return density_pb2.DensityReport(cloned=plan.cloned, split=plan.split, pruned=plan.pruned)

    def _move(self, state: TrainingState) -> density_pb2.DensityReport:
        draw, values = self._draw(state.step), self._plan.values
        least = values["min_opacity"]
        count = state.parameters.count
        state.room.grow(max(count, min(self._plan.most, int((1.0 + values["growth"]) * count))))
        moved = density.relocate(_rows(state.parameters), draw, min_opacity=least)
        added = density.add_gaussians(
            _rows(state.parameters), draw, cap=self._plan.most, growth=values["growth"], min_opacity=least
        )
        _take_over(state.parameters, added.parameters)
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


def _is_only_reset(report: density_pb2.DensityReport) -> bool:
    return not (report.cloned or report.split or report.pruned or report.added or report.relocated)
