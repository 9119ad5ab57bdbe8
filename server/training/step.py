"""A training step: render, compare, differentiate, step the optimiser, control density."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

import torch

from lumigrad.kernels import training
from lumigrad.kernels.errors import Unstoppable
from lumigrad.kernels.stages import Stages
from lumigrad.kernels.training import GradientStatistics, PreparedStep, statistics_of
from lumigrad.protos.dtypes import Array
from lumigrad.server.core.call import Call
from lumigrad.server.training.blocks import Pages
from lumigrad.server.training.cameras import CameraRefinement
from lumigrad.server.training.density import DensityState, has_changed_rows
from lumigrad.server.training.images import (
    Gradients,
    Losses,
    LossPart,
    Planned,
    Rendered,
    differentiate,
    losses,
    noted,
    render,
)
from lumigrad.server.training.parameters import Parameters, Refinement
from lumigrad.server.training.spec import EXPOSURES
from lumigrad.server.training.state import TrainingState
from lumigrad.v1 import density_pb2, training_pb2

T = TypeVar("T")

# The parameters whose means regularisers add to the loss.
_REGULARISED: Mapping[str, Sequence[str]] = {"opacity": ("opacities",), "scale": ("scales", "radii")}


@dataclass(frozen=True)
class Done:
    """The result of a step.

    Attributes:
        loss: The loss; None if it is the client's own.
    """

    views: Sequence[int]
    loss: float | None
    terms: Mapping[str, float]
    count: int
    visible: int
    statistics: Mapping[str, GradientStatistics]
    density: density_pb2.DensityReport | None
    discarded: bool = False


@dataclass(frozen=True)
class StepReport:
    """Report of a step whose numbers are still on the device.

    Attributes:
        numbers: f64 tensors; complete when all work queued on the device has ended.
        times: Times of kernels, which can be read when the numbers are complete.
        count: The number of primitives after the step.
        parts: Parts of the loss; None if it is the client's own.
        names: Names of the parameters that have statistics.
        discarded: Whether the step has changed nothing.
    """

    views: Sequence[int]
    numbers: Sequence[torch.Tensor]
    times: Sequence[Stages]
    count: int
    parts: Sequence[LossPart] | None = None
    names: Sequence[str] = ()
    density: density_pb2.DensityReport | None = None
    discarded: bool = False

    def read(self, numbers: Sequence[Array]) -> Done:
        """Return the result, given the `numbers` on the host."""
        if self.discarded:
            return Done(self.views, None, {}, self.count, 0, {}, None, discarded=True)
        gathered, sums = numbers
        loss: float | None = None
        terms: dict[str, float] = {}
        if self.parts is not None:
            loss = 0.0
            ends = list(accumulate((part.numbers.numel() for part in self.parts), initial=1))
            for part, begin, end in zip(self.parts, ends, ends[1:], strict=False):
                added, values = part.read(gathered[begin:end].reshape(tuple(part.numbers.shape)))
                loss += added
                terms |= values
        statistics = statistics_of(self.names, sums.tolist())
        return Done(self.views, loss, terms, self.count, int(gathered[0]), statistics, self.density)


def step(state: TrainingState, planned: Planned, call: Call, look: Callable[[Rendered], T]) -> tuple[T, StepReport]:
    """Do a step with the training's own loss, whose outputs `planned` includes.

    Calls `look` with the rendered outputs before anything changes, and returns its result. On CUDA the step is only
    queued, unless it controls density or refines cameras.
    """
    loss = state.plan.loss
    assert loss is not None
    rendered = render(state, planned, call)
    with call.times.stage("loss"):
        found = losses(loss.at(state.step), state, rendered, call)
    seen = look(rendered)
    return seen, apply(state, rendered, found.upstream, found, call)


def apply(
    state: TrainingState,
    rendered: Rendered,
    upstream: Mapping[str, torch.Tensor],
    loss: Losses | None,
    call: Call,
) -> StepReport:
    """Compute the gradients and change the parameters, completely or, on an error, not at all.

    `upstream` is the gradient of `loss`, the training's own, or of the client's loss if that is None.
    """
    if rendered.generation != state.generation:
        state.step += 1
        state.chosen += rendered.planned.chosen
        return StepReport(rendered.views, (), (), state.parameters.count, discarded=True)
    gradients = differentiate(state, rendered, upstream, call)
    parts = None if loss is None else [*loss.parts, *_regularised(state, rendered.parameters, gradients)]
    with call.times.stage("optimize"):
        gathered = _gathered(gradients.touched.count_nonzero(), parts or ())
        change = _prepared(state, rendered, gradients)
        # The check includes that upstream gradients in the client's memory are still leased.
        call.check()
        with Unstoppable():
            adam_times = noted(change.make(state), call)
    numbers = gathered, change.adam.sums
    times = [rendered.times, *(loss.times if loss is not None else ()), gradients.times, adam_times]
    return StepReport(rendered.views, numbers, times, state.parameters.count, parts, change.adam.names, change.report)


def _gathered(visible: torch.Tensor, parts: Sequence[LossPart]) -> torch.Tensor:
    """Return the number of visible primitives and the numbers of all parts, as f64 [...]."""
    return torch.cat([visible.double().reshape(1), *(part.numbers.reshape(-1) for part in parts)])


@dataclass(frozen=True)
class _Change:
    """A prepared step: everything that can fail has been done.

    Attributes:
        adam: The optimiser's step on `parameters`.
        noise: The step that adds noise to `parameters`.
        done: The kernels' times if both have already run, on copies.
        parameters: The current parameters, which the step changes in place, or changed copies, on the host if there are
            pages.
        pages: The pages of the training's blocks whose rows `parameters` has; None if it has all rows.
        views: The views with moved cameras, by number.
        chosen: The number of views that the worker chose.
    """

    adam: PreparedStep
    noise: Callable[[], object] | None
    done: Stages | None
    parameters: Parameters
    pages: Pages | None
    density: DensityState | None
    report: density_pb2.DensityReport | None
    exposures: Refinement | None
    refinement: CameraRefinement
    views: Mapping[int, training_pb2.TrainingView]
    chosen: int

    def make(self, state: TrainingState) -> Stages:
        """Change the state; returns the kernels' times. Cannot fail, because it neither allocates nor checks."""
        times = self.done
        if times is None:
            times = self.adam.run().times
            if self.noise is not None:
                self.noise()
        if state.blocks is not None and self.pages is not None:
            state.blocks.store(self.pages, self.parameters, state.step)
        else:
            state.parameters = self.parameters
        state.density = self.density
        state.exposures, state.refinement = self.exposures, self.refinement
        for number, view in self.views.items():
            state.views.messages[number] = view
        state.generation += self.report is not None and has_changed_rows(self.report)
        state.chosen += self.chosen
        state.step += 1
        return times


