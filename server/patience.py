"""How long a call may take, and how long it may keep the worker waiting for its caller."""

from __future__ import annotations

import time
from dataclasses import dataclass

from lumigrad.server.call import Call

# A call that has said nothing yet keeps a place from others, and can be made without any effort.
_SILENT_SECONDS = 10.0


@dataclass(frozen=True)
class Patience:
    """Limits for calls whose own deadline is far away, or that have none."""

    # For a whole call.
    call_seconds: float
    # For the caller to send the next chunk of a request, or to take the next one of a reply.
    stall_seconds: float

    def why_end(self, call: Call, started: float) -> str:
        """Why to end a call that began at a time of the monotonic clock; empty if it may go on."""
        now = time.monotonic()
        if call.is_long:
            # Requests and replies of a training pass each other: waiting for one side says nothing of the other.
            idle = now - max(started, call.renewed) > self.call_seconds
            return f"the caller asked for nothing for {self.call_seconds:g} s (--max-call-seconds)" if idle else ""
        if now - started > self.call_seconds:
            return f"the call took longer than {self.call_seconds:g} s (--max-call-seconds)"
        waited = now - call.waiting_since
        if not call.has_begun and waited > _SILENT_SECONDS:
            return f"the caller said nothing for {_SILENT_SECONDS:g} s"
        if waited > self.stall_seconds:
            return f"the caller sent nothing, or took nothing, for {self.stall_seconds:g} s (--stall-seconds)"
        return ""
