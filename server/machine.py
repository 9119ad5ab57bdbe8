"""What all calls share, whoever makes them: one device and the way to it."""

from __future__ import annotations

from dataclasses import dataclass

from lumigrad.server.device_memory import DeviceMemory
from lumigrad.server.executor import DeviceExecutor
from lumigrad.server.limits import Limits
from lumigrad.server.passes import Passes
from lumigrad.server.transfer import Transfer
from lumigrad.server.transit import Transit


@dataclass(frozen=True)
class Machine:
    """One worker's working parts, without anything that belongs to a caller."""

    limits: Limits
    memory: DeviceMemory
    transfer: Transfer
    transit: Transit
    executor: DeviceExecutor
    passes: Passes
