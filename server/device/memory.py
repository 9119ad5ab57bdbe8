"""Memory of the device: budgets for the tenants' stores, the needs of jobs, and eviction to make room for jobs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol, TypeAlias, TypeVar

import torch

from lumigrad.kernels.errors import NoRoom
from lumigrad.kernels.memory import MemoryRoom, trim
from lumigrad.server.core.accounts import Account, PayloadMemory
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import DeviceMemoryError
from lumigrad.server.device.faults import is_out_of_memory, release_locals
from lumigrad.server.device.transfer import Transfer


class Store(Protocol):
    """A store whose objects use memory."""

    @property
    def bytes(self) -> int:
        """The bytes that its objects use."""

    @property
    def is_held(self) -> bool:
        """Whether it has objects that cannot be evicted now but soon can be."""

    @property
    def count(self) -> int:
        """The number of its objects that count towards a budget's limit."""

    @property
    def limit_bytes(self) -> int:
        """The bytes that its tenant may use in this store and its spare together."""

    @property
    def spare(self) -> Store | None:
        """A store of the same tenant, which is emptied before this one is refused room."""

    def __len__(self) -> int:
        """Return the number of its objects."""

    def drop_oldest(self, *, keep_newest: bool) -> bool:
        """Evict the least recently used object; False if none may be evicted."""


# A store, and its spare if it has one.
_Tenant: TypeAlias = "tuple[Store, ...]"
_Size: TypeAlias = Callable[[Store], int]
_BYTES: _Size = attrgetter("bytes")
_COUNT: _Size = attrgetter("count")


class Budget:
    """Limits on the stores of several tenants together, in addition to each tenant's own limits.

    A store and its spare belong to one tenant. Only tenants above an even share lose objects to other tenants.
    """

    def __init__(self, limit_bytes: int, limit_count: int = sys.maxsize, kept_bytes: int = 0) -> None:
        """Create a budget. If there are several tenants, `drop` leaves each an even share of `kept_bytes`."""
        self.limit_bytes = limit_bytes
        self.limit_count = limit_count
        self._kept_bytes = kept_bytes
        # The bytes that all stores use. A running total, since each call reads it and there may be many tenants.
        self.bytes = 0
        self._stores: tuple[Store, ...] = ()
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """The number of objects in all stores."""
        return sum(store.count for store in self._stores)

    @property
    def is_exceeded(self) -> bool:
        """Whether the stores hold more than the limits."""
        return self.bytes > self.limit_bytes or self.count > self.limit_count

    @property
    def is_held(self) -> bool:
        """Whether there are objects that cannot be evicted now but soon can be."""
        return any(store.is_held for store in self._stores)

    def join(self, store: Store) -> None:
        """Add an empty store, which must report each `change` of its bytes."""
        with self._lock:
            self._stores = (*self._stores, store)

    def change(self, nbytes: int) -> None:
        """Add `nbytes`, which may be negative, to the total."""
        with self._lock:
            self.bytes += nbytes

    def drop(self, nbytes: int) -> None:
        """Evict `nbytes`, or as much as possible: the least recently used objects of the largest tenant first.

        The caller must not hold the stores' locks.
        """
        target = max(0, self.bytes - nbytes)
        while self.bytes > target:
            kept = self._kept_bytes if len(self._tenants()) > 1 else 0
            if not self._drop_one(_BYTES, kept, None):
                return

    def enforce(self, grown: Store, nbytes: int = 0, count: int = 0) -> bool:
        """Evict down to the limits after a store has grown, but not its newest object; False if that one cannot stay.

        It can stay if the limits are met, or if all other stores are empty. Give `nbytes` and `count` to call this
        before the store grows by them. The caller must not hold the stores' locks.
        """
        limit_bytes, limit_count = self.limit_bytes - nbytes, self.limit_count - count
        if not self._enforce_tenant(grown, nbytes):
            return False
        while self.bytes > limit_bytes and self._drop_one(_BYTES, self.limit_bytes, grown):
            pass
        while self.count > limit_count and self._drop_one(_COUNT, self.limit_count, grown):
            pass
        fits = self.bytes <= limit_bytes and self.count <= limit_count
        own = (grown, grown.spare)
        return fits or not any(len(store) for store in self._stores if store not in own)

    def _enforce_tenant(self, grown: Store, nbytes: int) -> bool:
        """Evict down to the limit of a store's tenant; False if the grown store is a spare and still does not fit."""
        store = next((store for store in self._stores if store.spare is grown), grown)
        tenant = _tenant_of(store)
        # A store without a spare enforces the limit itself.
        while len(tenant) > 1 and sum(map(_BYTES, tenant)) + nbytes > store.limit_bytes:
            if not _drop_of(tenant, _BYTES, store.limit_bytes, grown):
                return grown is store or not len(store)
        return True

    def _tenants(self) -> list[_Tenant]:
        """Return the stores of each tenant that has any objects."""
        spares = {store.spare for store in self._stores}
        tenants = [_tenant_of(store) for store in self._stores if store not in spares]
        return [tenant for tenant in tenants if any(map(len, tenant))]

    def _drop_one(self, size: _Size, limit: int, grown: Store | None) -> bool:
        tenants = self._tenants()
        share = limit // max(1, len(tenants))
        giving = [tenant for tenant in tenants if grown in tenant or sum(map(size, tenant)) > share]
        giving.sort(key=lambda tenant: sum(map(size, tenant)), reverse=True)
        return any(_drop_of(tenant, size, share, grown) for tenant in giving)


