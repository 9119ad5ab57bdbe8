"""Memory for results, from a pool that keeps what was freed: a steady stream of calls allocates nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.errors import ArgumentError

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


def room(
    name: str, into: Mapping[str, torch.Tensor] | None, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The tensor that `into` has for an output, or one of its own if that has none.

    Raises:
        ArgumentError: The tensor does not fit.
    """
    given = None if into is None else into.get(name)
    if given is None:
        return empty(shape, dtype, device)
    fits = given.dtype == dtype and given.device == device and given.shape == tuple(shape) and given.is_contiguous()
    if not fits:
        expected = f"a contiguous {dtype} tensor of shape {list(shape)} on {device}"
        raise ArgumentError(
            f"into[{name!r}]", expected, f"{given.dtype} of shape {list(given.shape)} on {given.device}"
        )
    return given
