"""Memory for results, from a pool that keeps what was freed: a steady stream of calls allocates nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from lumigrad.kernels import _native

_SMALL = 2**14  # Bytes.


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An uninitialised tensor; on the CPU its memory returns to the pool when the last user is gone.

    torch's CPU allocator asks the system for each large tensor anew, and the system then clears every page: for an
    image that costs more than rendering it. On CUDA torch keeps memory itself, and for little the system is not asked.
    """
    count = math.prod(shape)
    if device.type != "cpu" or count * dtype.itemsize <= _SMALL:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    memory: torch.Tensor = _native.pool_array(count * dtype.itemsize)
    return memory[: count * dtype.itemsize].view(dtype).view(tuple(shape))
