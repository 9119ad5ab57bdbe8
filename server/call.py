"""One call in progress: who asked, how long it may take, whether it is still wanted, where its time went."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

import grpc

from lumigrad.server.errors import CancelledError, DeadlineError
from lumigrad.server.timings import StageTimes

REQUEST_ID = "x-request-id"
# Anything else could forge log lines.
_REQUEST_ID_FORM = re.compile(r"[A-Za-z0-9._:-]{1,64}")

# The caller's clock was started first: its deadline ends the call a little before ours would.
_SLACK_SECONDS = 0.05


class Call:
    """What the layers below the gRPC surface may know of a call."""

    def __init__(self, method: str, context: grpc.ServicerContext) -> None:
        """Take the caller's request id if it has a decent one."""
        self.method = method
        self.times = StageTimes()
        # Engine and operation, for the metrics of the kernels' stages.
        self.engine = ""
        self.operation = ""
        self.bytes_received = 0
        self.bytes_sent = 0
        self._context = context
        given = next((value for key, value in context.invocation_metadata() or () if key == REQUEST_ID), "")
        is_decent = isinstance(given, str) and _REQUEST_ID_FORM.fullmatch(given)
        self.request_id = given if is_decent else uuid.uuid4().hex[:16]

    def check(self) -> None:
        """Raise if nobody waits for the reply any more: look at it before each piece of work."""
        remaining = self._context.time_remaining()
        if remaining <= 0:
            raise DeadlineError
        if not self._context.is_active():
            raise DeadlineError if remaining < _SLACK_SECONDS else CancelledError

    def on_end(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when the call ends for whatever reason; at once if it has."""
        if not self._context.add_callback(callback):
            callback()

    def cancel(self) -> None:
        """End the call from this side."""
        self._context.cancel()
