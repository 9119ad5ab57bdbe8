"""Memory that the worker and one caller both see."""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from typing import TYPE_CHECKING

import numpy as np

from lumigrad.protos.dtypes import Array

if TYPE_CHECKING:
    from lumigrad.server.lane import Lease

# Nobody can change its size: memory that vanishes would end whoever touches it.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_LEAST_BYTES = 64 << 10


def region_bytes(length: int) -> int:
    """The size of a region for so many bytes: one of eight between powers of two, so that regions serve again."""
    step = max(_LEAST_BYTES, 1 << max(0, (length - 1).bit_length() - 4))
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
