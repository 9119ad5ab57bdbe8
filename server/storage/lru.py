"""An LRU cache, bounded by a count and by bytes."""

from __future__ import annotations

import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lumigrad.kernels._native import ChangeCount
from lumigrad.server.device.memory import Budget

V = TypeVar("V")


@dataclass
class _Entry(Generic[V]):
    value: V
    nbytes: int
    needs: Collection[str]
    used: float
    is_held: bool = False


class LruCache(Generic[V]):
    """Named values and their sizes, in order of last use. Not thread-safe: the owner holds a lock around every call.

    A value may need other values, which are kept and counted as long as it is stored. A needed value that is popped
    becomes hidden: only `peek` still finds it. A held value is not evicted.
    """

    def __init__(
        self,
        limit_bytes: int,
        on_drop: Callable[[str, V, str], None],
        limit_count: int = sys.maxsize,
        on_bytes: Callable[[int], None] = lambda change: None,
    ) -> None:
        """`on_drop` is called with the name, the value and the reason, "room" or "idle", of each eviction.

        `on_bytes` is called with each change of `bytes`.
        """
        self.limit_bytes = limit_bytes
        # How often a value was stored, replaced or removed. While this is unchanged, earlier lookups are still current.
        self.changes = ChangeCount()
        self._limit_count = limit_count
        self._on_drop = on_drop
        self._on_bytes = on_bytes
        self._entries: OrderedDict[str, _Entry[V]] = OrderedDict()
        # Values that were popped but are still needed, and sizes added by `lend`.
        self._hidden: dict[str, _Entry[V | None]] = {}
        # Number of values that need each name.
        self._needed: Counter[str] = Counter()
        self._bytes = 0
        self._held_bytes = self._held_count = 0

    @property
    def bytes(self) -> int:
        """The size of all values."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        """Return whether the name is in use, hidden values included."""
        return name in self._entries or name in self._hidden

    def values(self) -> Iterator[V]:
        """Return the values, the least recently used first."""
        return (entry.value for entry in self._entries.values())

    def names(self) -> Iterator[str]:
        """Return the names of the values, the least recently used first."""
        return iter(self._entries)

    def put(self, name: str, value: V, nbytes: int, needs: Collection[str] = ()) -> None:
        """Store or replace a value and evict others; the new value stays even if it exceeds the limit alone."""
        self.changes.add()
        self._needed.update(needs)
        old = self._entries.pop(name, None)
        self._entries[name] = _Entry(value, nbytes, needs, time.monotonic())
        self._count_bytes(nbytes)
        if old is not None:
            self._forget(old)
        self.trim()

    def trim(self) -> None:
        """Evict values down to the limits, except the newest."""
        while self._bytes > self.limit_bytes or len(self._entries) > self._limit_count:
            if not self.drop_oldest(keep_newest=True):
                return

    def hold(self, name: str) -> None:
        """Protect a stored value from eviction until `let_go`; a value that replaces it must be held again."""
        entry = self._entries[name]
        if not entry.is_held:
            entry.is_held = True
            self._count_held(entry, 1)

    def let_go(self, name: str) -> None:
        """Allow a value to be evicted; does nothing if it is not held."""
        entry = self._entries.get(name)
        if entry is not None and entry.is_held:
            self._count_held(entry, -1)
            entry.is_held = False

    @property
    def is_held(self) -> bool:
        """Whether values are held."""
        return self._held_count > 0

    def has_room(self, nbytes: int, count: int) -> bool:
        """Return whether `nbytes` and `count` more values fit besides the held values."""
        return self._held_bytes + nbytes <= self.limit_bytes and self._held_count + count <= self._limit_count

    def lend(self, name: str, nbytes: int) -> None:
        """Count a part that the next value needs, once per name; the part itself is not stored."""
        if name not in self:
            self._hidden[name] = _Entry(None, nbytes, (), time.monotonic())
            self._count_bytes(nbytes)

    def resize(self, name: str, nbytes: int) -> None:
        """Change the size of a value and evict others; does nothing if it is not stored."""
        entry = self._entries.get(name)
        if entry is not None:
            self.put(name, entry.value, nbytes, entry.needs)

    def recount(self, name: str, nbytes: int) -> None:
        """Change the size of a value, even a hidden one, without evicting others."""
        entry: _Entry[Any] | None = self._entries.get(name) or self._hidden.get(name)
        if entry is not None:
            self._count_bytes(nbytes - entry.nbytes)
            self._held_bytes += (nbytes - entry.nbytes) * entry.is_held
            entry.nbytes = nbytes

    def get(self, name: str) -> V | None:
        """Look up a value and mark it as used."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        entry.used = time.monotonic()
        self._entries.move_to_end(name)
        return entry.value

    def drop_next(self, name: str) -> None:
        """Make a value the first to be evicted, until it is used again; does nothing if it is not stored."""
        if name in self._entries:
            self._entries.move_to_end(name, last=False)

    def peek(self, name: str) -> V | None:
        """Look up a value, even a hidden one, without marking it as used."""
        entry: _Entry[Any] | None = self._entries.get(name) or self._hidden.get(name)
        return None if entry is None else entry.value

    def pop(self, name: str) -> V | None:
        """Remove and return a value."""
        self.let_go(name)
        entry = self._entries.pop(name, None)
        if entry is None:
            return None
        self.changes.add()
        if name in self._needed:
            self._hidden[name] = _Entry(entry.value, entry.nbytes, entry.needs, entry.used)
        else:
            self._forget(entry)
        return entry.value

    def clear(self) -> None:
        """Remove every value."""
        self.changes.add()
        self._entries.clear()
        self._hidden.clear()
        self._needed.clear()
        self._count_bytes(-self._bytes)
        self._held_bytes = self._held_count = 0

    def drop_oldest(self, *, keep_newest: bool) -> bool:
        """Evict the least recently used value; False if none may be evicted."""
        newest = next(reversed(self._entries), None) if keep_newest else None
        for name, entry in self._entries.items():
            if name not in self._needed and name != newest and not entry.is_held:
                self._drop(name, "room")
                return True
        return False

    def drop_idle(self, seconds: float) -> None:
        """Evict the values that were not used for `seconds`."""
        oldest = time.monotonic() - seconds
        while self._entries:
            name, entry = next(iter(self._entries.items()))
            if entry.used >= oldest:
                return
            self._drop(name, "idle")

    def _drop(self, name: str, reason: str) -> None:
        entry = self._entries.pop(name)
        self.changes.add()
        self._forget(entry)
        self._on_drop(name, entry.value, reason)

    def _forget(self, entry: _Entry[Any]) -> None:
        """Subtract the size of a removed value, and of hidden values that only it needed."""
        self._count_bytes(-entry.nbytes)
        if entry.is_held:
            self._count_held(entry, -1)
        for name in entry.needs:
            self._needed[name] -= 1
            if not self._needed[name]:
                del self._needed[name]
                hidden = self._hidden.pop(name, None)
                if hidden is not None:
                    self._forget(hidden)

    def _count_bytes(self, change: int) -> None:
        self._bytes += change
        self._on_bytes(change)

    def _count_held(self, entry: _Entry[Any], count: int) -> None:
        self._held_count += count
        self._held_bytes += count * entry.nbytes


