"""Values for tests of levels, and the levels that they must become."""

from __future__ import annotations

import torch
from torch import Tensor


def extreme_values(count: int) -> Tensor:
    """Values at and beside the bounds between levels, beyond the ends, NaN and infinities, and random values."""
    bounds = torch.arange(-2.0, 258.0, 0.5) / 255.0
    beside = [torch.nextafter(bounds, torch.tensor(end)) for end in (-torch.inf, torch.inf)]
    odd = torch.tensor(
        [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, 8.5e6, 2.0**31, 2.0**33]
    )
    known = torch.cat([bounds, *beside, odd])
    random = torch.rand(count - len(known), generator=torch.Generator().manual_seed(3)) * 1.4 - 0.2
    return torch.cat([known, random])


def levels_of(values: Tensor) -> Tensor:
    """The levels of an image of floats, by operations of PyTorch."""
    scaled = values.cpu().mul(255.0).nan_to_num_(nan=0.0, posinf=255.0, neginf=0.0)
    return scaled.clamp_(0.0, 255.0).round_().to(torch.uint8)
