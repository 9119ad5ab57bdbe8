"""One step of a training: render, compare, differentiate, step the optimiser, control density."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lumigrad.kernels.training import GradientStatistics
from lumigrad.server.call import Call
from lumigrad.server.training.images import Gradients, Losses, Planned, Rendered, differentiate, losses, render
from lumigrad.server.training.spec import EXPOSURES, POSES
from lumigrad.server.training.state import TrainingState
from lumigrad.v1 import density_pb2

# The mean of these is what regularisers weigh.
_REGULARISED: Mapping[str, Sequence[str]] = {"opacity": ("opacities",), "scale": ("scales", "radii")}


@dataclass(frozen=True)
class Done:
    """What became of a step."""

    views: Sequence[int]
    loss: Losses | None
    count: int
    visible: int
    statistics: Mapping[str, GradientStatistics]
    density: density_pb2.DensityReport | None
    discarded: bool = False


def step(state: TrainingState, planned: Planned, call: Call) -> tuple[Rendered, Done]:
    """A step with the training's own loss, whose outputs are among those that are planned."""
    loss = state.plan.loss
    assert loss is not None
    rendered = render(state, planned, call)
    with call.times.stage("loss"):
        found = losses(loss, state, rendered)
    return rendered, apply(state, rendered, found.upstream, found, call)


def apply(
    state: TrainingState,
    rendered: Rendered,
    upstream: Mapping[str, torch.Tensor],
    loss: Losses | None,
    call: Call,
) -> Done:
    """Differentiate what was rendered, and change the parameters: as a whole or not at all."""
    if rendered.generation != state.generation:
        state.step += 1
        return Done(rendered.views, loss, state.parameters.count, 0, {}, None, discarded=True)
    gradients = differentiate(state, rendered, upstream, call)
    terms = _regularise(state, gradients) if loss is not None else {}
    call.check()
    if loss is not None and state.plan.loss is not None:
        weights = state.plan.loss.weights
        regularised = sum(weights[name] * value for name, value in terms.items())
        loss = Losses(loss.total + regularised, {**loss.terms, **terms}, loss.upstream)
    with call.times.stage("optimize"):
        return _change(state, rendered, gradients, loss)


def _change(state: TrainingState, rendered: Rendered, gradients: Gradients, loss: Losses | None) -> Done:
    optimizer, at = state.plan.optimizer, state.step
    rows = gradients.touched.bool() if optimizer.visible_only else None
    statistics = state.parameters.step(gradients.by_name, optimizer, at, rows)
    if state.exposures is not None and gradients.exposures is not None:
        state.exposures.step(gradients.views, gradients.exposures, optimizer.rates[EXPOSURES].at(at), optimizer)
    if state.poses is not None and gradients.poses is not None:
        state.poses.step(gradients.views, gradients.poses, optimizer.rates[POSES].at(at), optimizer)
        for view in gradients.views:
            state.views.move(view, state.poses.clear(view))
    visible = int(gradients.touched.count_nonzero())
    report = None
    if state.density is not None:
        report, has_changed = state.density.after_step(state, rendered, gradients)
        state.generation += has_changed
    state.step += 1
    return Done(rendered.views, loss, state.parameters.count, visible, statistics, report)


def _regularise(state: TrainingState, gradients: Gradients) -> dict[str, float]:
    """Add the gradients of mean opacity and mean scale; returns the means."""
    loss, by_name = state.plan.loss, gradients.by_name
    assert loss is not None
    means: dict[str, float] = {}
    for term, names in _REGULARISED.items():
        weight = loss.weights[term]
        for name in names:
            parameter: Any = state.parameters.by_name.get(name)
            if weight and parameter is not None and parameter.value.numel():
                means[term] = float(parameter.value.mean(dtype=torch.float64))
                if name in by_name:
                    by_name[name].add_(weight / parameter.value.numel())
    return means
