"""A call in progress: tenant, deadline, cancellation, priority, and what is logged of it."""

from __future__ import annotations

import math
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

import grpc

from lumigrad.protos.dtypes import Array
from lumigrad.protos.lanes import LANE_METADATA
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.server.core.errors import CancelledError, DeadlineError, StoppingError
from lumigrad.server.core.limits import require
from lumigrad.server.core.timings import StageTimes

REQUEST_ID = "x-request-id"
# W3C Trace Context: https://www.w3.org/TR/trace-context/
_TRACE_PARENT = ("traceparent", "tracestate")
# Anything else could forge log lines.
_REQUEST_ID_FORM = re.compile(r"[A-Za-z0-9._:-]{1,64}")

# What a caller must send, or take, of a payload in the time for which it may keep the worker waiting.
PROGRESS_BYTES = 64 << 10

# The caller's clock was started first: its deadline ends the call a little before ours would.
_SLACK_SECONDS = 0.05


# Gives a call a buffer for an upload, or refuses.
Allocate = Callable[[int], memoryview]


class NoLane:
    """Of a call that names none: everything travels with the stream."""

    # What travelled otherwise.
    bytes_received = 0
    bytes_sent = 0

    def writer(self) -> PayloadWriter:
        """Where a reply's tensors go."""
        return PayloadWriter()

    def room(self, shape: Sequence[int]) -> Array | None:
        """Where a float32 array of the reply may be made, so that nobody has to copy it; None: anywhere."""
        return None

    def reader(self, payload: memoryview, limit_bytes: int, allocate: Allocate) -> PayloadReader:
        """Where a request's tensors are; `limit_bytes` is for those outside of the payload, all together."""
        return PayloadReader(payload)

    def end(self, *, delivered: bool) -> None:
        """The call has ended."""


class Wait:
    """How long a call has waited for its caller since the last time that enough bytes had moved."""

    def __init__(self) -> None:
        self._since = math.inf
        self._waited = 0.0
        self._bytes = 0

    @property
    def is_on(self) -> bool:
        """Whether the call waits now."""
        return self._since < math.inf

    @property
    def seconds(self) -> float:
        """The time, without that in which the call did something itself."""
        return self._waited + max(0.0, time.monotonic() - self._since)

    @contextmanager
    def during(self) -> Iterator[None]:
        """Mark the time in which nothing happens until the caller does something."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._waited, self._since = self.seconds, math.inf

    def moved(self, nbytes: int) -> None:
        """Count bytes that came or were taken."""
        self._bytes += nbytes
        if self._bytes >= PROGRESS_BYTES:
            self.restart()

    def restart(self) -> None:
        """Begin anew: something else is waited for."""
        self._waited, self._bytes = 0.0, 0


class Call:
    """What the layers below the gRPC surface may know of a call."""

    def __init__(self, method: str, context: grpc.ServicerContext) -> None:
        """Take the caller's request id if it has a decent one."""
        self.method = method
        # Told by the surface before anything else looks at the call.
        self.tenant = ""
        self.priority = Priority.NORMAL
        self.times = StageTimes()
        # Engine and operation, for the metrics of the kernels' stages.
        self.engine = ""
        self.operation = ""
        # How much was asked for, by name, for the traces.
        self.facts: dict[str, int] = {}
        self.bytes_received = 0
        # Whether the first message has come.
        self.has_begun = False
        self.bytes_sent = 0
        # Of a training.
        self.steps = 0
        # Numbers in its gradients that are NaN or infinite.
        self.nonfinite = 0
        # For the caller to send something, and to take it: requests and replies of a long call pass each other.
        self.receiving = Wait()
        self.sending = Wait()
        # Of a long call: whether a request has begun to come whose payload is not complete.
        self.is_payload_due = False
        # Hears engine, operation and stages of each part of a call of many requests.
        self.tell_stages: Callable[[str, str, Mapping[str, float]], None] = lambda *_: None
        # A call of many requests, and when the last of them came or was answered, by the monotonic clock.
        self.is_long = False
        self.renewed = time.monotonic()
        # When it was last asked whether it is still wanted, by the monotonic clock: the work goes on.
        self.checked = time.monotonic()
        self._is_stopped = self._is_cancelled = False
        self._why_cancelled = "the call was cancelled"
        self._context = context
        metadata = {key: value for key, value in context.invocation_metadata() or ()}
        self.trace_parent = {key: metadata[key] for key in _TRACE_PARENT if key in metadata}
        given = metadata.get(REQUEST_ID, "")
        is_decent = isinstance(given, str) and _REQUEST_ID_FORM.fullmatch(given)
        self.request_id = given if is_decent else uuid.uuid4().hex[:16]
        # How the caller calls its lane; the surface finds out what that is.
        self.lane_name = metadata.get(LANE_METADATA, "")
        self.lane = NoLane()

    @property
    def remaining(self) -> float:
        """Seconds until the caller's deadline; infinity without one."""
        remaining: float = self._context.time_remaining()
        return remaining

    def check(self) -> None:
        """Raise if nobody waits for the reply any more: look at it before each piece of work."""
        self.checked = time.monotonic()
        remaining = self.remaining
        if remaining <= 0:
            raise DeadlineError
        if self._is_stopped:
            raise StoppingError
        # gRPC may tell the end of the request before it tells that the call was cancelled.
        if self._is_cancelled or not self._context.is_active():
            raise DeadlineError if remaining < _SLACK_SECONDS else CancelledError(self._why_cancelled)

    def ended(self) -> Exception | None:
        """What `check` would raise."""
        try:
            self.check()
        except (DeadlineError, CancelledError) as error:
            return error
        return None

    def on_end(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when the call ends for whatever reason; at once if it has."""
        if not self._context.add_callback(callback):
            callback()

    def stop(self) -> None:
        """End the call at its next check: the worker is stopping."""
        self._is_stopped = True

    def renew(self) -> None:
        """The caller has asked for something more, or has its answer: the time of a long call begins anew."""
        self.is_long = True
        self.renewed = time.monotonic()

    @contextmanager
    def payload_due(self) -> Iterator[None]:
        """Mark the time in which a long call waits for a payload, not for whatever its caller may ask next."""
        self.receiving.restart()
        self.is_payload_due = True
        try:
            yield
        finally:
            self.is_payload_due = False

    def cancel(self, why: str) -> None:
        """End the call from this side."""
        self._why_cancelled = why
        self._is_cancelled = True
        self._context.cancel()


# In the metadata of a call.
PRIORITY = "lumigrad-priority"


class Priority(IntEnum):
    """The most urgent first."""

    INTERACTIVE = 0
    NORMAL = 1
    BATCH = 2


_BY_NAME = {priority.name.lower(): priority for priority in Priority}


def priority_of(context: grpc.ServicerContext) -> Priority:
    """What the caller says; NORMAL if that is nothing."""
    given = [value for key, value in context.invocation_metadata() or () if key == PRIORITY]
    if not given:
        return Priority.NORMAL
    name = given[0]
    require(len(given) == 1 and name in _BY_NAME, PRIORITY, f"one of {', '.join(_BY_NAME)}", ", ".join(map(str, given)))
    return _BY_NAME[str(name)]


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
