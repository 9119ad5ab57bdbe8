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
        kept: int = 0,
        retry_seconds: float = 0.5,
    ) -> None:
        """Create an account with nothing reserved.

        Args:
            resource: What is counted, as error texts show it after a number: "bytes of payloads in progress".
            limit: The most that all tenants together may reserve.
            option: The option of `lumigrad serve` that sets `limit`.
            share: The most that one tenant may reserve; None: `limit`.
            share_option: The option that sets `share`, if it is less than `limit`.
            kept: The part of `limit` that only tenants who have reserved nothing may take.
            retry_seconds: When a caller that was refused should retry.
        """
        self.resource = resource
        self.limit = limit
        self.share = limit if share is None else min(share, limit)
        self._kept = kept
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
            own = self._taken[tenant]
            return max(0, own + more - self.share, self._total + more - self.limit + (self._kept if own else 0))

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
        kept = self._kept if own else 0
        if self._total + more > self.limit - kept:
            taken = f"{self._total} of {self.limit} {self.resource} are taken ({self._option})"
            rest = ", and the others are kept for tenants without any" if self._total < self.limit and kept else ""
            what = f"{taken}{rest}, and {more} more {'is' if more == 1 else 'are'} needed"
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


# 1 / this of the places is kept for tenants that have none.
_KEPT = 8


def places(resource: str, count: int, *, has_tenants: bool, retry_seconds: float = 0.5) -> Account:
    """An account of places for calls, which --queue-size sets: one tenant may take half of them."""
    share, kept = (max(1, count // 2), max(1, count // _KEPT)) if has_tenants else (count, 0)
    option = "--queue-size"
    return Account(resource, count, option, share=share, share_option=option, kept=kept, retry_seconds=retry_seconds)


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
