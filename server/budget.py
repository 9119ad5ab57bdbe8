"""Room that the stores of all tenants share: bytes, and a number of things."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Protocol


class Store(Protocol):
    """What takes the room."""

    @property
    def bytes(self) -> int:
        """How much it takes."""

    def __len__(self) -> int:
        """How many things are in it."""

    def drop_oldest(self, *, keep_newest: bool) -> bool:
        """Drop what was used least recently; False if there is nothing that may go."""


class Budget:
    """Limits for several stores together, each of which has limits of its own.

    Stores above an even part are evicted first; a store at or below it is never evicted for another.
    """

    def __init__(self, limit_bytes: int, limit_count: int = sys.maxsize, kept_bytes: int = 0) -> None:
        """Of `kept_bytes` each of several stores keeps an even part whatever else needs the memory."""
        self.limit_bytes = limit_bytes
        self.limit_count = limit_count
        self._kept_bytes = kept_bytes
        self._stores: tuple[Store, ...] = ()
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """What all stores take."""
        return sum(store.bytes for store in self._stores)

    @property
    def count(self) -> int:
        """How many things are in all stores."""
        return sum(len(store) for store in self._stores)

    @property
    def is_exceeded(self) -> bool:
        """Whether the stores hold more than the limits."""
        return self.bytes > self.limit_bytes or self.count > self.limit_count

    def join(self, store: Store) -> None:
        """Count a store from now on."""
        with self._lock:
            self._stores = (*self._stores, store)

    def drop(self, nbytes: int) -> None:
        """Drop so many bytes or all that may go: whoever has most gives first, of that what was used least recently.

        The stores' own locks must be free.
        """
        target = max(0, self.bytes - nbytes)
        while self.bytes > target:
            kept = self._kept_bytes if sum(len(store) > 0 for store in self._stores) > 1 else 0
            if not self._drop_one(_bytes_of, kept, None):
                return

    def settle(self, grown: Store) -> bool:
        """Make room after a store has grown, but not of what has just been stored; whether that may stay.

        It may if there is enough room now, or if nobody else has anything. The stores' own locks must be free.
        """
        while self.bytes > self.limit_bytes and self._drop_one(_bytes_of, self.limit_bytes, grown):
            pass
        while self.count > self.limit_count and self._drop_one(len, self.limit_count, grown):
            pass
        return not self.is_exceeded or not any(len(store) for store in self._stores if store is not grown)

    def _drop_one(self, size: Callable[[Store], int], limit: int, grown: Store | None) -> bool:
        stores = [store for store in self._stores if len(store)]
        giving = [store for store in stores if store is grown or size(store) * len(stores) > limit]
        giving.sort(key=size, reverse=True)
        return any(store.drop_oldest(keep_newest=store is grown) for store in giving)


def _bytes_of(store: Store) -> int:
    return store.bytes
