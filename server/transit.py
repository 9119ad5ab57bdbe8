"""Memory for the payloads of calls in progress, requests and replies, within one budget."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lumigrad.server.call import Call
from lumigrad.server.errors import BusyError

_RETRY_SECONDS = 0.5


class Transit:
    """Counts payload bytes from the time they are certain to come until their call ends."""

    def __init__(self, limit_bytes: int, allocate: Callable[[int], memoryview]) -> None:
        self._limit_bytes = limit_bytes
        self._allocate = allocate
        self._lock = threading.Lock()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """What is reserved now."""
        return self._bytes

    def reserve(self, nbytes: int, call: Call) -> None:
        """Count a call's bytes until it ends; refuse them if others take the room."""
        with self._lock:
            if self._bytes + nbytes > self._limit_bytes:
                taken = f"payloads of calls in progress take {self._bytes} of {self._limit_bytes} bytes"
                raise BusyError(taken, _RETRY_SECONDS)
            self._bytes += nbytes
        call.on_end(lambda: self._release(nbytes))

    def allocator(self, call: Call) -> Callable[[int], memoryview]:
        """What gives a call a buffer for its upload."""

        def allocate(length: int) -> memoryview:
            self.reserve(length, call)
            return self._allocate(length)

        return allocate

    def _release(self, nbytes: int) -> None:
        with self._lock:
            self._bytes -= nbytes
