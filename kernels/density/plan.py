"""Which rows grow and which go."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.buffers import empty
from lumigrad.kernels.checks import check, is_number
from lumigrad.kernels.density.engine import engine_for
from lumigrad.kernels.density.parameters import Parameters, check_parameters
from lumigrad.kernels.density.statistics import Statistics, check_statistics
from lumigrad.kernels.density.thresholds import Thresholds
from lumigrad.kernels.stages import Stages


@dataclass(frozen=True, eq=False)
class Plan:
    """The rows of the next generation: those that stay in their order, clones, first children, second children.

    A row that grows and would be pruned, or whose children would be, is pruned.

    Attributes:
        before: How many rows there are.
        sources: i32 [count], of which row each of the next generation is a copy or a child; on their device.
        kept: How many stay; those behind them are new.
        cloned: How many of those are there once more.
        split: How many are replaced by two children each.
        pruned: How many go.
        revised_opacity: See `Thresholds`.
        times: Of the kernel stages.
    """

    before: int
    sources: torch.Tensor
    kept: int
    cloned: int
    split: int
    pruned: int
    revised_opacity: bool
    times: Stages

    @property
    def count(self) -> int:
        """Rows of the next generation: before + cloned + split - pruned."""
        return self.sources.shape[0]


def plan(
    parameters: Parameters, statistics: Statistics, thresholds: Thresholds, *, extent: float, after_reset: bool
) -> Plan:
    """Decides which Gaussians or spheres are cloned, split and pruned (Kerbl et al., SIGGRAPH 2023).

    On CUDA it waits for the device, to know how many there will be.

    Args:
        parameters: What is under training; nothing is changed.
        statistics: Of these rows since the last plan.
        thresholds: Beyond which values they grow or go.
        extent: Of the scene, scene units, e.g. the radius of the cameras about their centre.
        after_reset: Whether opacities were reset before: only then rows go because of their size.

    Returns:
        What `apply` is to do. The same arguments give the same plan on every machine.

    Raises:
        ArgumentError: An argument does not fit.
    """
    check_parameters(parameters)
    check_statistics(statistics, parameters.count, parameters.device)
    check(isinstance(thresholds, Thresholds), "thresholds", "Thresholds", type(thresholds).__name__)
    fits = is_number(extent) and 0.0 < float(extent) < math.inf
    check(fits, "extent", "a finite value above 0, scene units", extent)
    count, device = parameters.count, parameters.device
    engine, times = engine_for(device), Stages()
    chunks = -(-count // _native.DENSITY_CHUNK)
    fates = empty((count,), torch.uint8, device)
    starts = torch.zeros(_native.DENSITY_GROUPS * chunks + 1, dtype=torch.int32, device=device)
    limits = thresholds.native(parameters.gaussians, float(extent), after_reset)
    rows = {"sizes": parameters.sizes, "opacities": parameters.arrays("opacities")["opacities"]}
    times.views.append(engine.run("classify", limits, **rows, **statistics.arrays(), fates=fates, starts=starts))
    ends = starts.tolist()
    kept, clones_end, total = (ends[group * chunks] for group in (1, 2, 3))
    cloned, split = clones_end - kept, total - clones_end
    sources = empty((total + split,), torch.int32, device)
    times.views.append(engine.run("list_rows", count, fates=fates, starts=starts, sources=sources))
    pruned = count - kept - split
    return Plan(count, sources, kept, cloned, split, pruned, thresholds.revised_opacity, times)
