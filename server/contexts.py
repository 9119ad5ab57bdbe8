"""The forward states that wait for their Backward."""

from __future__ import annotations

import threading
import uuid
from typing import Generic, TypeVar

from lumigrad.server.errors import ContextLostError
from lumigrad.server.metrics import Metrics
from lumigrad.server.shelf import Shelf

V = TypeVar("V")


class ContextStore(Generic[V]):
    """Forward states by unguessable name, within a byte budget and a time."""

    def __init__(self, limit_bytes: int, idle_seconds: float, metrics: Metrics) -> None:
        self._idle_seconds = idle_seconds
        self._metrics = metrics
        self._lock = threading.Lock()
        self._shelf: Shelf[V] = Shelf(limit_bytes, self._dropped)

    def __len__(self) -> int:
        return len(self._shelf)

    @property
    def bytes(self) -> int:
        """The size of all states."""
        return self._shelf.bytes

    def add(self, state: V, nbytes: int) -> str:
        """Keep a state; returns its name, or nothing if it alone is more than may be kept."""
        if nbytes > self._shelf.limit_bytes:
            self._metrics.evictions.labels("contexts", "size").inc()
            return ""
        context_id = uuid.uuid4().hex
        with self._lock:
            self._shelf.put(context_id, state, nbytes)
        return context_id

    def find(self, context_id: str) -> V:
        """The state of a name."""
        with self._lock:
            state = self._shelf.get(context_id)
        if state is None:
            raise ContextLostError(context_id)
        return state

    def resize(self, context_id: str, nbytes: int) -> None:
        """Count a state that a backward pass has made larger; no harm if it has gone."""
        with self._lock:
            self._shelf.resize(context_id, nbytes)

    def release(self, context_id: str) -> bool:
        """Forget a state; False if it was not here."""
        with self._lock:
            return self._shelf.pop(context_id) is not None

    def expire(self) -> None:
        """Drop the states that nobody asked for in time."""
        with self._lock:
            self._shelf.drop_idle(self._idle_seconds)

    def _dropped(self, _: str, __: V, reason: str) -> None:
        self._metrics.evictions.labels("contexts", reason).inc()
