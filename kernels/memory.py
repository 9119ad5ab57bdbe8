"""Memory that the engines and torch keep for later calls."""

from __future__ import annotations

from typing import Any

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.per_device import forget_engines


def trim(device: torch.device) -> None:
    """Returns to the system, or to the device, what is kept and in no use; of workspaces, the calling thread's own.

    The next calls have to ask for memory again, and a backward pass of spheres prepares its views anew.
    """
    if device.type == "cpu":
        forget_engines(device)
    else:
        native: Any = _native
        torch.cuda.empty_cache()
        native.device_trim(device.index or 0)
    _native.pool_trim()
