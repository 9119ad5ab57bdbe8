"""Admission: limits the calls, and the bytes of payloads, in progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from lumigrad.server.core.accounts import Account
from lumigrad.server.core.call import Call

# 1 / this of the places is reserved for tenants that have none.
_RESERVED = 8


class Places:
    """Counts the places that each tenant has taken; some are reserved for tenants that have none.

    Not thread-safe: the owner holds a lock around every call.
    """

    def __init__(self, size: int, *, has_tenants: bool) -> None:
        """`has_tenants` False: no places are reserved."""
        self._size = size
        self._reserved = max(1, size // _RESERVED) if has_tenants else 0
        self._taken: Counter[str] = Counter()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def why_none(self) -> str:
        """Why a place was refused, for an error text, after the number of places."""
        return "as many as may" if self._count >= self._size else "and the last places are for those who have none"

    def take(self, tenant: str) -> bool:
        """Take a place for a tenant; False if there is none."""
        own = self._taken[tenant]
        if self._count >= self._size - (self._reserved if own else 0):
            return False
        self._taken[tenant] = own + 1
        self._count += 1
        return True

    def give(self, tenant: str) -> None:
        """Release a tenant's place."""
        self._count -= 1
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]

    def clear(self) -> None:
        """Release all places."""
        self._taken.clear()
        self._count = 0


class Transit:
    """Counts the payload bytes of calls, from their announcement until the call ends."""

    def __init__(self, account: Account, allocate: Callable[[int], memoryview]) -> None:
        self.account = account
        self._allocate = allocate

    @property
    def bytes(self) -> int:
        """The bytes reserved now."""
        return self.account.taken

    def reserve(self, nbytes: int, call: Call) -> None:
        """Reserve bytes until a call ends; BusyError if too few are left."""
        call.on_end(self.account.reserve(call.tenant, nbytes).release)

    def allocator(self, call: Call) -> Callable[[int], memoryview]:
        """A function that reserves and allocates buffers for a call's upload."""

        def allocate(length: int) -> memoryview:
            self.reserve(length, call)
            return self._allocate(length)

        return allocate
