"""Lumigrad in a Ray cluster: Ray places and restarts workers, and clients call the workers directly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumigrad.ray.cluster import start, status, stop
from lumigrad.ray.finding import client, targets, token
from lumigrad.ray.options import Options

if TYPE_CHECKING:
    from lumigrad.ray.split_scene import SplitScene, split

__all__ = ["Options", "SplitScene", "client", "split", "start", "status", "stop", "targets", "token"]


def __getattr__(name: str) -> Any:
    """Imports on first use the names that need the kernels, which clients of a fleet do not."""
    if name in ("SplitScene", "split"):
        from lumigrad.ray import split_scene

        return getattr(split_scene, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
