"""How far a call is with its caller: what is received and sent, and how long the worker is patient."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# Bytes of a payload that a caller must send or receive within `Patience.stall_seconds`.
PROGRESS_BYTES = 64 << 10


class Wait:
    """The time that a call has waited for its caller since the last progress; counted in `with` blocks."""

    __slots__ = ("_bytes", "_since", "_waited")

    def __init__(self) -> None:
        self._since = math.inf
        self._waited = 0.0
        self._bytes = 0

    @property
    def is_on(self) -> bool:
        """Whether the call is waiting."""
        return self._since < math.inf

    @property
    def seconds(self) -> float:
        """The time waited, without the time in which the worker was busy."""
        return self._waited + max(0.0, time.monotonic() - self._since)

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._waited, self._since = self.seconds, math.inf

    def waited(self, seconds: float) -> None:
        """Count time that was waited elsewhere."""
        self._waited += seconds

    def moved(self, nbytes: int) -> None:
        """Count bytes that were received or sent."""
        self._bytes += nbytes
        if self._bytes >= PROGRESS_BYTES:
            self.restart()

    def restart(self) -> None:
        """Reset the time and the bytes."""
        self._waited, self._bytes = 0.0, 0


class Progress:
    """Bytes that a call has received and sent so far.

    Attributes:
        receiving: The wait for the request.
        sending: The wait for the caller to take the reply; separate, because those of a long call overlap.
        has_begun: Whether the first message has arrived.
    """

    __slots__ = ("has_begun", "is_long", "is_payload_due", "receiving", "renewed", "sending")

    def __init__(self) -> None:
        self.receiving = Wait()
        self.sending = Wait()
        self.has_begun = False
        # Whether the call has many requests, and when the last arrived or was answered (monotonic clock).
        self.is_long = False
        self.renewed = -math.inf
        # Whether a long call has received part of a request, but not its whole payload.
        self.is_payload_due = False

    def renew(self) -> None:
        """Restart the time limit of a long call: a request arrived or was answered."""
        self.is_long = True
        self.renewed = time.monotonic()

    @contextmanager
    def payload_due(self) -> Iterator[None]:
        """Mark a `with` block in which a long call waits for a payload, not for the next request."""
        self.receiving.restart()
        self.is_payload_due = True
        try:
            yield
        finally:
            self.is_payload_due = False


# A call without a first message occupies a slot at no cost to its caller, so it ends early.
_SILENT_SECONDS = 10.0


@dataclass(frozen=True)
class Patience:
    """Time limits for calls with a distant deadline, or none."""

    # Limit of a whole call; of a long call, between requests.
    call_seconds: float
    # Limit for the caller to send or receive `PROGRESS_BYTES`, or all that are left.
    stall_seconds: float

    def why_end(self, progress: Progress, started: float) -> str:
        """The reason to end a call that began at `started` (monotonic clock); empty if it may continue."""
        now = time.monotonic()
        if progress.is_long and now - max(started, progress.renewed) > self.call_seconds:
            return f"the caller sent no request for {self.call_seconds:g} s (--max-call-seconds)"
        if not progress.is_long and now - started > self.call_seconds:
            return f"the call took longer than {self.call_seconds:g} s (--max-call-seconds)"
        if not progress.has_begun and progress.receiving.seconds > _SILENT_SECONDS:
            return f"the caller sent no first message for {_SILENT_SECONDS:g} s"
        # The next request of a long call may take long.
        is_due = progress.is_payload_due or not progress.is_long
        for wait, verb in ((progress.receiving, "sent"), (progress.sending, "took")):
            if wait.seconds > self.stall_seconds and (is_due or wait is progress.sending):
                least = f"less than {PROGRESS_BYTES >> 10} KiB of a payload"
                return f"the caller {verb} nothing, or {least}, in {self.stall_seconds:g} s (--stall-seconds)"
        return ""
