"""Memory for results, from a pool that reuses freed blocks, so that repeated calls of one size allocate nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.errors import ArgumentError

_SMALL = 2**14  # Bytes.


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An uninitialised tensor; on the CPU its memory returns to the pool when the last reference is dropped.

    torch's CPU allocator requests each large tensor from the operating system, which zeroes every page; zeroing an
    image takes longer than rendering it. torch caches CUDA memory itself, and malloc caches small blocks.
    """
    count = math.prod(shape)
    if device.type != "cpu" or count * dtype.itemsize <= _SMALL:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    memory: torch.Tensor = _native.pool_array(count * dtype.itemsize)
    return memory[: count * dtype.itemsize].view(dtype).view(tuple(shape))


def output_buffer(
    name: str, into: Mapping[str, torch.Tensor] | None, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The tensor that `into` holds for an output, or a new one if it holds none.

    Raises:
        ArgumentError: The tensor in `into` has another shape, type or device, or is not contiguous.
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


def level_buffer(
    name: str, into: Mapping[str, torch.Tensor] | None, shape: Sequence[int], device: torch.device
) -> torch.Tensor | None:
    """The uint8 tensor that `into` holds for an output as levels; None if `into` holds no tensor, or one of floats.

    Raises:
        ArgumentError: The tensor in `into` has another shape or device, or is not contiguous.
    """
    given = None if into is None else into.get(name)
    if given is None or given.dtype != torch.uint8:
        return None
    return output_buffer(name, into, shape, torch.uint8, device)
