"""A shared-memory lane: its region, and the part of it that one call uses."""

from __future__ import annotations

import array
import fcntl
import itertools
import mmap
import os
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from lumigrad.protos.dtypes import Array
from lumigrad.protos.lanes import Packet, ToCaller

# Nobody can change its size: memory that vanishes would end whoever touches it.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MIN_REGION_BYTES = 64 << 10


def region_bytes(length: int) -> int:
    """The size of a region for so many bytes: one of eight between powers of two, so that regions serve again."""
    step = max(_MIN_REGION_BYTES, 1 << max(0, (length - 1).bit_length() - 4))
    return -(-length // step) * step


class Region:
    """A sealed memfd. It has no name, so nothing remains of it when both sides have gone."""

    def __init__(self, number: int, size: int) -> None:
        """Takes no memory before somebody writes; `descriptor` is for the caller, until `hand_over`."""
        self.number = number
        self.size = size
        # Who holds it; None: it waits to serve again.
        self.lease: Lease | None = None
        self.idle_since = time.monotonic()
        self.descriptor = os.memfd_create("lumigrad-lane", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
            # Keeps a descriptor of its own.
            self._map = mmap.mmap(self.descriptor, size)
        except BaseException:
            os.close(self.descriptor)
            raise
        # Arrays of it keep the mapping alive, whatever becomes of the region.
        self.memory: Array = np.frombuffer(self._map, np.uint8)

    def hand_over(self) -> None:
        """Close the descriptor: the caller has one of its own by now."""
        os.close(self.descriptor)
        self.descriptor = -1

    def free(self) -> None:
        """Give the memory back, also if the caller keeps it mapped; it reads as zeros from then on."""
        self._map.madvise(mmap.MADV_REMOVE)


class LaneBudget:
    """Counts the bytes of all lanes. One lane has at most half, and so has one tenant where tenants are told apart."""

    def __init__(self, limit_bytes: int, *, has_tenants: bool) -> None:
        self.lane_bytes = limit_bytes // 2
        self._limit_bytes = limit_bytes
        self._tenant_bytes = limit_bytes // 2 if has_tenants else limit_bytes
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()

    @property
    def bytes(self) -> int:
        """Of all lanes."""
        return self._taken.total()

    def take(self, tenant: str, nbytes: int) -> bool:
        """Count bytes, if there are as many left for a tenant."""
        with self._lock:
            mine = self._taken[tenant] + nbytes
            if mine > self._tenant_bytes or self._taken.total() + nbytes > self._limit_bytes:
                return False
            self._taken[tenant] = mine
            return True

    def give(self, tenant: str, nbytes: int) -> None:
        """Count them no more."""
        with self._lock:
            self._taken[tenant] -= nbytes


# Each takes two descriptors, one here and one on the caller's side.
_MAX_REGIONS = 256
# Leases that were released before their calls arrived: those of callers who gave up at once.
_MAX_DISMISSED = 256


@dataclass(eq=False)
class Lease:
    """The regions that one call's reply, or one upload, lies in."""

    number: int
    # While a call may still write, nobody else gets its regions.
    in_progress: bool = False
    is_released: bool = False
    regions: list[Region] = field(default_factory=list)


class Lane:
    """Regions of one caller, who sees nothing of any other's. They serve again within the lane, and only there.

    Fresh memory is what costs most, so regions stay for a while when they are not in use.
    """

    def __init__(self, tenant: str, link: socket.socket, budget: LaneBudget) -> None:
        """`link` is the connection to the caller, which does not block."""
        self.tenant = tenant
        self._link = link
        self._budget = budget
        self._max_bytes = budget.lane_bytes
        self._lock = threading.Lock()
        self._regions: dict[int, Region] = {}
        self._leases: dict[int, Lease] = {}
        self._dismissed: deque[int] = deque(maxlen=_MAX_DISMISSED)
        self._numbers = itertools.count(1)
        self._bytes = 0
        self._is_closed = False

    def begin(self, number: int) -> Lease | None:
        """A lease for the reply of a call that begins; None if the number is in use, or the caller has given up."""
        with self._lock:
            if self._is_closed or number in self._leases or number in self._dismissed:
                return None
            lease = self._leases[number] = Lease(number, in_progress=True)
            return lease

    def end(self, lease: Lease, *, delivered: bool) -> None:
        """The call has ended: unless all went well, nobody will read what it wrote."""
        with self._lock:
            lease.in_progress = False
            if lease.is_released or not delivered or not lease.regions:
                self._recycle(lease)

    def release(self, number: int) -> None:
        """The caller needs the regions of a lease no more."""
        with self._lock:
            lease = self._leases.get(number)
            if lease is None:
                self._dismissed.append(number)
            elif lease.in_progress:
                lease.is_released = True
            else:
                self._recycle(lease)

    def grant(self, number: int, length: int) -> Region | None:
        """Lease room for an upload."""
        with self._lock:
            lease = self._leases.get(number) or Lease(number)
            region = None if lease.in_progress else self._take(lease, length)
            if region is not None:
                self._leases[number] = lease
            return region

    def room(self, lease: Lease, length: int) -> Region | None:
        """A region for a part of a reply; None if there is no room."""
        with self._lock:
            return None if lease.is_released else self._take(lease, length)

    def leased(self, number: int) -> tuple[Region, Lease] | None:
        """A region that the caller holds."""
        with self._lock:
            region = self._regions.get(number)
            return None if region is None or region.lease is None else (region, region.lease)

    def show(self, content: bytes) -> Region | None:
        """A new region that begins with `content`; None if there is no room for it."""
        with self._lock:
            return self._new(region_bytes(len(content)), content)

    def trim(self, idle_seconds: float) -> None:
        """Drop the regions that have not been in use for some time."""
        with self._lock:
            oldest = time.monotonic() - idle_seconds
            for region in [region for region in self._idle() if region.idle_since < oldest]:
                self._drop(region)

    def close(self) -> None:
        """Take all memory back: the caller has gone."""
        with self._lock:
            self._is_closed = True
            for region in self._regions.values():
                region.free()
                # Leases and regions know each other: nothing must wait for the garbage collector to be unmapped.
                region.lease = None
            for lease in self._leases.values():
                lease.regions.clear()
            self._regions.clear()
            self._leases.clear()
            self._budget.give(self.tenant, self._bytes)
            self._bytes = 0

    def send(self, packet: Packet, descriptors: Collection[int] = ()) -> bool:
        """Send a packet; False if the caller has not read those before it, or has gone."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            self._link.sendmsg([packet.pack()], rights)
        except OSError:
            return False
        return True

    def _take(self, lease: Lease, length: int) -> Region | None:
        if self._is_closed or not 0 < length <= self._max_bytes:
            return None
        size = region_bytes(length)
        # Of those of one size the last that was in use, which the caches may still hold; the others can be dropped.
        fitting = [region for region in reversed(self._idle()) if size <= region.size <= 2 * size]
        region = min(fitting, key=lambda region: region.size) if fitting else self._new(size)
        if region is not None:
            region.lease = lease
            lease.regions.append(region)
        return region

    def _idle(self) -> list[Region]:
        """Those that nobody holds, the longest unused first."""
        idle = [region for region in self._regions.values() if region.lease is None]
        return sorted(idle, key=lambda region: region.idle_since)

    def _new(self, size: int, content: bytes = b"") -> Region | None:
        idle = self._idle()
        while not self._count(size):
            if not idle or not self._drop(idle.pop(0)):
                return None
        region = self._sent(size, content)
        if region is None:
            self._budget.give(self.tenant, size)
            return None
        self._regions[region.number] = region
        self._bytes += size
        return region

    def _count(self, size: int) -> bool:
        """Take so much from the budget, if there may be another region."""
        if self._is_closed or len(self._regions) >= _MAX_REGIONS or self._bytes + size > self._max_bytes:
            return False
        return self._budget.take(self.tenant, size)

    def _sent(self, size: int, content: bytes) -> Region | None:
        """Make a region and hand it over; None if the system has none, or the caller does not take it."""
        try:
            region = Region(next(self._numbers), size)
        except OSError:
            return None
        region.memory[: len(content)] = np.frombuffer(content, np.uint8)
        is_sent = self.send(Packet(ToCaller.REGION, region.number, size), [region.descriptor])
        region.hand_over()
        return region if is_sent else None

    def _drop(self, region: Region) -> bool:
        if not self.send(Packet(ToCaller.DROP, region.number)):
            return False
        del self._regions[region.number]
        region.free()
        self._budget.give(self.tenant, region.size)
        self._bytes -= region.size
        return True

    def _recycle(self, lease: Lease) -> None:
        self._leases.pop(lease.number, None)
        for region in lease.regions:
            region.lease, region.idle_since = None, time.monotonic()
        lease.regions.clear()
