"""A reference of relocation: draws from whole-number weights, and equation 9 of 3DGS as MCMC evaluated directly."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import torch
from torch import Tensor

from lumigrad.kernels.density import STREAMS, Draw
from support.training import density_random

MOST_SHARES = 51


def drawn(logits: Tensor, candidates: Tensor, number: int, draw: Draw, stream: str) -> Tensor:
    """Samples candidates (a mask) in proportion to their opacities; returns rows in the order of the samples."""
    weights = torch.round(torch.sigmoid(logits.double()) * 2.0**32).clamp(min=1).long() * candidates
    ends = [0, *np.cumsum(weights.numpy().astype(object))]
    words = density_random.words(draw.seed, draw.step, STREAMS.index(stream), np.arange(number))
    randoms = [int(high) << 32 | int(low) for low, high in words[:, :2]]
    targets = np.array([random * int(ends[-1]) >> 64 for random in randoms], np.uint64)
    sums = np.array(ends[1:], np.uint64)
    return torch.from_numpy(np.searchsorted(sums, targets, side="right"))


def share_of(opacity: float, shares: int) -> tuple[float, float]:
    """The opacity of each share, and the factor of the scales: the double sum, with sixty digits."""
    n = min(shares, MOST_SHARES)
    with localcontext() as context:
        context.prec = 60
        whole = Decimal(opacity)
        share = 1 - ((1 - whole).ln() / n).exp()
        total = Decimal(0)
        for i in range(1, n + 1):
            for k in range(i):
                total += math.comb(i - 1, k) * (-1) ** k * share ** (k + 1) / Decimal(k + 1).sqrt()
        return float(share), float(whole / total)


def shared(logits: Tensor, scales: Tensor, counts: Tensor, min_opacity: float) -> tuple[Tensor, Tensor]:
    """New raw opacities [N] and scales [N, 3], float64, of Gaussians to which `counts` others are moved."""
    opacities, logs = logits.double().clone(), scales.double().clone()
    for row in torch.nonzero(counts)[:, 0].tolist():
        share, factor = share_of(float(torch.sigmoid(logits[row].double())), int(counts[row]) + 1)
        clamped = min(max(share, min_opacity), 1.0 - 2.0**-23)
        opacities[row] = math.log(clamped / (1.0 - clamped))
        logs[row] += math.log(factor)
    return opacities, logs
