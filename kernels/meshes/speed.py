"""What the speed metric multiplies costs by."""

from __future__ import annotations

import torch

from lumigrad.kernels.meshes.settings import Settings

# Below this speed, in m/s, costs are not scaled; as in native/meshes/math/cost.h.
_LEAST = 1e-3


def speeds(spheres: torch.Tensor, settings: Settings) -> torch.Tensor:
    """[B, H, S] of spheres [B, H, S, 4]: m/s, or 1 where costs are not scaled.

    Those are the first and the last time step, spheres that hardly move and, in exact, neighbours of one that is off.
    """
    scale = torch.ones_like(spheres[..., 0])
    if not settings.speed_metric or spheres.shape[1] < 3:
        return scale
    before, after = spheres[:, :-2], spheres[:, 2:]
    speed = (after[..., :3] - before[..., :3]).norm(dim=-1) / (2.0 * float(settings.time_step_s or 1.0))
    scaled = speed > _LEAST
    if settings.exact:
        scaled &= (before[..., 3] >= 0.0) & (after[..., 3] >= 0.0)
    scale[:, 1:-1] = torch.where(scaled, speed, scale[:, 1:-1])
    return scale
