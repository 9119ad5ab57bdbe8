"""The heaps of the C library, which give free memory back to the system by themselves only from their ends."""

from __future__ import annotations

import ctypes
import time

_SECONDS = 60.0


class Heap:
    """Gives free memory back once in a while: between what lives on, it would add up over hours."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        """`seconds` lie between two times."""
        # glibc alone has it.
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._seconds = seconds
        self._trimmed = time.monotonic()

    def tidy(self) -> None:
        """Look whether it is time; call it about once a second."""
        if self._trim is not None and time.monotonic() - self._trimmed >= self._seconds:
            self._trim(ctypes.c_size_t(0))
            self._trimmed = time.monotonic()
