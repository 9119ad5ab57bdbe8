"""A store of so many things and bytes: what was used least recently goes first."""

from __future__ import annotations

import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

V = TypeVar("V")


@dataclass
class _Entry(Generic[V]):
    value: V
    nbytes: int
    needs: Collection[str]
    used: float


class LruCache(Generic[V]):
    """Named values and their sizes, in order of last use. Its owner holds a lock around every call.

    A value may need others: those stay, and are counted, as long as it is here. One that is taken out meanwhile cannot
    be had by its name any more, but for a `peek`.
    """

    def __init__(
        self, limit_bytes: int, on_drop: Callable[[str, V, str], None], limit_count: int = sys.maxsize
    ) -> None:
        """`on_drop` hears the name, the value and the reason, "room" or "idle", of what goes by itself."""
        self.limit_bytes = limit_bytes
        self._limit_count = limit_count
        self._on_drop = on_drop
        self._entries: OrderedDict[str, _Entry[V]] = OrderedDict()
        # Taken out, or lent, but needed.
        self._hidden: dict[str, _Entry[V | None]] = {}
        # By name, how many values need it.
        self._needed: Counter[str] = Counter()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """The size of everything here."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        """Whether the name is taken."""
        return name in self._entries or name in self._hidden

    def values(self) -> Iterator[V]:
        """Everything here, the least recently used first."""
        return (entry.value for entry in self._entries.values())

    def items(self) -> Iterator[tuple[str, V]]:
        """The same with its names."""
        return ((name, entry.value) for name, entry in self._entries.items())

    def put(self, name: str, value: V, nbytes: int, needs: Collection[str] = ()) -> None:
        """Store or replace, and make room; the newest stays even if it is larger than all the room."""
        self._needed.update(needs)
        old = self._entries.pop(name, None)
        self._entries[name] = _Entry(value, nbytes, needs, time.monotonic())
        self._bytes += nbytes
        if old is not None:
            self._forget(old)
        while self._bytes > self.limit_bytes or len(self._entries) > self._limit_count:
            dispensable = next((other for other in self._entries if other not in self._needed), name)
            if dispensable == name:
                return
            self._drop(dispensable, "room")

    def lend(self, name: str, nbytes: int) -> None:
        """Count something that the next value to be put needs, and that nobody looks up; once, by its name."""
        if name not in self:
            self._hidden[name] = _Entry(None, nbytes, (), time.monotonic())
            self._bytes += nbytes

    def resize(self, name: str, nbytes: int) -> None:
        """Count what has grown or shrunk; nothing if it is not here."""
        entry = self._entries.get(name)
        if entry is not None:
            self.put(name, entry.value, nbytes, entry.needs)

    def recount(self, name: str, nbytes: int) -> None:
        """Count what has grown or shrunk without making room yet, also what was taken out but is needed."""
        entry: _Entry[Any] | None = self._entries.get(name) or self._hidden.get(name)
        if entry is not None:
            self._bytes += nbytes - entry.nbytes
            entry.nbytes = nbytes

    def get(self, name: str) -> V | None:
        """Look up, which counts as a use."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        entry.used = time.monotonic()
        self._entries.move_to_end(name)
        return entry.value

    def peek(self, name: str) -> V | None:
        """Look up, also what was taken out but is needed; no use."""
        entry: _Entry[Any] | None = self._entries.get(name) or self._hidden.get(name)
        return None if entry is None else entry.value

    def pop(self, name: str) -> V | None:
        """Take out."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return None
        if name in self._needed:
            self._hidden[name] = _Entry(entry.value, entry.nbytes, entry.needs, entry.used)
        else:
            self._forget(entry)
        return entry.value

    def clear(self) -> None:
        """Take out everything."""
        self._entries.clear()
        self._hidden.clear()
        self._needed.clear()
        self._bytes = 0

    def drop_oldest(self, *, keep_newest: bool) -> bool:
        """Drop what was used least recently; False if there is nothing that may go."""
        newest = next(reversed(self._entries), None) if keep_newest else None
        dispensable = next((name for name in self._entries if name not in self._needed and name != newest), None)
        if dispensable is None:
            return False
        self._drop(dispensable, "room")
        return True

    def drop_idle(self, seconds: float) -> None:
        """Drop what was not used for so long."""
        oldest = time.monotonic() - seconds
        while self._entries:
            name, entry = next(iter(self._entries.items()))
            if entry.used >= oldest:
                return
            self._drop(name, "idle")

    def _drop(self, name: str, reason: str) -> None:
        entry = self._entries.pop(name)
        self._forget(entry)
        self._on_drop(name, entry.value, reason)

    def _forget(self, entry: _Entry[Any]) -> None:
        """Count out what has gone, and what only it needed."""
        self._bytes -= entry.nbytes
        for name in entry.needs:
            self._needed[name] -= 1
            if not self._needed[name]:
                del self._needed[name]
                hidden = self._hidden.pop(name, None)
                if hidden is not None:
                    self._forget(hidden)
