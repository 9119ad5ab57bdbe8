"""The store of forward states, which Backward calls refer to."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Collection
from typing import TypeVar

from lumigrad.server.core.errors import ContextLostError
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.device.memory import Budget
from lumigrad.server.engines.base import Sized
from lumigrad.server.storage.lru import LruStore

V = TypeVar("V")

# Memory of a state besides its tensors: measured as 6 to 8 KiB for each of 3,000 states of one pixel.
OVERHEAD_BYTES = 8 << 10


class ContextStore(LruStore[V]):
    """A tenant's forward states by unguessable name, bounded by its own limit, the shared budget and an idle time."""

    def __init__(
        self,
        limit_bytes: int,
        idle_seconds: float,
        budget: Budget,
        metrics: Metrics,
        limit_count: int = sys.maxsize,
    ) -> None:
        self._idle_seconds = idle_seconds
        self._metrics = metrics
        super().__init__(limit_bytes, limit_count, budget)

    def add(self, state: V, nbytes: int, shared: Collection[Sized] = ()) -> str:
        """Store a state; returns its name, or "" if it does not fit.

        Parts in `shared` are counted once for all states that use them.
        """
        if nbytes > self._cache.limit_bytes:
            self._metrics.evictions.labels("contexts", "size").inc()
            return ""
        context_id = uuid.uuid4().hex
        # The states keep the parts alive, so that no id is reused.
        parts = {f"part-{id(part):x}": part.bytes for part in shared}
        with self._lock:
            for name, size in parts.items():
                self._cache.lend(name, size)
            self._cache.put(context_id, state, nbytes + OVERHEAD_BYTES, tuple(parts))
        if not self._budget.enforce(self):
            self._metrics.evictions.labels("contexts", "size").inc()
            self.release(context_id)
            return ""
        return context_id

    def peek(self, context_id: str) -> V:
        """Return a state for inspection, without counting a lookup; raises ContextLostError if it is not stored."""
        state = self.look(context_id)
        if state is None:
            self._metrics.context_lookups.labels("lost").inc()
            raise ContextLostError(context_id)
        return state

    def find(self, context_id: str) -> V:
        """Return a state for use; raises ContextLostError if it is not stored."""
        state = self.peek(context_id)
        self.count_found()
        return state

    def look(self, context_id: str) -> V | None:
        """Return a state for use, without counting a lookup; None if it is not stored."""
        with self._lock:
            return self._cache.get(context_id)

    def count_found(self) -> None:
        """Count the lookup of a state that was used."""
        self._metrics.context_lookups.labels("found").inc()

    def resize(self, context_id: str, nbytes: int) -> None:
        """Count the new size of a state that a backward pass has enlarged; does nothing if it is not stored."""
        with self._lock:
            self._cache.resize(context_id, nbytes + OVERHEAD_BYTES)
        self._budget.enforce(self)

    def release(self, context_id: str) -> bool:
        """Remove a state; False if it was not stored."""
        with self._lock:
            return self._cache.pop(context_id) is not None

    def expire(self) -> None:
        """Evict states that were idle for too long."""
        with self._lock:
            self._cache.drop_idle(self._idle_seconds)

    def _dropped(self, _: str, __: V, reason: str) -> None:
        self._metrics.evictions.labels("contexts", reason).inc()
