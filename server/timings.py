"""Where the time of one call went, stage by stage."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from lumigrad.v1 import timings_pb2


class StageTimes:
    """Milliseconds by stage, in the order in which stages were first entered."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._milliseconds: dict[str, float] = {}

    def restart(self) -> None:
        """Count from now on: the header has arrived."""
        self._started = time.perf_counter()

    @property
    def milliseconds(self) -> Mapping[str, float]:
        """What has been measured so far."""
        return self._milliseconds

    @property
    def total(self) -> float:
        """Milliseconds since the call, or its header, arrived."""
        return (time.perf_counter() - self._started) * 1e3

    def add(self, stage: str, milliseconds: float) -> None:
        """Count time that was measured elsewhere."""
        self._milliseconds[stage] = self._milliseconds.get(stage, 0.0) + milliseconds

    def add_kernel(self, milliseconds: Mapping[str, float]) -> None:
        """Count the stages of a kernel."""
        for stage, value in milliseconds.items():
            self.add(f"kernel.{stage}", value)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time spent inside."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, (time.perf_counter() - started) * 1e3)

    def message(self) -> timings_pb2.Timings:
        """What a reply carries."""
        stages = [timings_pb2.Stage(name=name, milliseconds=value) for name, value in self._milliseconds.items()]
        return timings_pb2.Timings(stages=stages, total_milliseconds=self.total)
