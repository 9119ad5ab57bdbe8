"""How a query is cut into pieces, between which it can be given up."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from lumigrad.kernels.meshes.world import World

BeforeLaunch = Callable[[], object]
# Rows times instances: about a second's work of one thread at the worst.
_WORK_AT_ONCE = 2**22


def nothing() -> None:
    """Before a launch, when nobody wants to be asked."""


def launches(spheres: torch.Tensor, world: World, before_launch: BeforeLaunch) -> Iterator[slice]:
    """The trajectories of each launch, of spheres [B, H, S, 4]; sweeps tie the steps of one together."""
    trajectories, horizon, count = spheres.shape[:3]
    if spheres.numel() == 0:
        return
    step = max(1, _WORK_AT_ONCE // (horizon * count * max(1, len(world.instances))))
    for first in range(0, trajectories, step):
        before_launch()
        yield slice(first, first + step)
