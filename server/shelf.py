"""A store with a byte budget: what was used least recently goes first."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

V = TypeVar("V")


class Shelf(Generic[V]):
    """Named values and their sizes, in order of last use. Its owner holds a lock around every call."""

    def __init__(self, limit_bytes: int, on_drop: Callable[[str, V, str], None]) -> None:
        """`on_drop` hears the name, the value and the reason, "room" or "idle", of what goes by itself."""
        self.limit_bytes = limit_bytes
        self._on_drop = on_drop
        self._entries: OrderedDict[str, tuple[V, int, float]] = OrderedDict()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """The size of everything here."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def values(self) -> Iterator[V]:
        """Everything here, the least recently used first."""
        return (value for value, _, _ in self._entries.values())

    def put(self, name: str, value: V, nbytes: int) -> None:
        """Store or replace, and make room; the newest stays even if it is larger than the budget."""
        self.pop(name)
        self._entries[name] = (value, nbytes, time.monotonic())
        self._bytes += nbytes
        while self._bytes > self.limit_bytes and len(self._entries) > 1:
            self._drop(next(iter(self._entries)), "room")

    def resize(self, name: str, nbytes: int) -> None:
        """Count what has grown or shrunk; nothing if it is not here."""
        value = self.get(name)
        if value is not None:
            self.put(name, value, nbytes)

    def get(self, name: str) -> V | None:
        """Look up, which counts as a use."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        value, nbytes, _ = entry
        self._entries[name] = (value, nbytes, time.monotonic())
        self._entries.move_to_end(name)
        return value

    def pop(self, name: str) -> V | None:
        """Take out."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return None
        self._bytes -= entry[1]
        return entry[0]

    def drop_idle(self, seconds: float) -> None:
        """Drop what was not used for so long."""
        oldest = time.monotonic() - seconds
        while self._entries:
            name, (_, _, used) = next(iter(self._entries.items()))
            if used >= oldest:
                return
            self._drop(name, "idle")

    def _drop(self, name: str, reason: str) -> None:
        value, nbytes, _ = self._entries.pop(name)
        self._bytes -= nbytes
        self._on_drop(name, value, reason)
