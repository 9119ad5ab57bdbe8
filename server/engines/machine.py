"""The parts of a worker that all tenants share: the device and its queue."""

from __future__ import annotations

from dataclasses import dataclass

from lumigrad.server.core.accounts import PayloadMemory
from lumigrad.server.core.limits import Limits
from lumigrad.server.device.executor import DeviceExecutor
from lumigrad.server.device.memory import DeviceMemory
from lumigrad.server.device.transfer import Transfer
from lumigrad.server.engines.runner import EngineRunner


@dataclass(frozen=True)
class Machine:
    """The parts of a worker that belong to no tenant."""

    limits: Limits
    memory: DeviceMemory
    transfer: Transfer
    payload_memory: PayloadMemory
    executor: DeviceExecutor
    runner: EngineRunner
