"""Accounts of the resources that tenants share: a limit for all of them, a share for each, and who has taken how much.

Whoever needs some of a resource reserves it before it is allocated, and releases the reservation when the life of the
call or object that it was for ends.
"""

from __future__ import annotations

import threading
from collections import Counter

from lumigrad.server.core.errors import BusyError


class Account:
    """How much of one resource is taken, by whom, and who may have more."""

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
        """Begin with nothing taken.

        Args:
            resource: What is counted, as it stands in error texts after a number: "bytes of payloads in progress".
            limit: What all tenants together may take.
            option: The option of `lumigrad serve` that sets `limit`.
            share: What one tenant may take; None: all of it.
            share_option: The option that sets `share`, if it is less than `limit`.
            retry_seconds: When a caller that was refused should try again.
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
        """What all tenants have reserved now."""
        return self._total

    def taken_by(self, tenant: str) -> int:
        """What one tenant has reserved now."""
        with self._lock:
            return self._taken[tenant]

    def lacking(self, tenant: str, more: int) -> int:
        """How much has to be released before a tenant can reserve so much more; 0: it can now."""
        with self._lock:
            return max(0, self._taken[tenant] + more - self.share, self._total + more - self.limit)

    def reserve(self, tenant: str, amount: int) -> Reservation:
        """Take some of the resource; BusyError, which names the limit and its option, if there is too little left."""
        reservation = Reservation(self, tenant)
        reservation.resize(amount)
        return reservation

    def tenants(self) -> dict[str, int]:
        """What each tenant has reserved now; without those who have nothing."""
        with self._lock:
            return dict(self._taken)

    def check(self, amount: int) -> None:
        """Refuse what no tenant may ever have: to try again later would not help."""
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
    """What one call or object has of an account. Safe to use from several threads; released once, however often."""

    def __init__(self, account: Account, tenant: str) -> None:
        """Begin with nothing; `Account.reserve` is the usual way to make one."""
        self._account = account
        self._tenant = tenant
        self._lock = threading.Lock()
        self._amount = 0
        self._is_released = False

    @property
    def amount(self) -> int:
        """What is reserved now."""
        return self._amount

    def resize(self, amount: int) -> None:
        """Reserve another amount instead; BusyError, and nothing changed, if there is too little left.

        A released reservation takes nothing any more: resizing it does nothing.
        """
        with self._lock:
            if not self._is_released:
                self._account._change(self._tenant, self._amount, amount)
                self._amount = amount

    def release(self) -> None:
        """Give everything back."""
        with self._lock:
            if not self._is_released:
                self._account._change(self._tenant, self._amount, 0)
                self._amount = 0
            self._is_released = True