def _tenant_of(store: Store) -> _Tenant:
    return (store,) if store.spare is None else (store, store.spare)


def _drop_of(tenant: _Tenant, size: _Size, share: int, grown: Store | None) -> bool:
    """Evict an object of a tenant's larger store, or else of the smaller; False if none may be evicted.

    A spare that has grown leaves the main store half of the tenant's share.
    """
    for store in sorted(tenant, key=size, reverse=True):
        is_left = store is not grown and grown is tenant[-1] and 2 * size(store) <= share
        if size(store) and not is_left and store.drop_oldest(keep_newest=store is grown):
            return True
    return False


@dataclass(frozen=True)
class Cost:
    """The predicted cost of a job.

    Attributes:
        kind: Jobs of equal kinds take about the same time per view; None if that is unknown.
        views: The number of views to render; 1 for a query.
        bytes: The device memory that the job needs, without stored scenes and forward states.
        payload_bytes: The part of `bytes` for the payloads of request and reply.
        is_repeatable: Whether the job may run again after a failure, since it changes nothing but its result.
        sequence: A job of a sequence may run while the device still works on the previous job of the same sequence.
            None if the job belongs to no sequence.
    """

    kind: Hashable | None = None
    views: int = 1
    bytes: int = 0
    payload_bytes: int = 0
    is_repeatable: bool = False
    sequence: Hashable | None = None

    @staticmethod
    def of_payload(nbytes: int) -> Cost:
        """Return the cost of a repeatable job that needs little more memory than its payload."""
        return Cost(bytes=nbytes, payload_bytes=nbytes, is_repeatable=True)


_NOTHING = Cost()


class Beside:
    """Memory of work that runs concurrently with jobs: in use until `release`. Enter it around the work itself."""

    def __init__(
        self,
        room: MemoryRoom | None,
        release: Callable[[], None],
        refusal: Callable[[], DeviceMemoryError] | None = None,
    ) -> None:
        """Limit the kernels of the work to `room`, if given; `refusal` makes the error if that is not enough."""
        self.release = release
        self._room = room
        self._refusal = refusal

    def __enter__(self) -> None:
        if self._room is not None:
            self._room.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._room is not None:
            self._room.__exit__(kind, error, trace)
        if isinstance(error, NoRoom) and self._refusal is not None:
            raise self._refusal() from error


T = TypeVar("T")

_RETRY_SECONDS = 1.0
# Share of the free memory that kernels may take beyond the prediction, since the length of tile lists depends on the
# values of a scene. The rest is for payloads that arrive meanwhile.
_ROOM_FRACTION = 0.5
_LEAST_ROOM_BYTES = 64 << 20
# After this number of consecutive failures of calls that needed at most half of the free memory, memory must be
# leaking.
_MOST_FAILURES = 5


@dataclass(frozen=True)
class _Shortage:
    """The result of an attempt that ran out of memory.

    Attributes:
        refused_bytes: Bytes that the kernels asked for, if that was more than their room; 0 if an allocation failed.
    """

    cause: BaseException
    refused_bytes: int


