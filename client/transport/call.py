"""One call of the user: the time it has, where it is routed, who may cancel it, and the trace that it leaves."""

from __future__ import annotations

import copy
import time
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

from lumigrad.client.errors import Cancelled, DeadlineExceeded
from lumigrad.client.transport.addresses import LARGER_TIMEOUT
from lumigrad.client.transport.cancellation import Cancellation
from lumigrad.client.transport.tracing import UNTRACED, Trace

# A balancer between client and workers sends the calls of one key to one worker, and needs no knowledge of the
# messages. It only finds what calls need where it is warm: what a worker lacks the client sends again.
AFFINITY_METADATA = "lumigrad-scene-id"


class Call:
    """What all RPCs, attempts and repairs of one call share. A `with` block ends its trace.

    Attributes:
        timeout_s: of all of it, seconds.
        affinity: the key that its RPCs are routed by; empty: none, any worker may answer them.
        cancellation: ends it from another thread; None: nobody does.
        trace: what is noted of it.
    """

    def __init__(
        self,
        timeout_s: float,
        *,
        affinity: str = "",
        cancellation: Cancellation | None = None,
        trace: Trace = UNTRACED,
    ) -> None:
        """Starts the clock."""
        self.timeout_s = timeout_s
        self.affinity = affinity
        self.cancellation = cancellation
        self.trace = trace
        self._end = time.monotonic() + timeout_s

    def __enter__(self) -> Call:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.trace.end(error)

    def to(self, affinity: str) -> Call:
        """The same call, routed by a key, unless it has one already."""
        if self.affinity or not affinity:
            return self
        routed = copy.copy(self)
        routed.affinity = affinity
        return routed

    def renewed(self, timeout_s: float) -> Call:
        """The same call with a clock that starts now."""
        renewed = copy.copy(self)
        renewed.timeout_s, renewed._end = timeout_s, time.monotonic() + timeout_s
        return renewed

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What its RPCs tell of it."""
        routing = ((AFFINITY_METADATA, self.affinity),) if self.affinity else ()
        return (*routing, *self.trace.metadata)

    def remaining_s(self) -> float:
        """Seconds left; raises DeadlineExceeded if there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(f"the call took longer than its time-out of {self.timeout_s:g} s; {LARGER_TIMEOUT}")
        return left

    def check(self) -> None:
        """Raises Cancelled if nobody waits for it any more."""
        if self.cancellation is not None and self.cancellation.wait(0.0):
            raise nobody_waits()

    def pause(self, seconds: float) -> None:
        """Lets time pass; raises Cancelled as soon as nobody waits any more."""
        if self.cancellation is None:
            time.sleep(seconds)
        elif self.cancellation.wait(seconds):
            raise nobody_waits()

    def watching(self, rpc: Any) -> AbstractContextManager[None]:
        """For the length of a `with` block, whoever stops waiting cancels the RPC."""
        return nullcontext() if self.cancellation is None else self.cancellation.watch(rpc)


def nobody_waits() -> Cancelled:
    """What a call raises that was cancelled here."""
    return Cancelled("nobody waits for the call any more")
