"""A reference of density control in float64, with plain torch operations."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def rotations(quats: Tensor) -> Tensor:
    """[N, 3, 3] of quaternions w, x, y, z of any length."""
    w, x, y, z = torch.nn.functional.normalize(quats.double(), dim=1).unbind(dim=1)
    rows = [
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    ]
    return torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)


def covariances(quats: Tensor, scales: Tensor) -> Tensor:
    """[N, 3, 3] of logarithms of scales."""
    axes = rotations(quats) * scales.double().exp()[:, None]
    return axes @ axes.transpose(1, 2)


def noisy_means(tensors: Mapping[str, Tensor], normals: Tensor, strength: float) -> Tensor:
    """Means after noise, given its normal numbers [N, 3]."""
    opacities = torch.sigmoid(tensors["opacities"].double())
    gate = torch.sigmoid(100.0 * (1.0 - opacities - 0.995))
    moved = torch.einsum("nij,nj->ni", covariances(tensors["quats"], tensors["scales"]), normals)
    return tensors["means"].double() + strength * gate[:, None] * moved
