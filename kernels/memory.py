"""Memory that the engines and torch cache for later calls."""

from __future__ import annotations

from typing import Any

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.per_device import drop_engines


def trim(device: torch.device) -> None:
    """Frees cached memory that is not in use; of the workspaces, only those of the calling thread.

    The next calls allocate again, and the next backward pass of spheres prepares its views again.
    """
    if device.type == "cpu":
        drop_engines(device)
    else:
        native: Any = _native
        torch.cuda.empty_cache()
        native.device_trim(device.index or 0)
    _native.pool_trim()
