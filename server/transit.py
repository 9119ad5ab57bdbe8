"""Memory for the payloads of calls in progress, requests and replies, within one account."""

from __future__ import annotations

from collections.abc import Callable

from lumigrad.server.accounts import Account
from lumigrad.server.call import Call


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
