"""Memory for large payloads, reused once nothing views the arrays of an earlier payload."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lumigrad.protos.chunks import allocate_bytes
from lumigrad.protos.finalizers import finalize

_Bytes = npt.NDArray[np.uint8]

_KEPT = 2
# glibc returns the free end of a heap to the system when it exceeds a threshold: twice the size of the largest block,
# of at most 32 MiB, that was mapped on its own and freed so far (mallopt(3), M_MMAP_THRESHOLD).
_LARGEST_COUNTED_BYTES = (32 << 20) - (64 << 10)


class PayloadBuffers:
    """Lends buffers. Fresh memory, which the system clears page by page, takes up to a third of the time to receive.

    The borrower must fill the whole buffer, because its contents are undefined. Safe to use from several threads.
    """

    def __init__(self, least_bytes: int, most_bytes: int) -> None:
        """Keep up to two returned buffers of these sizes, limits included, to lend again; others are always fresh."""
        self._least_bytes = least_bytes
        self._most_bytes = most_bytes
        # Loans by id, oldest first. Single operations on the dict are safe wherever the last view of a loan dies.
        self._waiting: dict[int, _Bytes] = {}
        keep_free_memory()

    def lend(self, length: int) -> memoryview:
        """Lend a buffer, which comes back when nothing views it any more."""
        if not self._least_bytes <= length <= self._most_bytes:
            return allocate_bytes(length)
        memory = self._take(length)
        if memory is None:
            memory = np.empty(length, np.uint8)
        lent = memory.view(_Lent)
        finalize(lent, self._take_back, memory)
        return lent.data

    def _take(self, length: int) -> _Bytes | None:
        """Take a returned buffer of exactly this length; recurring payloads have the same size."""
        for key, memory in list(self._waiting.items()):
            if memory.nbytes == length and self._waiting.pop(key, None) is not None:
                return memory
        return None

    def _take_back(self, memory: _Bytes) -> None:
        self._waiting[id(memory)] = memory
        for key in list(self._waiting)[:-_KEPT]:
            self._waiting.pop(key, None)


class _Lent(np.ndarray):
    """Memory that all views of a loan keep alive."""


def keep_free_memory() -> None:
    """Have the C library keep the memory of gRPC's messages for the next ones, up to 64 MiB per heap.

    It would otherwise return it after each few messages, and the system would clear it page by page for the next.
    """
    # Nothing touches the block, so the system provides no memory for it.
    np.empty(_LARGEST_COUNTED_BYTES, np.uint8)
