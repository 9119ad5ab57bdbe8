"""Where the time of a call went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from lumigrad.v1 import timings_pb2


@dataclass(frozen=True)
class Timings:
    """Milliseconds, as the worker measured them, and the round trip as the client did.

    Attributes:
        stages: by name, e.g. "queue", "upload", "kernel.blend", "download".
        worker_ms: from the arrival of the request to the last byte of the reply.
        round_trip_ms: what the caller waited, transport included.
    """

    stages: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    worker_ms: float = 0.0
    round_trip_ms: float = 0.0

    @property
    def kernel_ms(self) -> float:
        """Sum of the kernel stages."""
        return sum(value for name, value in self.stages.items() if name.startswith("kernel."))

    @staticmethod
    def of(message: timings_pb2.Timings, round_trip_ms: float) -> Timings:
        """Reads the worker's message."""
        stages = {stage.name: stage.milliseconds for stage in message.stages}
        return Timings(MappingProxyType(stages), message.total_milliseconds, round_trip_ms)
