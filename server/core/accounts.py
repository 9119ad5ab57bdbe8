"""Accounts of the resources that tenants share: the total limit, each tenant's share, and what each has reserved.

A resource is reserved before it is allocated, and released when the call or object that uses it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lumigrad.kernels import _native
from lumigrad.protos.chunks import PayloadAssembler
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
            resource: Name of the resource, as error texts show it after a number: "bytes of payloads in progress".
            limit: The most that all tenants together may reserve.
            option: The option of `lumigrad serve` that sets `limit`.
            share: The most that one tenant may reserve; `limit` if None.
            share_option: The option that sets `share`, if it is less than `limit`.
            kept: The part of `limit` that only tenants who have reserved nothing may take.
            retry_seconds: When a caller that was refused should retry, in seconds.
        """
        self.resource = resource
        self.limit = limit
        self.share = limit if share is None else min(share, limit)
        self.kept = kept
        self._option = option
        self._share_option = share_option if self.share < limit else option
        self._retry_seconds = retry_seconds
        self.books = _native.Account(self.limit, self.share, self.kept)

    @property
    def taken(self) -> int:
        """The amount that all tenants have reserved."""
        return self.books.taken

    def lacking(self, tenant: str, more: int) -> int:
        """Return the amount that must be released before a tenant can reserve `more`; 0 if it can now."""
        own = self.books.taken_by(tenant)
        return max(0, own + more - self.share, self.taken + more - self.limit + (self.kept if own else 0))

    def reserve(self, tenant: str, amount: int) -> Reservation:
        """Reserve an amount; raises BusyError, which names the limit and its option, if too little is left."""
        reservation = Reservation(self, tenant)
        reservation.resize(amount)
        return reservation

    def take(self, tenant: str, amount: int) -> _native.Reservation | None:
        """Reserve a fixed amount; None if too little is left."""
        return self.books.take(tenant, amount)

    def tenants(self) -> dict[str, int]:
        """Return the amount that each tenant has reserved, without tenants that have reserved nothing."""
        return self.books.tenants()

    def check(self, amount: int) -> None:
        """Raise BusyError without a retry time if `amount` is more than any tenant may ever reserve."""
        if amount > self.share:
            what = f"{amount} {self.resource} are needed, of which there are {self.share} at the most"
            raise BusyError(f"{what} ({self._share_option})", None)

    def shortage(self, found: _native.Shortage) -> BusyError:
        """Return the error for a change that was refused."""
        return BusyError(self.refusal(found.own, found.total, found.more), self._retry_seconds)

    def refusal(self, own: int, total: int, more: int) -> str:
        """Return why a tenant who has reserved `own` of a `total` cannot have `more`; empty if it can."""
        if self.share < self.limit and own + more > self.share:
            return f"you have {own} of {self.share} {self.resource} ({self._share_option}), and asked for {more} more"
        kept = self.kept if own else 0
        if total + more <= self.limit - kept:
            return ""
        taken = f"{total} of {self.limit} {self.resource} are taken ({self._option})"
        rest = ", and the others are kept for tenants without any" if total < self.limit and kept else ""
        return f"{taken}{rest}, and {more} more {'is' if more == 1 else 'are'} needed"


# More than any resource has.
_MOST = 1 << 62


class Reservation(_native.Reservation):
    """The amount that one call or object has reserved. Thread-safe; releasing it twice does no harm."""

    def __init__(self, account: Account, tenant: str) -> None:
        """Create an empty reservation; most callers use `Account.reserve`."""
        super().__init__(account.books, tenant)
        self._account = account

    def resize(self, amount: int) -> None:
        """Change the reserved amount; if too little is left, raises BusyError and changes nothing.

        Does nothing once the reservation is released.
        """
        shortage = self.change(min(amount, _MOST))
        if shortage is not None:
            self._account.check(amount)
            raise self._account.shortage(shortage)

    def add(self, amount: int) -> None:
        """Reserve more, as `resize` does."""
        shortage = self.grow(min(amount, _MOST))
        if shortage is not None:
            self._account.check(self.amount + amount)
            raise self._account.shortage(shortage)


# 1 / `_KEPT` of the places is kept for tenants that have none.
_KEPT = 8


