"""Which work the device has memory for, and what is done when it turns out to have none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from lumigrad.kernels.memory import trim
from lumigrad.server.accounts import Account
from lumigrad.server.budget import Budget
from lumigrad.server.errors import DeviceMemoryError
from lumigrad.server.estimates import Cost
from lumigrad.server.out_of_memory import is_out_of_memory, let_go
from lumigrad.server.transit import Transit

T = TypeVar("T")

_RETRY_SECONDS = 1.0
# So many calls in a row that failed for want of memory, though each should have had twice what it needs: it leaks.
_MOST_FAILURES = 5


@dataclass(frozen=True)
class _Shortage:
    """There was not enough memory for an attempt."""

    cause: BaseException


class DeviceMemory:
    """The memory that work and all that is stored share. Used on the device's thread, but for `check`."""

    def __init__(self, device: torch.device, capacity_bytes: int, transit: Transit | None = None) -> None:
        """Payloads in `transit` take of the same memory; None: they are elsewhere."""
        self.capacity_bytes = capacity_bytes
        # Hears whether another attempt helped.
        self.on_shortage: Callable[[bool], None] = lambda was_relieved: None
        # Hears that memory must be lost somewhere, and why.
        self.on_leak: Callable[[str], None] = lambda why: None
        self._device = device
        self._transit = transit
        self._contexts: Budget | None = None
        self._stored: Sequence[Budget] = ()
        self._trainings: Account | None = None
        self._failures = 0

    def share_with(self, contexts: Budget, scenes: Budget, trainings: Account) -> None:
        """Count what is stored; forward states may have to go."""
        self._contexts, self._stored, self._trainings = contexts, (contexts, scenes), trainings

    def check(self, cost: Cost) -> None:
        """Refuse work for which there is not enough memory even if nothing else takes any."""
        if cost.bytes > self.capacity_bytes:
            raise DeviceMemoryError(cost.bytes, self.capacity_bytes)

    def make_room(self, cost: Cost) -> None:
        """Drop as many forward states as work needs; a DeviceMemoryError if that is not enough for now."""
        free = self._free(cost)
        if cost.bytes > free and self._contexts is not None:
            self._contexts.drop(cost.bytes - free)
            free = self._free(cost)
        if cost.bytes > free:
            raise DeviceMemoryError(cost.bytes, free, _RETRY_SECONDS)

    def run(self, work: Callable[[], T], cost: Cost) -> T:
        """Run work; once more, if it may be, with all memory that can be had if there was none.

        If there is none then either it is a DeviceMemoryError.
        """
        self.make_room(cost)
        result = self._attempt(work)
        if not isinstance(result, _Shortage):
            return result
        self._relieve(cost)
        if cost.is_repeatable:
            result = self._attempt(work)
            if not isinstance(result, _Shortage):
                self.on_shortage(True)
                return result
        raise self._failure(cost) from result.cause

    def _attempt(self, work: Callable[[], T]) -> T | _Shortage:
        try:
            result = work()
        except BaseException as error:
            if not is_out_of_memory(error):
                raise
            let_go(error)
            return _Shortage(error)
        self._failures = 0
        return result

    def _relieve(self, cost: Cost) -> None:
        """Half of the forward states, or as many as are needed, and all that is kept for calls to come."""
        if self._contexts is not None:
            self._contexts.drop(max(cost.bytes, self._contexts.bytes // 2))
        trim(self._device)

    def _failure(self, cost: Cost) -> DeviceMemoryError:
        self.on_shortage(False)
        free = self._free(cost)
        if 0 < 2 * cost.bytes <= free:
            self._failures += 1
        if self._failures == _MOST_FAILURES:
            self.on_leak(f"{self._failures} calls in a row found no memory that should have been there: it leaks")
        return DeviceMemoryError(cost.bytes, free, _RETRY_SECONDS)

    def _free(self, cost: Cost) -> int:
        stored = sum(budget.bytes for budget in self._stored)
        trained = 0 if self._trainings is None else self._trainings.taken
        of_others = 0 if self._transit is None else max(0, self._transit.bytes - cost.payload_bytes)
        return self.capacity_bytes - stored - trained - of_others
