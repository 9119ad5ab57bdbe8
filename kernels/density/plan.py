"""Decides which rows are cloned, split and pruned."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

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
    """The new rows: kept rows in their order, then clones, first children and second children.

    A row is pruned, rather than cloned or split, if it or its children meet a pruning threshold.

    Attributes:
        before: The current number of rows.
        sources: i32 [count], for each new row the index of the row it copies or descends from; on the device.
        kept: The number of kept rows, including those that are cloned; they come first.
        cloned: The number of cloned rows.
        split: The number of rows that are replaced by two children each.
        pruned: The number of removed rows.
        revised_opacity: See `Thresholds`.
        times: Time of each kernel stage.
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
        """The new number of rows: before + cloned + split - pruned."""
        return self.sources.shape[0]


def plan(
    parameters: Parameters,
    statistics: Statistics,
    thresholds: Thresholds,
    *,
    extent: float,
    after_reset: bool,
    most: int | None = None,
) -> Plan:
    """Decides which Gaussians or spheres are cloned, split and pruned (Kerbl et al., SIGGRAPH 2023).

    On CUDA this waits for the device, once, since the sizes of the new tensors depend on the result.

    Args:
        parameters: The parameters in training; not changed.
        statistics: Statistics of these rows since the last plan.
        thresholds: The thresholds for cloning, splitting and pruning.
        extent: The extent of the scene, scene units, e.g. the radius of a sphere around the cameras.
        after_reset: Whether opacities were reset before; rows are pruned for their size only then.
        most: Rows are only pruned if there would otherwise be more rows than this. None: no limit.

    Returns:
        The plan, for `apply`. The same arguments give the same plan on every machine.

    Raises:
        ArgumentError: An argument is invalid.
    """
    check_parameters(parameters)
    check_statistics(statistics, parameters.count, parameters.device)
    check(isinstance(thresholds, Thresholds), "thresholds", "Thresholds", type(thresholds).__name__)
    fits = is_number(extent) and 0.0 < float(extent) < math.inf
    check(fits, "extent", "a finite value above 0, scene units", extent)
    count, device = parameters.count, parameters.device
    engine, times = engine_for(device), Stages()
    chunks = -(-count // _native.DENSITY_CHUNK)
    choices = [thresholds]
    # Each row adds at most one row.
    if most is not None and 2 * count > most:
        choices.append(replace(thresholds, grow_gradient=math.inf, split_radius=None))
    fates = empty((len(choices), count), torch.uint8, device)
    starts = torch.zeros(len(choices), _native.DENSITY_GROUPS * chunks + 1, dtype=torch.int32, device=device)
    rows = {"sizes": parameters.sizes, "opacities": parameters.arrays("opacities")["opacities"], **statistics.arrays()}
    for index, choice in enumerate(choices):
        limits = choice.native(parameters.gaussians, float(extent), after_reset)
        times.views.append(engine.run("classify", limits, **rows, fates=fates[index], starts=starts[index]))
    # One read of the device counts the rows of all choices.
    for fate, start, ends in zip(fates, starts, starts.tolist(), strict=True):
        kept, clones_end, total = (ends[group * chunks] for group in (1, 2, 3))
        cloned, split = clones_end - kept, total - clones_end
        chosen = {"fates": fate, "starts": start}
        if most is None or total + split <= most:
            break
    sources = empty((total + split,), torch.int32, device)
    times.views.append(engine.run("list_rows", count, **chosen, sources=sources))
    pruned = count - kept - split
    return Plan(count, sources, kept, cloned, split, pruned, thresholds.revised_opacity, times)
