"""A reference of density control in float64, with plain torch operations."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from support.rotations import rotations


def covariances(quats: Tensor, scales: Tensor) -> Tensor:
    """[N, 3, 3] of logarithms of scales."""
    axes = rotations(quats.double()) * scales.double().exp()[:, None]
    return axes @ axes.transpose(1, 2)


def noisy_means(tensors: Mapping[str, Tensor], normals: Tensor, strength: float) -> Tensor:
    """Means after noise, given its normal numbers [N, 3]."""
    opacities = torch.sigmoid(tensors["opacities"].double())
    gate = torch.sigmoid(100.0 * (1.0 - opacities - 0.995))
    moved = torch.einsum("nij,nj->ni", covariances(tensors["quats"], tensors["scales"]), normals)
    return tensors["means"].double() + strength * gate[:, None] * moved
