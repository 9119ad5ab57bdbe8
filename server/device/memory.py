"""Memory of the device: what work is predicted to take, and what is dropped to make room."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from lumigrad.kernels.memory import trim
from lumigrad.server.core.accounts import Account, PayloadMemory
from lumigrad.server.core.errors import DeviceMemoryError
from lumigrad.server.device.faults import is_out_of_memory, release_frames


class Store(Protocol):
    """What takes the room."""

    @property
    def bytes(self) -> int:
        """How much it takes."""

    def __len__(self) -> int:
        """How many things are in it."""

    def drop_oldest(self, *, keep_newest: bool) -> bool:
        """Drop what was used least recently; False if there is nothing that may go."""


class Budget:
    """Limits for several stores together, each of which has limits of its own.

    Stores above an even part are evicted first; a store at or below it is never evicted for another.
    """

    def __init__(self, limit_bytes: int, limit_count: int = sys.maxsize, kept_bytes: int = 0) -> None:
        """Of `kept_bytes` each of several stores keeps an even part whatever else needs the memory."""
        self.limit_bytes = limit_bytes
        self.limit_count = limit_count
        self._kept_bytes = kept_bytes
        self._stores: tuple[Store, ...] = ()
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """What all stores take."""
        return sum(store.bytes for store in self._stores)

    @property
    def count(self) -> int:
        """How many things are in all stores."""
        return sum(len(store) for store in self._stores)

    @property
    def is_exceeded(self) -> bool:
        """Whether the stores hold more than the limits."""
        return self.bytes > self.limit_bytes or self.count > self.limit_count

    def join(self, store: Store) -> None:
        """Count a store from now on."""
        with self._lock:
            self._stores = (*self._stores, store)

    def drop(self, nbytes: int) -> None:
        """Drop so many bytes or all that may go: whoever has most gives first, of that what was used least recently.

        The stores' own locks must be free.
        """
        target = max(0, self.bytes - nbytes)
        while self.bytes > target:
            kept = self._kept_bytes if sum(len(store) > 0 for store in self._stores) > 1 else 0
            if not self._drop_one(_bytes_of, kept, None):
                return

    def enforce(self, grown: Store) -> bool:
        """Make room after a store has grown, but not of what has just been stored; whether that may stay.

        It may if there is enough room now, or if nobody else has anything. The stores' own locks must be free.
        """
        while self.bytes > self.limit_bytes and self._drop_one(_bytes_of, self.limit_bytes, grown):
            pass
        while self.count > self.limit_count and self._drop_one(len, self.limit_count, grown):
            pass
        return not self.is_exceeded or not any(len(store) for store in self._stores if store is not grown)

    def _drop_one(self, size: Callable[[Store], int], limit: int, grown: Store | None) -> bool:
        stores = [store for store in self._stores if len(store)]
        giving = [store for store in stores if store is grown or size(store) * len(stores) > limit]
        giving.sort(key=size, reverse=True)
        return any(store.drop_oldest(keep_newest=store is grown) for store in giving)


def _bytes_of(store: Store) -> int:
    return store.bytes


_KINDS = 1024
_TIMINGS = 16
# Fewer tell nothing: the first call of a kind may have to wait for memory.
_ENOUGH = 3
# What was so slow may have been so for a reason that has passed.
_SECONDS = 30.0
# The least plausible time, as a share of the least that was seen.
_HOPE = 0.5


@dataclass(frozen=True)
class Cost:
    """What is known of a piece of work before it is done.

    Attributes:
        kind: Equal of work that takes about the same time for each view; None: nobody knows how long it takes.
        views: That are rendered; a query is one.
        bytes: Of the device's memory, beside the stored scene and the forward state that it is about.
        payload_bytes: Of these, what came with the call and goes with its reply.
        is_repeatable: Whether it may be done again after it failed half-way: it changes nothing but what it returns.
    """

    kind: Hashable | None = None
    views: int = 1
    bytes: int = 0
    payload_bytes: int = 0
    is_repeatable: bool = False

    @staticmethod
    def of_payload(nbytes: int) -> Cost:
        """Of work that takes little more than what comes or goes, and may be repeated."""
        return Cost(bytes=nbytes, payload_bytes=nbytes, is_repeatable=True)


class Estimates:
    """Timings by kind of work. Its owner holds a lock around every call."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By kind, when and how many seconds for each view.
        self._timings: OrderedDict[Hashable, deque[tuple[float, float]]] = OrderedDict()

    def add(self, kind: Hashable, seconds: float) -> None:
        """Note how long each view of a piece of work took."""
        self._timings.setdefault(kind, deque(maxlen=_TIMINGS)).append((self._clock(), seconds))
        self._timings.move_to_end(kind)
        if len(self._timings) > _KINDS:
            self._timings.popitem(last=False)

    def typical(self, cost: Cost) -> float | None:
        """The seconds that work usually takes; None: too little is known."""
        timings = self._recent(cost.kind)
        return statistics.median(timings) * cost.views if timings else None

    def least(self, cost: Cost) -> float:
        """The seconds that work takes at the least, if all goes well; 0 if too little is known."""
        timings = self._recent(cost.kind)
        return _HOPE * min(timings) * cost.views if timings else 0.0

    def _recent(self, kind: Hashable | None) -> list[float]:
        oldest = self._clock() - _SECONDS
        timings = [seconds for noted, seconds in self._timings.get(kind, ()) if noted >= oldest]
        return timings if len(timings) >= _ENOUGH else []


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

    def __init__(
        self,
        device: torch.device,
        capacity_bytes: int,
        payload_memory: PayloadMemory | None = None,
        on_shortage: Callable[[bool], None] = lambda was_relieved: None,
        on_leak: Callable[[str], None] = lambda why: None,
    ) -> None:
        """Payloads in `payload_memory` take of the same memory; None: they are elsewhere.

        `on_shortage` is called when memory was short, with whether another attempt helped; `on_leak` with the reason
        why memory must be leaking.
        """
        self.capacity_bytes = capacity_bytes
        self._on_shortage = on_shortage
        self._on_leak = on_leak
        self._device = device
        self._payload_memory = payload_memory
        self._contexts: Budget | None = None
        self._stored: Sequence[Budget] = ()
        self._trainings: Account | None = None
        self._failures = 0

    def share_with(self, contexts: Budget, scenes: Budget, trainings: Account) -> None:
        """Count what is stored; forward states may have to go."""
        self._contexts, self._stored, self._trainings = contexts, (contexts, scenes), trainings

    def check(self, cost: Cost, held_bytes: int = 0) -> None:
        """Refuse work for which there is not enough memory even if nothing takes any but `held_bytes`."""
        if cost.bytes + held_bytes > self.capacity_bytes:
            raise DeviceMemoryError(cost.bytes, self.capacity_bytes - held_bytes)

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
                self._on_shortage(True)
                return result
        raise self._failure(cost) from result.cause

    def _attempt(self, work: Callable[[], T]) -> T | _Shortage:
        try:
            result = work()
        except BaseException as error:
            if not is_out_of_memory(error):
                raise
            release_frames(error)
            return _Shortage(error)
        self._failures = 0
        return result

    def _relieve(self, cost: Cost) -> None:
        """Half of the forward states, or as many as are needed, and all that is kept for calls to come."""
        if self._contexts is not None:
            self._contexts.drop(max(cost.bytes, self._contexts.bytes // 2))
        trim(self._device)

    def _failure(self, cost: Cost) -> DeviceMemoryError:
        self._on_shortage(False)
        free = self._free(cost)
        if 0 < 2 * cost.bytes <= free:
            self._failures += 1
        if self._failures == _MOST_FAILURES:
            self._on_leak(f"{self._failures} calls in a row found no memory that should have been there: it leaks")
        return DeviceMemoryError(cost.bytes, free, _RETRY_SECONDS)

    def _free(self, cost: Cost) -> int:
        stored = sum(budget.bytes for budget in self._stored)
        trained = 0 if self._trainings is None else self._trainings.taken
        of_others = 0 if self._payload_memory is None else max(0, self._payload_memory.bytes - cost.payload_bytes)
        return self.capacity_bytes - stored - trained - of_others