def places(resource: str, count: int, *, has_tenants: bool, retry_seconds: float = 0.5) -> Account:
    """Return an account of `count` places for calls, set by --queue-size, of which one tenant may take half."""
    share, kept = (max(1, count // 2), max(1, count // _KEPT)) if has_tenants else (count, 0)
    option = "--queue-size"
    return Account(resource, count, option, share=share, share_option=option, kept=kept, retry_seconds=retry_seconds)


class _Payload:
    """The payload bytes of one call; `due` of them do not exist yet."""

    __slots__ = ("due", "reservation")

    def __init__(self, reservation: Reservation) -> None:
        self.reservation = reservation
        self.due = 0


class PayloadMemory:
    """Counts the payload bytes of calls.

    They are reserved from their announcement until the call ends, and in use once they exist.

    An announced payload takes no memory before it arrives, nor a reply before its work begins. A call has one
    reservation, which grows.
    """

    def __init__(self, account: Account, allocate: Callable[[int], memoryview]) -> None:
        self.account = account
        self._allocate = allocate
        self._lock = threading.Lock()
        self._payloads: dict[Call, _Payload] = {}
        # Bytes of all calls that are reserved and do not exist yet.
        self._total_due = 0

    @property
    def used(self) -> int:
        """The bytes that are in use."""
        return max(0, self.account.taken - self._total_due)

    def reserve(self, nbytes: int, call: Call) -> None:
        """Reserve bytes until a call ends and count them as in use at once; raises BusyError if too few are left."""
        if nbytes:
            self._payload_of(call).reservation.add(nbytes)

    def announce(self, nbytes: int, call: Call) -> None:
        """Reserve bytes until a call ends; they count as in use once they arrive, or when the call's work begins.

        Raises BusyError if too few are left.
        """
        self.reserve(nbytes, call)
        self._change_due(call, nbytes)

    def begin(self, call: Call) -> None:
        """Count everything that a call has announced as in use."""
        with self._lock:
            payload = self._payloads.get(call)
            if payload is not None:
                self._total_due -= payload.due
                payload.due = 0

    def assembler(self, payload_bytes: int, limit_bytes: int, call: Call) -> PayloadAssembler:
        """Return an assembler for a payload, whose bytes count as in use as they arrive.

        Raises ProtocolError if the payload is longer than `limit_bytes`, BusyError if too few bytes
        are left.
        """

        def allocate(length: int) -> memoryview:
            self.announce(length, call)
            return self._allocate(length)

        return _Arriving(payload_bytes, limit_bytes, allocate, lambda nbytes: self._change_due(call, -nbytes))

    def allocator(self, call: Call) -> Callable[[int], memoryview]:
        """Return a function that reserves and allocates buffers for bytes that are in use at once."""

        def allocate(length: int) -> memoryview:
            self.reserve(length, call)
            return self._allocate(length)

        return allocate

    def _payload_of(self, call: Call) -> _Payload:
        with self._lock:
            payload = self._payloads.get(call)
            if payload is not None:
                return payload
            payload = self._payloads[call] = _Payload(Reservation(self.account, call.tenant))
        call.on_end(lambda: self._end(call, payload))
        return payload

    def _end(self, call: Call, payload: _Payload) -> None:
        payload.reservation.release()
        with self._lock:
            del self._payloads[call]
            self._total_due -= payload.due

    def _change_due(self, call: Call, change: int) -> None:
        with self._lock:
            payload = self._payloads.get(call)
            if payload is not None:
                due = max(0, payload.due + change)
                self._total_due += due - payload.due
                payload.due = due

    @contextmanager
    def lent(self, tenant: str) -> Iterator[Callable[[int], memoryview]]:
        """Provide a function like `allocator`'s for the worker's own work; its bytes count until the block ends."""
        reservations: list[Reservation] = []

        def allocate(length: int) -> memoryview:
            reservations.append(self.account.reserve(tenant, length))
            return self._allocate(length)

        try:
            yield allocate
        finally:
            for reservation in reservations:
                reservation.release()


class _Arriving(PayloadAssembler):
    """An assembler that reports the bytes of each chunk."""

    def __init__(
        self,
        payload_bytes: int,
        limit_bytes: int,
        allocate: Callable[[int], memoryview],
        on_bytes: Callable[[int], None],
    ) -> None:
        super().__init__(payload_bytes, limit_bytes, allocate)
        self._on_bytes = on_bytes

    def add(self, data: memoryview) -> None:
        """Append one chunk."""
        super().add(data)
        self._on_bytes(data.nbytes)
