"""How long a call may take, and how long it may keep the worker waiting for its caller."""

from __future__ import annotations

import time
from dataclasses import dataclass

from lumigrad.server.call import PROGRESS_BYTES, Call

# A call that has said nothing yet keeps a place from others, and can be made without any effort.
_SILENT_SECONDS = 10.0


@dataclass(frozen=True)
class Patience:
    """Limits for calls whose own deadline is far away, or that have none."""

    # For a whole call.
    call_seconds: float
    # For the caller to send, or to take, so many bytes as are progress, or all that are left.
    stall_seconds: float

    def why_end(self, call: Call, started: float) -> str:
        """Why to end a call that began at a time of the monotonic clock; empty if it may go on."""
        now = time.monotonic()
        if call.is_long and now - max(started, call.renewed) > self.call_seconds:
            return f"the caller asked for nothing for {self.call_seconds:g} s (--max-call-seconds)"
        if not call.is_long and now - started > self.call_seconds:
            return f"the call took longer than {self.call_seconds:g} s (--max-call-seconds)"
        if not call.has_begun and call.receiving.seconds > _SILENT_SECONDS:
            return f"the caller said nothing for {_SILENT_SECONDS:g} s"
        # The next request of a long call may be long in coming.
        is_due = call.is_payload_due or not call.is_long
        for wait, verb in ((call.receiving, "sent"), (call.sending, "took")):
            if wait.seconds > self.stall_seconds and (is_due or wait is call.sending):
                least = f"less than {PROGRESS_BYTES >> 10} KiB of a payload"
                return f"the caller {verb} nothing, or {least}, in {self.stall_seconds:g} s (--stall-seconds)"
        return ""
