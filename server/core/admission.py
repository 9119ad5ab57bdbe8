"""Admission: how many calls, and how many bytes of payloads, are under way at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from lumigrad.server.core.accounts import Account
from lumigrad.server.core.call import Call

# The share of the places that whoever has one already may not take.
_RESERVED = 8


class Places:
    """Counts who has how many. Its owner holds a lock around every call.

    However many places one tenant asks for, some stay for those who have none.
    """

    def __init__(self, size: int, *, has_tenants: bool) -> None:
        """Without tenants all places are everybody's."""
        self._size = size
        self._reserved = max(1, size // _RESERVED) if has_tenants else 0
        self._taken: Counter[str] = Counter()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def why_none(self) -> str:
        """What to tell somebody for whom there was no place, after how many there are."""
        return "as many as may" if self._count >= self._size else "and the last places are for those who have none"

    def take(self, tenant: str) -> bool:
        """Take a place; False if there is none for this tenant."""
        own = self._taken[tenant]
        if self._count >= self._size - (self._reserved if own else 0):
            return False
        self._taken[tenant] = own + 1
        self._count += 1
        return True

    def give(self, tenant: str) -> None:
        """Give a place back."""
        self._count -= 1
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]

    def clear(self) -> None:
        """Give all back."""
        self._taken.clear()
        self._count = 0


class Transit:
    """Counts payload bytes from the time they are certain to come until their call ends."""

    def __init__(self, account: Account, allocate: Callable[[int], memoryview]) -> None:
        self.account = account
        self._allocate = allocate

    @property
    def bytes(self) -> int:
        """What is reserved now."""
        return self.account.taken

    def reserve(self, nbytes: int, call: Call) -> None:
        """Count a call's bytes until it ends; BusyError if there is no room for them."""
        call.on_end(self.account.reserve(call.tenant, nbytes).release)

    def allocator(self, call: Call) -> Callable[[int], memoryview]:
        """What gives a call a buffer for its upload."""

        def allocate(length: int) -> memoryview:
            self.reserve(length, call)
            return self._allocate(length)

        return allocate
