"""What the services share: one device, its queue, and what is kept on it."""

from __future__ import annotations

from dataclasses import dataclass

from lumigrad.server.contexts import ContextStore
from lumigrad.server.executor import DeviceExecutor
from lumigrad.server.limits import Limits
from lumigrad.server.renderer import Renderer, Retained
from lumigrad.server.scenes import SceneStore
from lumigrad.server.transfer import Transfer
from lumigrad.server.transit import Transit


@dataclass(frozen=True)
class Runtime:
    """One worker's working parts."""

    limits: Limits
    transfer: Transfer
    transit: Transit
    executor: DeviceExecutor
    scenes: SceneStore
    contexts: ContextStore[Retained]
    renderer: Renderer
