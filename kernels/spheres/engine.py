"""Which compiled engine serves a device, and the memory it works in."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import torch

from lumigrad.kernels import _native


@dataclass
class Engine:
    """The compiled functions for one kind of device, and a thread's workspace.

    Attributes:
        forward: Renders one view.
        backward: Differentiates one view.
        workspace: Buffers that are reused from call to call; they belong to one thread.
    """

    forward: Any
    backward: Any
    workspace: Any

    def stages(self) -> dict[str, float]:
        """Milliseconds per stage of the last call."""
        return dict(zip(_native.SPHERE_STAGES, self.workspace.milliseconds, strict=False))


@dataclass
class _Local(threading.local):
    engines: dict[torch.device, Engine] = field(default_factory=dict)


_local = _Local()


def engine_for(device: torch.device) -> Engine:
    """This thread's engine for a device."""
    engine = _local.engines.get(device)
    if engine is None:
        engine = Engine(_native.sphere_forward, _native.sphere_backward, _native.SphereWorkspace())
        _local.engines[device] = engine
    return engine
