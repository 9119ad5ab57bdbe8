"""`gsplat.relocation` in plain torch."""

from __future__ import annotations

import torch

from lumigrad.client.base.arrays import check_shape
from lumigrad.client.compat.gsplat.options import gsplat_refusals
from lumigrad.client.compat.gsplat.strategy.rows import relocated


@torch.no_grad()
def compute_relocation(
    opacities: torch.Tensor,
    scales: torch.Tensor,
    ratios: torch.Tensor,
    binoms: torch.Tensor,
    min_opacity: float = 0.005,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns opacities and scales with which coinciding Gaussians together look like the one before.

    Args:
        opacities: [N] before.
        scales: [N, 3] before.
        ratios: [N] how many coincide afterwards, from 1 to the size of `binoms`, and at most 51.
        binoms: [n, n]; only its size is read.
        min_opacity: least opacity afterwards.

    Raises:
        GsplatArgumentError: a tensor has another shape.
    """
    with gsplat_refusals():
        check_shape("opacities", opacities.shape, ("N",))
        for name, given, shape in (("scales", scales, (len(opacities), 3)), ("ratios", ratios, (len(opacities),))):
            check_shape(name, given.shape, shape)
    after, factors = relocated(opacities, ratios.long().clamp(1, len(binoms)), min_opacity)
    return after, scales * factors[:, None]
