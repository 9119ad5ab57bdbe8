"""Memory for large payloads: what the arrays of one have no use for any more serves for the next."""

from __future__ import annotations

import weakref

import numpy as np
import numpy.typing as npt

from lumigrad.protos.chunks import allocate_bytes

_Bytes = npt.NDArray[np.uint8]

_KEPT = 2


class PayloadBuffers:
    """Lends buffers. Fresh memory, which the system clears page by page, takes up to a third of the time to receive.

    The borrower has to fill all of it, because its contents are undefined. Safe to use from several threads.
    """

    def __init__(self, least_bytes: int, most_bytes: int) -> None:
        """Two buffers of such sizes, the limits included, wait to be lent again; others are always fresh."""
        self._least_bytes = least_bytes
        self._most_bytes = most_bytes
        # By their ids, the oldest first. Single operations on it are safe wherever the last view of a loan dies.
        self._waiting: dict[int, _Bytes] = {}

    def lend(self, length: int) -> memoryview:
        """A buffer, which comes back when nothing views it any more."""
        if not self._least_bytes <= length <= self._most_bytes:
            return allocate_bytes(length)
        memory = self._take(length)
        if memory is None:
            memory = np.empty(length, np.uint8)
        lent = memory.view(_Lent)
        weakref.finalize(lent, self._take_back, memory).atexit = False
        return lent.data

    def _take(self, length: int) -> _Bytes | None:
        """One of just this length: payloads that come again and again are of a size."""
        for key, memory in list(self._waiting.items()):
            if memory.nbytes == length and self._waiting.pop(key, None) is not None:
                return memory
        return None

    def _take_back(self, memory: _Bytes) -> None:
        self._waiting[id(memory)] = memory
        for key in list(self._waiting)[:-_KEPT]:
            self._waiting.pop(key, None)


class _Lent(np.ndarray):
    """What all views of a loan keep alive."""
