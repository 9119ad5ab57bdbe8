"""Progress of a call's transfers, and the time limits after which the worker ends a call."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lumigrad.kernels._native import PROGRESS_BYTES, Progress


@contextmanager
def payload_due(progress: Progress) -> Iterator[None]:
    """Mark a `with` block in which a long call waits for a payload, not for the next request."""
    progress.receiving.restart()
    progress.is_payload_due = True
    try:
        yield
    finally:
        progress.is_payload_due = False


# A call without a first message occupies a slot at no cost to its caller, so it ends early.
_SILENT_SECONDS = 10.0


@dataclass(frozen=True)
class Patience:
    """Time limits for calls without a deadline, or with a distant one."""

    # Limit of a whole call; for a long call, of the time between requests.
    call_seconds: float
    # Limit for the caller to send or receive `PROGRESS_BYTES`, or the rest of a payload if that is less.
    stall_seconds: float

    def why_end(self, progress: Progress, started: float) -> str:
        """Return the reason to end a call that began at `started` (monotonic clock); empty if it may continue."""
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
