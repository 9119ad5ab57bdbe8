"""Accounts of the resources that tenants share: the total limit, each tenant's share, and what each has reserved.

A resource is reserved before it is allocated, and released when the call or object that uses it ends.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import BusyError


class Account:
    """The amount of one resource that each tenant has reserved, and the limits on it."""

    def __init__(
        self,
        resource: str,
        limit: int,
        option: str,
        *,
        share: int | None = None,
        share_option: str = "",
        retry_seconds: float = 0.5,
    ) -> None:
        """Create an account with nothing reserved.

        Args:
            resource: What is counted, as error texts show it after a number: "bytes of payloads in progress".
            limit: The most that all tenants together may reserve.
            option: The option of `lumigrad serve` that sets `limit`.
            share: The most that one tenant may reserve; None: `limit`.
            share_option: The option that sets `share`, if it is less than `limit`.
            retry_seconds: When a caller that was refused should retry.
        """
        self.resource = resource
        self.limit = limit
        self.share = limit if share is None else min(share, limit)
        self._option = option
        self._share_option = share_option if self.share < limit else option
        self._retry_seconds = retry_seconds
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()
        self._total = 0

    @property
    def taken(self) -> int:
        """The amount that all tenants have reserved."""
        return self._total

    def lacking(self, tenant: str, more: int) -> int:
        """The amount that must be released before a tenant can reserve `more`; 0: none."""
        with self._lock:
            return max(0, self._taken[tenant] + more - self.share, self._total + more - self.limit)

    def reserve(self, tenant: str, amount: int) -> Reservation:
        """Reserve an amount; BusyError, which names the limit and its option, if too little is left."""
        reservation = Reservation(self, tenant)
        reservation.resize(amount)
        return reservation

    def tenants(self) -> dict[str, int]:
        """The amount that each tenant has reserved, without tenants that have none."""
        with self._lock:
            return dict(self._taken)

    def check(self, amount: int) -> None:
        """Raise BusyError without a retry time if `amount` is more than any tenant may ever reserve."""
        if amount > self.share:
            what = f"{amount} {self.resource} are needed, of which there are {self.share} at the most"
            raise BusyError(f"{what} ({self._share_option})", None)

    def _change(self, tenant: str, old: int, new: int) -> None:
        with self._lock:
            if new > old:
                self.check(new)
                self._check_free(tenant, new - old)
            self._total += new - old
            self._taken[tenant] += new - old
            if not self._taken[tenant]:
                del self._taken[tenant]

    def _check_free(self, tenant: str, more: int) -> None:
        own = self._taken[tenant]
        if self.share < self.limit and own + more > self.share:
            what = f"you have {own} of {self.share} {self.resource} ({self._share_option}), and asked for {more} more"
            raise BusyError(what, self._retry_seconds)
        if self._total + more > self.limit:
            taken = f"{self._total} of {self.limit} {self.resource} are taken ({self._option})"
            what = f"{taken}, and {more} more are needed"
            raise BusyError(what, self._retry_seconds)


class Reservation:
    """The amount that one call or object has reserved. Thread-safe; releasing it twice does no harm."""

    def __init__(self, account: Account, tenant: str) -> None:
        """Create an empty reservation; most callers use `Account.reserve`."""
        self._account = account
        self._tenant = tenant
        self._lock = threading.Lock()
        self._amount = 0
        self._is_released = False

    @property
    def amount(self) -> int:
        """The reserved amount."""
        return self._amount

    def resize(self, amount: int) -> None:
        """Change the reserved amount; BusyError, and no change, if too little is left.

        Does nothing once the reservation is released.
        """
        with self._lock:
            if not self._is_released:
                self._account._change(self._tenant, self._amount, amount)
                self._amount = amount

    def release(self) -> None:
        """Release the whole amount."""
        with self._lock:
            if not self._is_released:
                self._account._change(self._tenant, self._amount, 0)
                self._amount = 0
            self._is_released = True


# 1 / this of the slots is reserved for tenants that have none.
_RESERVED = 8


class CallSlots:
    """Counts the slots that each tenant has taken; some are reserved for tenants that have none.

    Not thread-safe: the owner holds a lock around every call.
    """

    def __init__(self, size: int, *, has_tenants: bool) -> None:
        """`has_tenants` False: no slots are reserved."""
        self._size = size
        self._reserved = max(1, size // _RESERVED) if has_tenants else 0
        self._taken: Counter[str] = Counter()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def why_none(self) -> str:
        """Why a slot was refused, for an error text, after the number of slots. One option sets all their numbers."""
        why = "the maximum" if self._count >= self._size else "and the others are kept for tenants without any"
        return f"{why} (--queue-size)"

    def take(self, tenant: str) -> bool:
        """Take a slot for a tenant; False if there is none."""
        own = self._taken[tenant]
        if self._count >= self._size - (self._reserved if own else 0):
            return False
        self._taken[tenant] = own + 1
        self._count += 1
        return True

    def release(self, tenant: str) -> None:
        """Release a tenant's slot."""
        self._count -= 1
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]

    def clear(self) -> None:
        """Release all slots."""
        self._taken.clear()
        self._count = 0


class PayloadMemory:
    """Counts the payload bytes of calls, from their announcement until the call ends."""

    def __init__(self, account: Account, allocate: Callable[[int], memoryview]) -> None:
        self.account = account
        self._allocate = allocate

    def reserve(self, nbytes: int, call: Call) -> None:
        """Reserve bytes until a call ends; BusyError if too few are left."""
        call.on_end(self.account.reserve(call.tenant, nbytes).release)

    def allocator(self, call: Call) -> Callable[[int], memoryview]:
        """A function that reserves and allocates buffers for a call's upload."""

        def allocate(length: int) -> memoryview:
            self.reserve(length, call)
            return self._allocate(length)

        return allocate
