"""Tensors of Gaussians before and behind a row of cameras, as gsplat's functions take them, each with a gradient."""

from __future__ import annotations

import torch

WIDTH, HEIGHT, COUNT = 40, 30, 50
_K = [[40.0, 0, WIDTH / 2], [0, 40, HEIGHT / 2], [0, 0, 1]]


def splats(
    *batch: int, colors: tuple[int, ...] = (3,), cameras: int = 2, count: int = COUNT
) -> dict[str, torch.Tensor]:
    """The arguments except the size; `colors` is the shape of one Gaussian's colours."""
    generator = torch.Generator().manual_seed(2)
    uniform = lambda *shape: torch.rand(*batch, *shape, generator=generator)  # noqa: E731
    views = torch.eye(4).repeat(*batch, cameras, 1, 1)
    views[..., 0, 3] = torch.linspace(0, 0.5, cameras)
    tensors = {
        "means": torch.cat([3 * uniform(count, 2) - 1.5, 6 * uniform(count, 1) - 1], dim=-1),
        "quats": uniform(count, 4) - 0.5,
        "scales": 0.05 + 0.2 * uniform(count, 3),
        "opacities": 0.2 + 0.7 * uniform(count),
        "colors": uniform(count, *colors),
        "viewmats": views,
        "Ks": torch.tensor(_K).repeat(*batch, cameras, 1, 1),
    }
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}
