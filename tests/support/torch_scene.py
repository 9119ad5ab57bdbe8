"""A small scene of Gaussians as tensors, with the camera that sees it."""

from __future__ import annotations

import torch

COUNT, SIZE = 12, {"width": 16, "height": 12}


def scene() -> dict[str, torch.Tensor]:
    """The arguments of `render_gaussians`, besides SIZE."""
    generator = torch.Generator().manual_seed(0)
    return {
        "means": torch.randn(COUNT, 3, generator=generator) + torch.tensor([0, 0, 5.0]),
        "quats": torch.randn(COUNT, 4, generator=generator),
        "scales": torch.full((COUNT, 3), 0.3),
        "opacities": torch.full((COUNT,), 0.5),
        "colors": torch.rand(COUNT, 3, generator=generator),
        "viewmats": torch.eye(4)[None],
        "Ks": torch.tensor([[[20.0, 0, 8], [0, 20, 6], [0, 0, 1]]]),
    }
