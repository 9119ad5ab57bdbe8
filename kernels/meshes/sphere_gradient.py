"""Gradients of spheres from the engine's derivatives per row."""

from __future__ import annotations

import functools

import torch

from lumigrad.kernels.meshes.settings import Settings


@functools.lru_cache
def _own(device: torch.device) -> torch.Tensor:
    """The columns of the jacobian for the own centre and the radius."""
    return torch.tensor([3, 4, 5, 9], device=device)


def of_costs(jacobian: torch.Tensor, scale: torch.Tensor | float, settings: Settings) -> torch.Tensor:
    """The gradient dL/d spheres [B, H, S, 4] of costs.

    Args:
        jacobian: [B, H, S, 10] d cost / d (centre before, own centre, centre after, radius), without the weight.
        scale: dL/d cost times the weight, [B, H, S] or one value for all.
        settings: The settings of the query.
    """
    gradient = jacobian.index_select(-1, _own(jacobian.device))
    factor = scale[..., None] if isinstance(scale, torch.Tensor) else scale
    if isinstance(factor, torch.Tensor) or factor != 1.0:
        gradient *= factor
    # Sweeps and speeds also depend on the adjacent time steps; cuRobo omits those derivatives.
    if settings.exact and (settings.sweep or settings.speed_metric) and jacobian.shape[1] > 1:
        later = factor[:, 1:] if isinstance(factor, torch.Tensor) else factor
        earlier = factor[:, :-1] if isinstance(factor, torch.Tensor) else factor
        gradient[:, :-1, :, :3] += later * jacobian[:, 1:, :, 0:3]
        gradient[:, 1:, :, :3] += earlier * jacobian[:, :-1, :, 6:9]
    return gradient


def of_distances(normal: torch.Tensor, upstream: torch.Tensor) -> torch.Tensor:
    """The gradient dL/d spheres [B, H, S, 4] from dL/d distance [B, H, S] or [B, H, S, I]; 0 for radii."""
    centres = upstream[..., None] * normal
    if centres.dim() == 5:
        centres = centres.sum(dim=3)
    return torch.nn.functional.pad(centres, (0, 1))
