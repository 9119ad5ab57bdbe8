"""gsplat's `cli` (`gsplat.distributed`) with one rank: rendering uses the workers' GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def cli(fn: Callable[[int, int, int, Any], Any], args: Any, verbose: bool = False) -> bool:
    """Calls `fn(local_rank, world_rank, world_size, args)` as the only rank, with or without a GPU; returns True."""
    fn(0, 0, 1, args)
    if verbose:
        print("Done.")
    return True
