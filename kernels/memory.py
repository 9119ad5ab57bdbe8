"""Memory that the engines and torch cache for later calls, and limits on the memory of a call.

A `MemoryRoom` limits the memory that the engines take from their pools in calls of one thread. Tile lists, for example,
have one entry per pair of a tile and a primitive, and the number of pairs is known only once they are counted::

    with MemoryRoom(1 << 30) as room:
        forward(...)  # Raises NoRoom if it needs more than 1 GiB; room.refused is then the size requested.
"""

from __future__ import annotations

from typing import Any

import torch

from lumigrad.kernels import _native
from lumigrad.kernels._native import MemoryRoom
from lumigrad.kernels.per_device import drop_engines

__all__ = ["MemoryRoom", "pin", "trim", "unpin"]


def pin(device: torch.device, address: int, nbytes: int) -> str:
    """Registers host memory with CUDA, so that copies to and from the device do not occupy the CPU.

    The memory must begin on a page boundary. Returns the name of CUDA's error if it refuses, "" otherwise.
    """
    native: Any = _native
    name: str = native.pin_host(address, nbytes, device.index or 0)
    return name


def unpin(device: torch.device, address: int) -> None:
    """Undoes `pin` for the memory at an address, once the device has finished its work."""
    native: Any = _native
    native.unpin_host(address, device.index or 0)


def trim(device: torch.device) -> None:
    """Frees cached memory that is not in use; only the calling thread's workspaces are freed.

    The next calls allocate again, and the next backward pass of spheres prepares its views again.
    """
    if device.type == "cpu":
        drop_engines(device)
    else:
        native: Any = _native
        torch.cuda.empty_cache()
        native.device_trim(device.index or 0)
    _native.pool_trim()
