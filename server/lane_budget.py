"""How much shared memory there may be, for whom."""

from __future__ import annotations

import threading
from collections import Counter


class LaneBudget:
    """Counts the bytes of all lanes. One lane has at most half, and so has one tenant where tenants are told apart."""

    def __init__(self, limit_bytes: int, *, has_tenants: bool) -> None:
        self.lane_bytes = limit_bytes // 2
        self._limit_bytes = limit_bytes
        self._tenant_bytes = limit_bytes // 2 if has_tenants else limit_bytes
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()

    @property
    def bytes(self) -> int:
        """Of all lanes."""
        return self._taken.total()

    def take(self, tenant: str, nbytes: int) -> bool:
        """Count bytes, if there are as many left for a tenant."""
        with self._lock:
            mine = self._taken[tenant] + nbytes
            if mine > self._tenant_bytes or self._taken.total() + nbytes > self._limit_bytes:
                return False
            self._taken[tenant] = mine
            return True

    def give(self, tenant: str, nbytes: int) -> None:
        """Count them no more."""
        with self._lock:
            self._taken[tenant] -= nbytes
