"""What the services work with: the device, its queue, and one tenant's stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lumigrad.server.engines.machine import Machine
from lumigrad.server.engines.runner import ForwardState
from lumigrad.server.storage.contexts import ContextStore
from lumigrad.server.storage.scene_spool import SceneSpool
from lumigrad.server.storage.scenes import SceneStore
from lumigrad.server.storage.spool import TenantSpool
from lumigrad.server.storage.trainings import TrainingStore


@dataclass(frozen=True)
class Runtime(Machine):
    """The parts of a worker as one tenant sees them."""

    scenes: SceneStore
    contexts: ContextStore[ForwardState]
    # None: scenes are kept in memory only.
    spool: SceneSpool | None
    trainings: TrainingStore[Any]
    # Holds snapshots of trainings; None: there is no spool.
    tenant_spool: TenantSpool | None
