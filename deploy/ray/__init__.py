"""Lumigrad in a Ray cluster: Ray places workers and starts them again, and clients call them directly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumigrad.ray.cluster import start, status, stop
from lumigrad.ray.finding import client, targets, token
from lumigrad.ray.options import Options

if TYPE_CHECKING:
    from lumigrad.ray.split_scene import SplitScene, split

__all__ = ["Options", "SplitScene", "client", "split", "start", "status", "stop", "targets", "token"]


def __getattr__(name: str) -> Any:
    """Imports what needs the kernels when it is asked for: clients of a fleet do without them."""
    if name in ("SplitScene", "split"):
        from lumigrad.ray import split_scene

        return getattr(split_scene, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
