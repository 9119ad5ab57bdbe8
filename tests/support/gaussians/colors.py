"""View-dependent colours of Gaussians: spherical harmonics in float64 torch, by their recurrences."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Channels within this distance of 0 may be clamped or not, depending on rounding.
BRINK = 1e-5


def _legendre(degree: int, z: Tensor) -> dict[tuple[int, int], Tensor]:
    """Associated Legendre polynomials of z without their factor (1 - z^2)^(m / 2), by (l, m)."""
    values: dict[tuple[int, int], Tensor] = {}
    for m in range(degree + 1):
        values[m, m] = torch.full_like(z, float(math.prod(range(1, 2 * m, 2))))
        if m < degree:
            values[m + 1, m] = (2 * m + 1) * z * values[m, m]
        for l in range(m + 2, degree + 1):  # noqa: E741
            values[l, m] = ((2 * l - 1) * z * values[l - 1, m] - (l + m - 1) * values[l - 2, m]) / (l - m)
    return values


def harmonics(degree: int, directions: Tensor) -> Tensor:
    """Real spherical harmonics [.., (degree + 1)^2] of unit directions [.., 3], ordered and signed as 3DGS does."""
    x, y, z = directions.unbind(-1)
    legendre = _legendre(degree, z)
    # (x + i y)^m.
    real, imaginary = [torch.ones_like(x)], [torch.zeros_like(x)]
    for _ in range(degree):
        real, imaginary = ([*real, x * real[-1] - y * imaginary[-1]], [*imaginary, x * imaginary[-1] + y * real[-1]])
    basis = []
    for l in range(degree + 1):  # noqa: E741
        for m in range(-l, l + 1):
            order = abs(m)
            scale = math.sqrt((2 * l + 1) / (4 * math.pi) * math.factorial(l - order) / math.factorial(l + order))
            scale *= (-1) ** order * (math.sqrt(2) if order else 1)
            basis.append(scale * legendre[l, order] * (imaginary[order] if m < 0 else real[order]))
    return torch.stack(basis, -1)


def seen_colors(sh: Tensor, means: Tensor, eye: Tensor, degree: int) -> tuple[Tensor, Tensor]:
    """Colours [N, D] of sh [N, K, D] seen from `eye`, and which Gaussians [N] are near the clamp at black."""
    offsets = means - eye
    directions = offsets / torch.linalg.vector_norm(offsets, dim=-1, keepdim=True)
    basis = harmonics(degree, directions)
    raw = 0.5 + (basis[..., None] * sh[:, : basis.shape[-1]]).sum(-2)
    return raw.clamp_min(0), (raw.detach().abs() < BRINK).any(-1)
