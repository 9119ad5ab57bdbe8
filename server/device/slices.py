"""Long work in slices of time, between which the device's thread runs other jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import replace
from enum import Enum, auto
from typing import Generic, TypeVar

from lumigrad.server.device.memory import Cost, DeviceMemory

T = TypeVar("T")
# Yields between its parts, of at most about a tenth of a second each, and returns the result.
Steps = Generator[None, None, T]
# Work goes on for so long while others wait.
_SLICE_SECONDS = 0.05


def whole(steps: Steps[T]) -> T:
    """The result of steps that run one after the other."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


class Rest(Enum):
    """What a slice returns in place of a result."""

    OPEN = auto()


class Slices(Generic[T]):
    """Work whose steps one job after the other runs. What it has allocated counts as in use between them."""

    def __init__(
        self, begin: Callable[[], Steps[T]], cost: Cost, memory: DeviceMemory, others: Callable[[], int]
    ) -> None:
        """`begin` makes the steps, anew after one has failed; `others` returns the number of jobs that wait."""
        self.cost = cost
        self._begin = begin
        self._memory = memory
        self._others = others
        self._steps: Steps[T] | None = None
        self._kept = 0

    def run(self) -> T | Rest:
        """Run the next slice, on the device's thread; its cost is `cost` then."""
        steps = self._steps = self._steps or self._begin()
        until = time.monotonic() + _SLICE_SECONDS
        try:
            next(steps)
            while time.monotonic() < until or not self._others():
                next(steps)
        except StopIteration as end:
            self._steps = None
            result: T = end.value
            return result
        except BaseException:
            self._steps = None
            raise
        self._keep()
        return Rest.OPEN

    def close(self) -> None:
        """Give up what is not done, once no job of it runs any more."""
        self._steps = None
        self._memory.keep(-self._kept)
        self._kept = 0

    def _keep(self) -> None:
        """Have what was allocated counted from now on, in place of the cost of each job."""
        self._kept += self.cost.bytes - self.cost.payload_bytes
        self._memory.keep(self.cost.bytes - self.cost.payload_bytes)
        self.cost = replace(self.cost, bytes=self.cost.payload_bytes)
