"""From one generation of rows to the next."""

from __future__ import annotations

from dataclasses import dataclass

from lumigrad.kernels.checks import check
from lumigrad.kernels.density.draw import Draw, check_draw
from lumigrad.kernels.density.engine import engine_for
from lumigrad.kernels.density.gather import gather
from lumigrad.kernels.density.parameters import Parameters, check_parameters
from lumigrad.kernels.density.plan import Plan
from lumigrad.kernels.stages import Stages


@dataclass(frozen=True, eq=False)
class Applied:
    """The next generation.

    Attributes:
        parameters: New tensors; moments of new rows are 0.
        times: Of the kernel stages.
    """

    parameters: Parameters
    times: Stages


def apply(plan: Plan, parameters: Parameters, draw: Draw) -> Applied:
    """Does what a plan says, to all tensors and moments in one pass.

    Clones are copies. Children of a Gaussian are drawn from it and have its scales divided by 1.6; those of a sphere
    lie half its radius to either side of its centre, in a direction that is drawn, and have its radius divided by 1.6.

    Args:
        plan: Of these parameters.
        parameters: What is under training; nothing is changed.
        draw: Whose numbers.

    Returns:
        The next generation.

    Raises:
        ArgumentError: An argument does not fit.
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
