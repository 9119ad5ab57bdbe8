"""Forward passes whose backward pass may come, by number: what a compiled function cannot carry itself."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")

# A compiled function may be run forward and never backward; the oldest are forgotten.
_MOST = 16


class Kept(Generic[T]):
    """The newest results, each to be taken once. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: OrderedDict[int, T] = OrderedDict()
        self._next = 0

    def put(self, result: T) -> int:
        """Keeps a result; returns its number, which fits into int32."""
        with self._lock:
            self._next = (self._next + 1) % (1 << 31)
            self._results[self._next] = result
            if len(self._results) > _MOST:
                self._results.popitem(last=False)
            return self._next

    def take(self, number: int) -> T | None:
        """The result of that number; None if it was taken, or forgotten."""
        with self._lock:
            return self._results.pop(number, None)
