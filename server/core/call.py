"""A call in progress: its caller, its deadline, and the resources it holds until its end."""

from __future__ import annotations

import logging
import math
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import Any, Protocol

import grpc
import numpy as np

from lumigrad.kernels._native import (
    BackwardRequest,
    NativeCall,
    Progress,
    QueryRequest,
    RenderJob,
    RenderRequest,
    ShortCall,
)
from lumigrad.protos.chunks import LARGEST_MESSAGE_BYTES, SHORT_BYTES
from lumigrad.protos.dtypes import Array
from lumigrad.protos.lane_tensors import LeasedRegion
from lumigrad.protos.lanes import LANE_METADATA
from lumigrad.protos.service import MESSAGE_BYTES
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.server.core import logs
from lumigrad.server.core.errors import CancelledError, DeadlineError, StoppingError
from lumigrad.server.core.limits import require
from lumigrad.server.core.record import CallRecord, StageTimes
from lumigrad.server.core.turns import Turn, Turns

REQUEST_ID = "x-request-id"
# W3C Trace Context: https://www.w3.org/TR/trace-context/
_TRACE_PARENT = ("traceparent", "tracestate")
# Other characters could forge log lines.
_REQUEST_ID_FORM = re.compile(r"[A-Za-z0-9._:-]{1,64}")

# The caller's clock started first, so its deadline passes a little before ours.
_SLACK_SECONDS = 0.05

# Allocates a buffer of that many bytes for an upload; BusyError if there is no room.
Allocate = Callable[[int], memoryview]
# Reserves that many bytes that are allocated elsewhere; BusyError if there is no room.
Reserve = Callable[[int], None]


