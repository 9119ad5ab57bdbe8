"""Room that the stores of all tenants share."""

from __future__ import annotations

import threading
from typing import Protocol


class Store(Protocol):
    """What takes the room."""

    @property
    def bytes(self) -> int:
        """How much it takes."""

    def drop_oldest(self, *, keep_newest: bool) -> bool:
        """Drop what was used least recently; False if there is nothing that may go."""


class Budget:
    """A number of bytes for several stores together, each of which has a limit of its own."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._stores: tuple[Store, ...] = ()
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """What all stores take."""
        return sum(store.bytes for store in self._stores)

    @property
    def is_exceeded(self) -> bool:
        """Whether the stores take more, all of which they need."""
        return self.bytes > self._limit_bytes

    def join(self, store: Store) -> None:
        """Count a store from now on."""
        with self._lock:
            self._stores = (*self._stores, store)

    def drop(self, nbytes: int) -> None:
        """Drop so many bytes or all that may go: whoever has most gives first, of that what was used least recently.

        The stores' own locks must be free.
        """
        target = self.bytes - nbytes
        while self.bytes > max(0, target) and self._drop_one(None):
            pass

    def settle(self, grown: Store) -> None:
        """Make room after a store has grown: whoever has most gives first, but not what has just been stored.

        The stores' own locks must be free.
        """
        while self.is_exceeded and self._drop_one(grown):
            pass

    def _drop_one(self, grown: Store | None) -> bool:
        largest_first = sorted(self._stores, key=lambda store: store.bytes, reverse=True)
        return any(store.drop_oldest(keep_newest=store is grown) for store in largest_first)
