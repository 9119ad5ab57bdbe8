"""What the backward pass needs of a query."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lumigrad.kernels.meshes.settings import Settings
from lumigrad.kernels.meshes.world import World


@dataclass(frozen=True, eq=False)
class State:
    """Of an `evaluate` with `retain`.

    Attributes:
        spheres: f32 [B, H, S, 4].
        world: The world.
        settings: The settings.
        environments: i32 [B] or None.
        per_instance: Whether distances have a last axis I.
        cost: f32 [B, H, S] without the weight; None: it was not asked for.
        jacobian: f32 [B, H, S, 10], with it: d cost / d centre before (3), own centre (3), centre after (3), radius.
        normal: f32 [B, H, S, 3] or [B, H, S, I, 3], d distance / d centre; None: distances were not asked for.
        instance: i32 [B, H, S] or [B, H, S, I], with it: whose distance it is, -1: nobody's.
    """

    spheres: torch.Tensor
    world: World
    settings: Settings
    environments: torch.Tensor | None
    per_instance: bool
    cost: torch.Tensor | None
    jacobian: torch.Tensor | None
    normal: torch.Tensor | None
    instance: torch.Tensor | None

    @property
    def bytes(self) -> int:
        """Memory it holds, without that of the world."""
        tensors = (self.spheres, self.environments, self.cost, self.jacobian, self.normal, self.instance)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)