class NoLane:
    """The lane of a call that names none: all tensors travel in the stream."""

    # Bytes that travelled through shared memory.
    bytes_received = 0
    bytes_sent = 0

    def writer(self, most_bytes: float = math.inf) -> PayloadWriter:
        """Create the writer of a reply's tensors; it keeps the payload within `most_bytes` if it can."""
        return PayloadWriter()

    def check_room(self, nbytes: int) -> None:
        """Raise LaneLostError if `nbytes` must travel through shared memory that has no room for them."""

    def allocate(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array | None:
        """Allocate an array of the reply in shared memory that the device can write to; None if not possible."""
        return None

    def lease(self, nbytes: int) -> LeasedRegion | None:
        """Lease `nbytes` or more of shared memory for the reply that the device can write to; None if not possible."""
        return None

    def reader(self, payload: memoryview, limit_bytes: int, allocate: Allocate) -> PayloadReader:
        """Create the reader of a request's tensors; tensors outside the payload may have `limit_bytes` in all."""
        return PayloadReader(payload)

    def check_held(self) -> None:
        """Raise LaneLostError if the caller took memory back, or vanished, since a tensor in it was read in place."""

    def end(self, *, delivered: bool) -> None:
        """Release the lane at the end of the call."""


# A request as native code reads it; requests of one kind share their `key`.
NativeRequest = RenderRequest | BackwardRequest | QueryRequest


class Priority(IntEnum):
    """Priorities of calls, the most urgent first."""

    INTERACTIVE = 0
    NORMAL = 1
    BATCH = 2


# The key in a call's metadata.
PRIORITY = "lumigrad-priority"
_MOST_DIGITS = 18
_BY_NAME = {priority.name.lower(): priority for priority in Priority}

Metadata = Sequence[tuple[str, str | bytes]]


class Caller(Protocol):
    """The far end of a call: gRPC's context, or a substitute for it where many calls share a stream."""

    def is_active(self) -> bool:
        """Return whether the caller still waits for the reply."""

    def cancel(self) -> object:
        """End the call for the caller."""


# The turn of calls that take no turns, and the lane of calls that name none.
_NO_TURN = Turn(Turns(), "")
_NO_LANE = NoLane()


# Separate from the global generator, which a program may seed; forked processes must not continue the same sequence.
_random = random.Random()
os.register_at_fork(after_in_child=_random.seed)


def _request_id(given: str | bytes | None) -> str:
    """Return the id that a caller gave if it is valid, else a random id."""
    if isinstance(given, str) and _REQUEST_ID_FORM.fullmatch(given):
        return given
    # An id only has to differ from the other ids in the log.
    return f"{_random.getrandbits(64):016x}"


def _report_nothing(*_: object) -> None:
    pass


def _no_lane(_: Call) -> NoLane:
    return _NO_LANE


class Call:
    """The state of a call that the layers below gRPC may use."""

    # Seconds of the device that the call's jobs have taken.
    device_seconds = 0.0

    def __init__(
        self,
        method: str,
        caller: Caller,
        metadata: Metadata = (),
        *,
        deadline: float = math.inf,
        is_traced: bool = False,
    ) -> None:
        """Begin a call.

        Args:
            method: Service and method, for log and metrics.
            caller: The far end, which waits for the reply.
            metadata: Metadata of the call. If its request id is not valid, the call gets a random one.
            deadline: Deadline of the caller, by the monotonic clock, like all times here.
            is_traced: Whether to keep the intervals of its stages.
        """
        values = dict(metadata)
        self.times = StageTimes(is_traced=is_traced)
        self.record = CallRecord(method, _request_id(values.get(REQUEST_ID)), self.times)
        if is_traced:
            self.record.trace_parent = {key: str(values[key]) for key in _TRACE_PARENT if key in values}
        self.metadata = metadata
        self.progress = Progress()
        self.deadline = deadline
        # When `check` was last called, which shows that the work makes progress.
        self.checked = time.monotonic()
        # Set by the RPC handler before anything reads them.
        self.tenant = ""
        self.priority = Priority.NORMAL
        # Held during long work in Python; the RPC handler replaces it by a turn from the `Turns` that all calls share.
        self.turn = _NO_TURN
        # The caller's name for its lane, and the lane that the RPC handler finds by this name.
        self.lane_name = str(values.get(LANE_METADATA, ""))
        self.lane = _NO_LANE
        # Whether the reply must be one message; then nothing is read after the request's payload.
        self.has_single_reply = False
        # The request as native code has read it, if similar requests can be prepared; and the job, if it is native.
        self.request: NativeRequest | None = None
        self.job: RenderJob | NativeCall | None = None
        # The longest payload that the caller takes in one message.
        self.message_bytes = SHORT_BYTES
        # Called with the engine, operation and stages of each request of a long call.
        self.report_stages: Callable[[str, str, Mapping[str, float]], None] = _report_nothing
        # Finds the lane that a request of a long call names.
        self.lane_of: Callable[[Call], NoLane] = _no_lane
        self._caller = caller
        # Creates the error that `check` raises once the call is stopped.
        self._stopped_by: Callable[[], Exception] | None = None
        self._why_cancelled: str | None = None
        self._lock = threading.Lock()
        # Callbacks; None once the call has ended.
        self._at_end: list[Callable[[], None]] | None = []

    @property
    def most_payload_bytes(self) -> float:
        """The longest payload that the reply may have; a longer one must go through the lane."""
        return self.message_bytes if self.has_single_reply else math.inf

    @property
    def remaining(self) -> float:
        """Seconds until the caller's deadline; infinity without one."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def has_reached_device(self) -> bool:
        """Whether the device has begun its work."""
        return "queue" in self.times.milliseconds or (self.job is not None and self.job.has_started)

    def check(self) -> None:
        """Raise an error if the call is over: its deadline has passed, or it was cancelled or stopped.

        Use it before each step of work.
        """
        self.checked = now = time.monotonic()
        if now >= self.deadline:
            raise DeadlineError
        if self._stopped_by is not None:
            raise self._stopped_by()
        # gRPC may report the end of the request before the cancellation.
        if self._why_cancelled is not None or not self._caller.is_active():
            if self.deadline - now < _SLACK_SECONDS:
                raise DeadlineError
            raise CancelledError(self._why_cancelled or "the call was cancelled")

    def ended(self) -> Exception | None:
        """Return the DeadlineError or CancelledError that `check` would raise; None if it would raise neither."""
        try:
            self.check()
        except (DeadlineError, CancelledError) as error:
            return error.with_traceback(None)
        return None

    @property
    def has_ended(self) -> bool:
        """Whether `end` was called; nothing more is sent to the caller then."""
        return self._at_end is None

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the call ends for any reason; at once if it has ended."""
        with self._lock:
            if self._at_end is not None:
                self._at_end.append(callback)
                return
        callback()

    def off_end(self, callback: Callable[[], None]) -> None:
        """Forget a callback of `on_end` that has not been called yet."""
        with self._lock:
            if self._at_end is not None:
                self._at_end.remove(callback)

    def end(self) -> None:
        """Release what the call holds, the most recent first; does nothing if the call has ended."""
        with self._lock:
            callbacks, self._at_end = self._at_end or [], None
        while callbacks:
            try:
                callbacks.pop()()
            except Exception as error:
                logs.event("an error at the end of a call", logging.ERROR, error=error, method=self.record.method)

    def use_engine(self, name: str) -> None:
        """Change the engine that the kernels' stages belong to; stages so far are reported for the previous engine."""
        record = self.record
        if record.engine and name != record.engine:
            self.report_stages(record.engine, record.operation, record.stages)
            record.reported()
        record.engine = name

    def stop(self, error: Callable[[], Exception] = StoppingError) -> None:
        """Make the next `check` raise an error, by default that the worker is stopping."""
        self._stopped_by = error

    def cancel(self, why: str) -> None:
        """Cancel the call; `check` raises a CancelledError with this reason."""
        self._why_cancelled = why
        self._caller.cancel()


# How often a call that waits for a lock checks whether it has ended.
_CHECK_SECONDS = 0.05


@contextmanager
def held(lock: Any, call: Call | None) -> Iterator[None]:
    """Hold a lock for the length of a `with` block; waiting for it ends with the call, or never if `call` is None."""
    while not lock.acquire(timeout=_CHECK_SECONDS):
        if call is not None:
            call.turn.give()
            call.check()
    try:
        yield
    finally:
        lock.release()


def priority_of(metadata: Metadata) -> Priority:
    """Return the priority in a call's metadata, NORMAL by default; raises InvalidArgumentError for an unknown one."""
    given = [value for key, value in metadata if key == PRIORITY]
    if not given:
        return Priority.NORMAL
    name = given[0]
    require(len(given) == 1 and name in _BY_NAME, PRIORITY, f"one of {', '.join(_BY_NAME)}", ", ".join(map(str, given)))
    return _BY_NAME[str(name)]


def message_bytes_of(metadata: Metadata) -> int:
    """Return the longest payload that a caller takes in one message; raises InvalidArgumentError if not a number."""
    for key, value in metadata:
        if key == MESSAGE_BYTES:
            is_number = isinstance(value, str) and value.isdecimal() and len(value) <= _MOST_DIGITS
            require(is_number, MESSAGE_BYTES, "a number of bytes", value)
            return min(int(value), LARGEST_MESSAGE_BYTES)
    return SHORT_BYTES


def call_of(short: ShortCall) -> Call:
    """Create a call of the general path that continues a call which the native shortcut has given up."""
    context: Any = short.context
    request: Any = short.request
    call = Call(short.method, context, context.invocation_metadata() or (), deadline=short.deadline)
    call.record.request_id = short.request_id
    call.record.times.begin(short.arrived)
    call.tenant = call.record.tenant = short.tenant
    call.priority, call.message_bytes = Priority(short.priority), short.message_bytes
    call.progress.has_begun = short.progress.has_begun
    call.request = request
    if not context.add_callback(call.end):
        call.end()
    return call


def announce(request_id: str, context: grpc.ServicerContext) -> None:
    """Send the call's id to the caller, which shows that the call has begun."""
    # The reply may have begun, or the call may have ended, in the meantime.
    with suppress(ValueError, grpc.RpcError):
        context.send_initial_metadata(((REQUEST_ID, request_id),))
