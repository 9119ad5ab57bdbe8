"""Execution of a densification plan, and resets of opacities."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lumigrad.kernels.buffers import empty
from lumigrad.kernels.checks import check, is_number
from lumigrad.kernels.density.engine import engine_for
from lumigrad.kernels.density.parameters import Parameters, check_parameters
from lumigrad.kernels.density.plan import Plan
from lumigrad.kernels.density.random import Draw, check_draw
from lumigrad.kernels.density.thresholds import logit
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.stages import Stages, StageTimes


def gather(parameters: Parameters, sources: torch.Tensor, kept: int) -> tuple[Parameters, StageTimes]:
    """Copies rows into new parameters.

    Args:
        parameters: The current parameters; not changed.
        sources: i32 [M], for each new row the index of the row to copy.
        kept: The number of leading new rows that keep their moments; the moments of later rows are 0.

    Returns:
        The new parameters, and the time of the kernel.
    """
    count, device = sources.shape[0], sources.device

    def next_of(tensor: torch.Tensor) -> torch.Tensor:
        return empty((count, *tensor.shape[1:]), torch.float32, device)

    tensors = {name: next_of(tensor) for name, tensor in parameters.tensors.items()}
    moments = {name: tuple(map(next_of, several)) for name, several in parameters.moments.items()}
    before = [*parameters.tensors.values(), *(moment for several in parameters.moments.values() for moment in several)]
    after = [*tensors.values(), *(moment for several in moments.values() for moment in several)]
    fresh = [index >= len(tensors) for index in range(len(after))]
    lists = kept, [tensor.detach() for tensor in before], after, fresh
    times = engine_for(device).run("gather", *lists, sources=sources)
    return Parameters(tensors, moments), times


@dataclass(frozen=True, eq=False)
class Applied:
    """The result of `apply`.

    Attributes:
        parameters: New tensors; moments of added rows are 0.
        times: Time of each kernel stage.
    """

    parameters: Parameters
    times: Stages


def apply(plan: Plan, parameters: Parameters, draw: Draw) -> Applied:
    """Executes a plan on all tensors and moments in one pass.

    Clones are copies. The two children of a Gaussian have means sampled from it, and its scales divided by 1.6. The
    children of a sphere lie half its radius to either side of its centre, in a random direction, and have its radius
    divided by 1.6.

    Args:
        plan: A plan for these parameters.
        parameters: The parameters in training; not changed.
        draw: The random numbers to use.

    Returns:
        The new parameters.

    Raises:
        ArgumentError: An argument is invalid.
    """
    check_parameters(parameters)
    check_draw(draw)
    check(isinstance(plan, Plan), "plan", "a Plan", type(plan).__name__)
    check(plan.before == parameters.count, "plan", f"one of {parameters.count} rows", plan.before)
    grown, copying = gather(parameters, plan.sources, plan.kept)
    arrays = {
        "sources": plan.sources,
        "means": grown.tensors[grown.leader],
        "sizes": grown.sizes,
        **grown.arrays("opacities"),
        **parameters.arrays("quats"),
    }
    draws = draw.native("first_child"), draw.native("second_child")
    engine, first = engine_for(parameters.device), plan.kept + plan.cloned
    splitting = engine.run("split", *draws, first, plan.split, plan.revised_opacity, **arrays)
    return Applied(grown, Stages([copying, splitting]))


def reset_opacities(parameters: Parameters, maximum: float = 0.01) -> None:
    """Clamps opacities to at most `maximum`, in place, and sets their moments to 0 (Kerbl et al., SIGGRAPH 2023).

    Args:
        parameters: The parameters in training.
        maximum: In (0, 1); gsplat uses twice its pruning threshold.

    Raises:
        ArgumentError: An argument is invalid, or the parameters are spheres without opacities.
    """
    check_parameters(parameters)
    check(is_number(maximum) and 0.0 < float(maximum) < 1.0, "maximum", "a value in (0, 1)", maximum)
    if "opacities" not in parameters.tensors:
        raise ArgumentError("parameters", "a tensor 'opacities'", f"{sorted(parameters.tensors)}")
    limit = logit(float(maximum)) if parameters.gaussians else float(maximum)
    with torch.no_grad():
        parameters.tensors["opacities"].clamp_(max=limit)
        for moment in parameters.moments.get("opacities", ()):
            moment.zero_()
