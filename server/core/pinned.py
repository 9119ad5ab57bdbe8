"""Host memory that is registered with CUDA ("pinned"): a GPU copies to and from it without the help of a processor."""

from __future__ import annotations

import mmap
import threading
import time
import weakref
from collections import deque
from typing import Protocol

import numpy as np

from lumigrad.protos.dtypes import Array

_LEAST_BYTES = 64 << 10
_IDLE_SECONDS = 10.0


def block_bytes(length: int) -> int:
    """Return the block size for `length` bytes: one of eight sizes per power of two, so that blocks can be reused."""
    step = max(_LEAST_BYTES, 1 << max(0, (length - 1).bit_length() - 4))
    return -(-length // step) * step


class Pinner(Protocol):
    """Registers host memory with CUDA."""

    def pin(self, memory: Array) -> bool:
        """Register a uint8 array that begins at a page boundary; returns False if CUDA refuses."""

    def unpin(self, address: int) -> None:
        """Undo `pin` for the memory at an address, after all copies that use it."""


class PinnableMap(mmap.mmap):
    """A mapping that can be registered with CUDA until nothing refers to it any more."""

    _pinned: tuple[Pinner, int] | None = None
    _was_refused = False

    def pin(self, pinner: Pinner) -> bool:
        """Register the mapping, unless it is registered; returns False if CUDA refuses or has refused before."""
        if self._pinned is None and not self._was_refused:
            memory = np.frombuffer(self, np.uint8)
            self._was_refused = not pinner.pin(memory)
            self._pinned = None if self._was_refused else (pinner, memory.ctypes.data)
        return self._pinned is not None

    def __del__(self) -> None:
        # CUDA must unregister the memory before the mapping ends, whose last reference may be an array of a reply.
        if self._pinned is not None:
            pinner, address = self._pinned
            pinner.unpin(address)


class PinnedPool:
    """Lends pinned memory. Returned blocks are lent again, or freed after ten seconds or when the limit is reached.

    Thread-safe.
    """

    def __init__(self, pinner: Pinner, limit_bytes: int) -> None:
        """Pin at most `limit_bytes`; beyond that, or if CUDA refuses, ordinary memory is lent."""
        self._pinner = pinner
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._bytes = 0
        # Unused blocks with the time of their return, the oldest first.
        self._idle: list[tuple[PinnableMap, float]] = []
        # Appended to in whichever thread the last view of a loan dies, perhaps one that holds the lock.
        self._returned: deque[PinnableMap] = deque()

    @property
    def bytes(self) -> int:
        """The bytes that are pinned, lent or not."""
        return self._bytes

    def lend(self, length: int) -> memoryview:
        """Lend memory of undefined content; it comes back when its last view dies."""
        size = block_bytes(max(1, length))
        with self._lock:
            block = self._reused(size)
            dropped = self._make_room(size) if block is None else None
        if dropped is not None:
            # Not under the lock, for which others wait: CUDA waits for the device before it unregisters memory.
            dropped.clear()
            block = self._pinned(size)
        if block is None:
            return np.empty(length, np.uint8).data
        # The finalizer is on the mapping itself: the base of arrays on an array's view may be that array.
        lent = _Lent(len(block), np.uint8, block)
        weakref.finalize(lent, self._returned.append, block).atexit = False
        view: memoryview = lent.data
        return view[:length]

    def trim(self, idle_seconds: float = _IDLE_SECONDS) -> None:
        """Free memory that has been unused for `idle_seconds`."""
        dropped = []
        with self._lock:
            self._take_back()
            oldest = time.monotonic() - idle_seconds
            while self._idle and self._idle[0][1] <= oldest:
                dropped.append(self._drop_oldest())
        # Freed here, without the lock; see `lend`.
        del dropped

    def _reused(self, size: int) -> PinnableMap | None:
        self._take_back()
        fitting = [entry for entry in self._idle if size <= len(entry[0]) <= 2 * size]
        if not fitting:
            return None
        # Take the most recently used of equal sizes, which may still be in the processor's caches.
        entry = min(reversed(fitting), key=lambda entry: len(entry[0]))
        self._idle = [other for other in self._idle if other is not entry]
        return entry[0]

    def _make_room(self, size: int) -> list[PinnableMap] | None:
        """Count a new block; returns the idle blocks it displaces, to free without the lock. None if it cannot fit."""
        idle = sum(len(block) for block, _ in self._idle)
        if self._bytes - idle + size > self._limit_bytes:
            return None
        dropped = []
        while self._bytes + size > self._limit_bytes:
            dropped.append(self._drop_oldest())
        self._bytes += size
        return dropped

    def _pinned(self, size: int) -> PinnableMap | None:
        """Create a block that was counted. If there is no memory or CUDA refuses, uncounts it and returns None."""
        block = None
        try:
            mapping = PinnableMap(-1, size, mmap.MAP_PRIVATE)
            if mapping.pin(self._pinner):
                block = mapping
        except OSError:
            pass
        finally:
            if block is None:
                with self._lock:
                    self._bytes -= size
        return block

    def _take_back(self) -> None:
        while self._returned:
            self._idle.append((self._returned.popleft(), time.monotonic()))

    def _drop_oldest(self) -> PinnableMap:
        block, _ = self._idle.pop(0)
        self._bytes -= len(block)
        return block


class _Lent(np.ndarray):
    """The array that all views of a loan keep alive."""