class DeviceMemory:
    """The memory that jobs and stores share.

    Used on the device's thread only, except `check`, `free_bytes`, `room_bytes`, `beside` and `keep`.
    """

    def __init__(
        self,
        device: torch.device,
        capacity_bytes: int,
        payload_memory: PayloadMemory | None = None,
        on_shortage: Callable[[bool], None] = lambda was_relieved: None,
        on_leak: Callable[[str], None] = lambda why: None,
        transfer: Transfer | None = None,
    ) -> None:
        """Create the accounts of a device.

        Payloads in `payload_memory` use the same memory; None if they use other memory.

        Downloads of `transfer` hold memory while later jobs run; None if there are no downloads.

        `on_shortage` is called after a failed allocation, with whether a second attempt succeeded; `on_leak` is called
        with the reason when memory must be leaking.
        """
        self.capacity_bytes = capacity_bytes
        self._on_shortage = on_shortage
        self._on_leak = on_leak
        self._device = device
        self._payload_memory = payload_memory
        self._transfer = transfer
        self._contexts: Budget | None = None
        self._stored: Sequence[Budget] = ()
        self._trainings: Account | None = None
        # Consecutive jobs that lacked memory, and the native jobs that had succeeded when the last of them failed.
        self._failures = 0
        self._native_successes: Callable[[], int] = lambda: 0
        self._native_before = 0
        self._lock = threading.Lock()
        # Bytes of concurrent work in the same memory, and bytes that jobs have left for later jobs.
        self._beside = 0

    def share_with(self, contexts: Budget, scenes: Budget, trainings: Account) -> None:
        """Set the stores that share the memory; only forward states are evicted for jobs."""
        self._contexts, self._stored, self._trainings = contexts, (contexts, scenes), trainings

    def count_native(self, successes: Callable[[], int]) -> None:
        """Set the function that returns how many native jobs have succeeded, which show that no memory leaks."""
        self._native_successes = successes

    def check(self, cost: Cost, held_bytes: int = 0) -> None:
        """Raise DeviceMemoryError for a job that could not run even if only `held_bytes` were in use."""
        if cost.bytes + held_bytes > self.capacity_bytes:
            raise DeviceMemoryError(cost.bytes, self.capacity_bytes - held_bytes)

    def begin(self, call: Call | None) -> None:
        """Count the payloads that a call has announced as in use, when one of its jobs begins."""
        if self._payload_memory is not None and call is not None:
            self._payload_memory.begin(call)

    @property
    def free_bytes(self) -> int:
        """The memory that jobs may take now. On any thread."""
        return self._free(_NOTHING) - self._downloading_bytes

    def room_bytes(self, cost: Cost) -> int | None:
        """Return the memory that the kernels of a job may take now; None if too little is free. On any thread."""
        free = self.free_bytes
        return None if cost.bytes > free else self._room_bytes(cost, free)

    def beside(self, cost: Cost) -> Beside:
        """Make room for host work concurrent with jobs, on any thread; raises DeviceMemoryError if it does not fit."""
        if self._payload_memory is None:
            # The device has memory of its own.
            return Beside(None, lambda: None)
        self.check(cost)
        with self._lock:
            room = self.make_room(cost)
            self._beside += cost.bytes

        return Beside(room, lambda: self.keep(-cost.bytes), lambda: self._refusal(cost, room.refused))

    def keep(self, nbytes: int) -> None:
        """Count memory that a job leaves for the next job of its call; negative to stop counting it. On any thread."""
        with self._lock:
            self._beside += nbytes

    def make_room(self, cost: Cost) -> MemoryRoom:
        """Make room for the kernels of a job; enter the result around them.

        Waits for a download and evicts forward states until the job fits; raises DeviceMemoryError if it still does
        not.
        """
        free = self._free(cost)
        if cost.bytes > free - self._downloading_bytes and self._transfer is not None:
            self._transfer.settle()
        if cost.bytes > free and self._contexts is not None:
            self._contexts.drop(cost.bytes - free)
            free = self._free(cost)
        if cost.bytes > free:
            raise DeviceMemoryError(cost.bytes, free, _RETRY_SECONDS)
        return MemoryRoom(self._room_bytes(cost, free))

    def run(self, work: Callable[[], T], cost: Cost) -> T:
        """Run `work`. If it runs out of memory and is repeatable, free memory and run it once more.

        Raises DeviceMemoryError if it runs out of memory again.
        """
        # Jobs that need no memory, such as tests of the device, always fit.
        result = self._attempt(work, cost, self.make_room(cost) if cost.bytes else self._room_for(cost))
        if not isinstance(result, _Shortage):
            return result
        if result.refused_bytes and not self._widen(cost, result.refused_bytes):
            raise self._refusal(cost, result.refused_bytes) from result.cause
        if not result.refused_bytes:
            # Evict half of the forward states, or more if the job needs more, and free all cached memory.
            if self._transfer is not None:
                self._transfer.settle()
            if self._contexts is not None:
                self._contexts.drop(max(cost.bytes, self._contexts.bytes // 2))
            trim(self._device)
        if cost.is_repeatable:
            result = self._attempt(work, cost, self._room_for(cost))
            if not isinstance(result, _Shortage):
                self._on_shortage(True)
                return result
        if result.refused_bytes:
            raise self._refusal(cost, result.refused_bytes) from result.cause
        raise self._failure(cost) from result.cause

    def succeeded(self, cost: Cost) -> None:
        """Note that a job has succeeded, after which memory does not seem to leak."""
        # Jobs that need no memory succeed however much has leaked.
        if cost.bytes:
            self._failures = 0

    def finish(self) -> None:
        """Wait for the device; raises if it is lost."""
        if self._transfer is not None:
            self._transfer.finish()

    def _attempt(self, work: Callable[[], T], cost: Cost, room: MemoryRoom) -> T | _Shortage:
        try:
            with room:
                result = work()
        except BaseException as error:
            if not is_out_of_memory(error):
                raise
            release_locals(error)
            return _Shortage(error, room.refused if isinstance(error, NoRoom) else 0)
        self.succeeded(cost)
        return result

    def _room_for(self, cost: Cost) -> MemoryRoom:
        return MemoryRoom(self._room_bytes(cost, self._free(cost)))

    def _room_bytes(self, cost: Cost, free: int) -> int:
        return cost.bytes + max(int(_ROOM_FRACTION * (free - cost.bytes)), _LEAST_ROOM_BYTES)

    def _widen(self, cost: Cost, wanted_bytes: int) -> bool:
        """Evict forward states for kernels that need more than their room; returns whether there is enough then."""
        if wanted_bytes > self._room_bytes(cost, self.capacity_bytes):
            return False
        missing = cost.bytes + int((wanted_bytes - cost.bytes) / _ROOM_FRACTION) - self._free(cost)
        if self._contexts is not None and missing > 0:
            self._contexts.drop(missing)
        return wanted_bytes <= self._room_bytes(cost, self._free(cost))

    def _refusal(self, cost: Cost, wanted_bytes: int) -> DeviceMemoryError:
        """Return the error of a job whose kernels need more than their room, with no retry time if they never fit."""
        most = self._room_bytes(cost, self.capacity_bytes)
        if wanted_bytes > most:
            return DeviceMemoryError(wanted_bytes, most)
        return DeviceMemoryError(wanted_bytes, self._room_bytes(cost, self._free(cost)), _RETRY_SECONDS)

    @property
    def _downloading_bytes(self) -> int:
        return 0 if self._transfer is None else self._transfer.downloading_bytes

    def _failure(self, cost: Cost) -> DeviceMemoryError:
        self._on_shortage(False)
        free, native = self._free(cost), self._native_successes()
        if native != self._native_before:
            self._native_before, self._failures = native, 0
        if 0 < 2 * cost.bytes <= free:
            self._failures += 1
        if self._failures == _MOST_FAILURES:
            self._on_leak(f"{self._failures} consecutive calls failed to allocate memory that should be free: it leaks")
        return DeviceMemoryError(cost.bytes, free, _RETRY_SECONDS)

    def _free(self, cost: Cost) -> int:
        stored = sum(budget.bytes for budget in self._stored)
        trained = 0 if self._trainings is None else self._trainings.taken
        payloads = 0 if self._payload_memory is None else self._payload_memory.used
        of_others = max(0, payloads - cost.payload_bytes)
        return self.capacity_bytes - stored - trained - of_others - self._beside