class LruStore(ABC, Generic[V]):
    """A cache of one tenant with its own lock, which also counts towards the budget of all tenants.

    Attributes:
        spare: Another cache of the tenant, which makes room for this one.
    """

    spare: LruStore[Any] | None = None

    def __init__(self, limit_bytes: int, limit_count: int, budget: Budget) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self._cache: LruCache[V] = LruCache(limit_bytes, self._dropped, limit_count, budget.change)
        budget.join(self)

    def __len__(self) -> int:
        return len(self._cache)

    @property
    def count(self) -> int:
        """The number of values that count towards the budget."""
        return len(self._cache)

    @property
    def bytes(self) -> int:
        """The size of all values."""
        return self._cache.bytes

    @property
    def limit_bytes(self) -> int:
        """The bytes that the tenant may use in this cache and its spare together."""
        return self._cache.limit_bytes

    @property
    def changes(self) -> ChangeCount:
        """How often a value was stored, replaced or removed."""
        return self._cache.changes

    @property
    def is_held(self) -> bool:
        """Whether there are values that cannot be evicted now but soon can be."""
        return self._cache.is_held

    def drop_oldest(self, *, keep_newest: bool) -> bool:
        """Evict the least recently used value; False if none may be evicted."""
        with self._lock:
            return self._cache.drop_oldest(keep_newest=keep_newest)

    def clear(self) -> None:
        """Remove every value."""
        with self._lock:
            self._cache.clear()

    @abstractmethod
    def _dropped(self, name: str, value: V, reason: str) -> None:
        """Record an evicted value; `reason` is "room" or "idle". The lock is held."""