def _prepared(state: TrainingState, rendered: Rendered, gradients: Gradients) -> _Change:
    """Check and allocate everything that a step needs; changes that may fail are made to copies."""
    optimizer, at, density = state.plan.optimizer, state.step, state.density
    is_due = density is not None and density.is_due(at)
    parameters, pages = rendered.parameters, rendered.planned.pages
    if pages is None:
        # If gradients come late, the rendered parameters are older than the current ones.
        parameters = state.parameters.copied() if is_due else state.parameters
    rows = gradients.touched.bool() if optimizer.visible_only else None
    adam = parameters.prepared_step(gradients.by_name, gradients.harmonics, optimizer, at, rows)
    exposures = _exposed(state, gradients)
    refinement, views = state.refinement.stepped(gradients.views, gradients.cameras, state.views, optimizer, at)
    noise: Callable[[], object] | None = None
    report, done = None, None
    if density is not None:
        density = density.observed(gradients.by_name, rendered.outputs, rendered.planned.plan.cameras[0])
        if is_due:
            done = adam.run().times
            report, density = density.controlled(parameters, at, state.reservation)
            density.noise(parameters, optimizer, at)()
        else:
            noise = density.noise(parameters, optimizer, at)
    if pages is not None:
        done = adam.run().times
        parameters = parameters.mapped(torch.Tensor.cpu)
    chosen = rendered.planned.chosen
    return _Change(adam, noise, done, parameters, pages, density, report, exposures, refinement, views, chosen)


def _exposed(state: TrainingState, gradients: Gradients) -> Refinement | None:
    """Return the exposures after a step."""
    optimizer, exposures = state.plan.optimizer, state.exposures
    if exposures is not None and gradients.exposures is not None:
        rate = optimizer.rates[EXPOSURES].at(state.step)
        exposures = exposures.stepped(gradients.views, gradients.exposures, rate, optimizer)
        if optimizer.changes_colors:
            training.center_exposures(exposures.values)
    return exposures


def _regularised(state: TrainingState, parameters: Parameters, gradients: Gradients) -> list[LossPart]:
    """Return the means of opacities and scales as parts of the loss; adds their gradients to `gradients`."""
    loss, by_name = state.plan.loss, gradients.by_name
    assert loss is not None
    parts: list[LossPart] = []
    for term, names in _REGULARISED.items():
        weight = loss.weights[term]
        for name in names:
            parameter: Any = parameters.by_name.get(name)
            if weight and parameter is not None and parameter.value.numel():
                mean = training.mean_term(parameter.value, weight, by_name.get(name))
                parts.append(LossPart.of_term(term, weight, mean))
    return parts
