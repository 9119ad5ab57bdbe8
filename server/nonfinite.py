"""How many of the numbers that leave are none: NaN or infinite."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch


def nonfinite(tensors: Iterable[torch.Tensor]) -> int:
    """Counts them; costs one pass over the memory as long as there are none."""
    return sum(_count(tensor) for tensor in tensors if tensor.is_floating_point())


def _count(tensor: torch.Tensor) -> int:
    # One that is not finite shows in the sum; a sum may also be too large, so look again.
    if math.isfinite(tensor.sum(dtype=torch.float32).item()):
        return 0
    return tensor.numel() - int(torch.isfinite(tensor).sum())
