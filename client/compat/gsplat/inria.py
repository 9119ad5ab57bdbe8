"""gsplat's `rasterization_inria_wrapper`: its arguments, and the pictures of diff-gaussian-rasterization."""

from __future__ import annotations

from typing import Any

import torch

from lumigrad.client.compat.gsplat.options import GsplatArgumentError, gsplat_refusals
from lumigrad.client.torch.gaussians import render_gaussians

# Settings that diff-gaussian-rasterization always has: least depth shown, scene units, and blur, pixels squared.
_NEAR, _EPS2D = 0.2, 0.3


def rasterization_inria_wrapper(
    means: torch.Tensor,
    quats: torch.Tensor,
    scales: torch.Tensor,
    opacities: torch.Tensor,
    colors: torch.Tensor,
    viewmats: torch.Tensor,
    Ks: torch.Tensor,
    width: int,
    height: int,
    near_plane: float = 0.01,
    far_plane: float = 100.0,
    eps2d: float = 0.3,
    sh_degree: int | None = None,
    backgrounds: torch.Tensor | None = None,
    *,
    target: str | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None, dict[str, Any]]:
    """Renders Gaussians on a worker like gsplat's function of this name: with the rasterizer of the 3DGS paper.

    Pictures, and gradients with their approximations, are those of
    `lumigrad.client.compat.diff_gaussian_rasterization`; all channels are rendered at once. As there, the principal
    point is the centre of the picture, whatever Ks have, and the least depth shown is 0.2.

    The arguments are those of `rasterization`, but coefficients are [N, K, D], `eps2d` must be 0.3, and `near_plane`,
    `far_plane` and `kwargs` have no effect.

    Returns:
        Colours [.., C, H, W, D], None and an empty dictionary.

    Raises:
        GsplatArgumentError: an argument is invalid.

    Example:
        image, _, _ = rasterization_inria_wrapper(means, quats, scales, opacities, colors, viewmats, Ks, 300, 200)
    """
    if eps2d != _EPS2D:
        raise GsplatArgumentError.of("eps2d", f"expected {_EPS2D}, which the rasterizer of the paper has, got {eps2d}")
    with gsplat_refusals():
        if isinstance(Ks, torch.Tensor) and Ks.shape[-2:] == (3, 3):
            moved = Ks.new_tensor([[0.0, 0.0, width / 2], [0.0, 0.0, height / 2], [0.0, 0.0, 0.0]])
            Ks = torch.where(moved != 0, moved, Ks)
        result = render_gaussians(
            means, torch.nn.functional.normalize(quats, dim=-1), scales.abs(), opacities, colors, viewmats, Ks,
            width=width, height=height, sh_degree=sh_degree, background=backgrounds, near=_NEAR,
            semantics="inria_depth", outputs=("color",), client=target,
        )  # fmt: skip
    return result.color, None, {}
