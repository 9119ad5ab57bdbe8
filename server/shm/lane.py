"""A shared-memory lane: its regions, and the leases under which calls use them."""

from __future__ import annotations

import array
import fcntl
import itertools
import mmap
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from lumigrad.protos.dtypes import Array
from lumigrad.protos.lanes import Packet, ToCaller
from lumigrad.server.core.accounts import Account, Reservation
from lumigrad.server.core.errors import BusyError
from lumigrad.server.core.pinned import PinnableMap, Pinner, block_bytes

# Fix the size, because access to truncated memory would kill the process.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Region:
    """A sealed memfd. It is unnamed, so it vanishes once both sides have closed it."""

    def __init__(self, number: int, size: int) -> None:
        """Create a region, whose memory is allocated when it is written; `descriptor` is valid until `hand_over`."""
        self.number = number
        self.size = size
        # None if it is free for reuse.
        self.lease: Lease | None = None
        self.idle_since = time.monotonic()
        self.descriptor = os.memfd_create("lumigrad-lane", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
            # The mapping duplicates the descriptor.
            self._map = PinnableMap(self.descriptor, size)
        except BaseException:
            os.close(self.descriptor)
            raise
        # Arrays on this memory keep the mapping alive after the region is dropped.
        self.memory: Array = np.frombuffer(self._map, np.uint8)

    def hand_over(self) -> None:
        """Close the descriptor once the caller has its own."""
        os.close(self.descriptor)
        self.descriptor = -1

    def pin(self, pinner: Pinner) -> bool:
        """Register the memory with CUDA until nothing refers to it; returns False if CUDA refuses."""
        return self._map.pin(pinner)

    def free(self) -> None:
        """Free the memory even if the caller keeps it mapped; it then reads as zeros."""
        self._map.madvise(mmap.MADV_REMOVE)


# Limit on the regions of a lane: each takes a descriptor on the caller's side.
_MAX_REGIONS = 256
# Limit on recorded leases that were released before their calls arrived, by callers that gave up immediately.
_MAX_DISMISSED = 256


@dataclass(eq=False)
class Lease:
    """The regions of one call's reply or of one upload."""

    number: int
    # Whether the call may still write; until it ends, its regions are not reused.
    in_progress: bool = False
    is_released: bool = False
    # Whether it is for a request, whose memory nobody needs once the lane is closed.
    is_upload: bool = False
    regions: list[Region] = field(default_factory=list)


class Lane:
    """The regions of one caller, which are reused only within the lane.

    Allocating memory is slow, so unused regions are kept for a while.
    """

    def __init__(self, tenant: str, link: socket.socket, account: Account, pinner: Pinner | None = None) -> None:
        """`link` is the non-blocking connection to the caller; `account` counts the bytes of all lanes.

        `pinner` registers memory for the device to write to; None if it can write to any memory.
        """
        self.tenant = tenant
        self._link = link
        self._account = account
        self._pinner = pinner
        self._max_bytes = account.limit // 2
        self._reserved = Reservation(account, tenant)
        self._lock = threading.Lock()
        self._regions: dict[int, Region] = {}
        self._leases: dict[int, Lease] = {}
        self._dismissed: deque[int] = deque(maxlen=_MAX_DISMISSED)
        self._numbers = itertools.count(1)
        self._is_closed = False
        self._is_frozen = False

    def begin(self, number: int) -> Lease | None:
        """Create the lease for a new call's reply; None if the number is in use or was already released."""
        with self._lock:
            if self._is_closed or number in self._leases or number in self._dismissed:
                return None
            lease = self._leases[number] = Lease(number, in_progress=True)
            return lease

    def end(self, lease: Lease, *, delivered: bool) -> None:
        """End a call's writes; frees its regions, unless the reply was delivered and the caller holds them."""
        with self._lock:
            lease.in_progress = False
            if lease.is_released:
                # The same call may begin again, and its caller will not release the lease again.
                self._dismissed.append(lease.number)
            if lease.is_released or not delivered or not lease.regions:
                self._recycle(lease)

    def release(self, number: int) -> None:
        """Release a lease for the caller."""
        with self._lock:
            lease = self._leases.get(number)
            if lease is None:
                self._dismissed.append(number)
            elif lease.in_progress:
                lease.is_released = True
            else:
                self._recycle(lease)

    def grant(self, number: int, length: int) -> Region | None:
        """Lease a region for an upload; None if there is no room."""
        with self._lock:
            lease = self._leases.get(number) or Lease(number, is_upload=True)
            region = None if lease.in_progress else self._take(lease, length)
            if region is not None:
                self._leases[number] = lease
            return region

    def lease_region(self, lease: Lease, length: int, *, for_device: bool = False) -> Region | None:
        """Lease a region for part of a reply, writable by the device if `for_device`; None if that is not possible."""
        with self._lock:
            region = None if lease.is_released else self._take(lease, length)
        # Not under the lock, for which others wait: CUDA may take long to register memory.
        if region is None or not for_device or self._pinner is None or region.pin(self._pinner):
            return region
        with self._lock:
            if region in lease.regions:
                lease.regions.remove(region)
            region.lease, region.idle_since = None, time.monotonic()
            return None

    def has_room(self, length: int) -> bool:
        """Return whether about `length` bytes can be leased once regions without a lease are dropped."""
        with self._lock:
            leased = sum(region.size for region in self._regions.values() if region.lease is not None)
            wanted = leased + block_bytes(length)
            more = max(0, wanted - self._reserved.amount)
            fits = wanted <= self._max_bytes and not self._account.lacking(self.tenant, more)
            return fits and not self._is_frozen

    def leased(self, number: int) -> tuple[Region, Lease] | None:
        """Return a region that the caller holds, and its lease; None if it holds no such region."""
        with self._lock:
            region = self._regions.get(number)
            return None if region is None or region.lease is None else (region, region.lease)

    def show(self, content: bytes) -> Region | None:
        """Create a region that begins with `content`; None if there is no room."""
        with self._lock:
            return self._new(block_bytes(len(content)), content)

    def trim(self, idle_seconds: float) -> None:
        """Drop the regions that were unused for `idle_seconds`."""
        with self._lock:
            oldest = time.monotonic() - idle_seconds
            # Unmapped when the function returns, without the lock: CUDA waits for the device before it unregisters
            # memory.
            dropped = [region for region in self._idle() if region.idle_since < oldest]
            for region in dropped:
                self._drop(region)

    def freeze(self) -> None:
        """Lease no more regions: a lost device may still write to regions of failed calls."""
        with self._lock:
            self._is_frozen = True

    def close(self, *, has_left: bool = True) -> None:
        """Free all memory; if the caller has not left, it keeps the content of the replies that it has leased."""
        with self._lock:
            self._is_closed = True
            for region in self._regions.values():
                # End leases before the memory turns to zeros, for readers that check afterwards whether their data was
                # intact. This also breaks the reference cycle, so that memory is unmapped without the garbage
                # collector.
                lease, region.lease = region.lease, None
                if has_left or lease is None or lease.is_upload:
                    region.free()
            for lease in self._leases.values():
                lease.regions.clear()
            self._regions.clear()
            self._leases.clear()
            self._reserved.release()

    def send(self, packet: Packet, descriptors: Collection[int] = ()) -> bool:
        """Send a packet; False if the caller's buffer is full or it has disconnected."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            self._link.sendmsg([packet.pack()], rights)
        except OSError:
            return False
        return True

    def _take(self, lease: Lease, length: int) -> Region | None:
        if self._is_closed or self._is_frozen or not 0 < length <= self._max_bytes:
            return None
        size = block_bytes(length)
        fitting = [
            region for region in self._regions.values() if region.lease is None and size <= region.size <= 2 * size
        ]
        # Take the most recently used of equal sizes, which may still be in the processor's caches.
        region = min(fitting, key=lambda each: (each.size, -each.idle_since)) if fitting else self._new(size)
        if region is not None:
            region.lease = lease
            lease.regions.append(region)
        return region

    def _idle(self) -> list[Region]:
        """Return the regions without a lease, the longest idle first."""
        idle = [region for region in self._regions.values() if region.lease is None]
        return sorted(idle, key=lambda region: region.idle_since)

    def _new(self, size: int, content: bytes = b"") -> Region | None:
        idle = self._idle()
        while not self._count(size):
            if not idle or not self._drop(idle.pop(0)):
                return None
        region = self._sent(size, content)
        if region is None:
            self._reserved.resize(self._reserved.amount - size)
            return None
        self._regions[region.number] = region
        return region

    def _count(self, size: int) -> bool:
        """Reserve the bytes of another region; False if a limit is reached."""
        wanted = self._reserved.amount + size
        if self._is_closed or len(self._regions) >= _MAX_REGIONS or wanted > self._max_bytes:
            return False
        try:
            self._reserved.resize(wanted)
        except BusyError:
            return False
        return True

    def _sent(self, size: int, content: bytes) -> Region | None:
        """Create a region and send it to the caller; None if either fails."""
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
        self._reserved.resize(self._reserved.amount - region.size)
        return True

    def _recycle(self, lease: Lease) -> None:
        self._leases.pop(lease.number, None)
        for region in lease.regions:
            region.lease, region.idle_since = None, time.monotonic()
        lease.regions.clear()
