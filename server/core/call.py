"""A call in progress: tenant, deadline, cancellation, priority, stage times, and what the log records of it."""

from __future__ import annotations

import math
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import grpc
import numpy as np

from lumigrad.protos.dtypes import Array
from lumigrad.protos.lanes import LANE_METADATA
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.server.core.errors import CancelledError, DeadlineError, StoppingError
from lumigrad.server.core.limits import require
from lumigrad.server.core.turns import Turn, Turns
from lumigrad.v1 import timings_pb2

REQUEST_ID = "x-request-id"
# W3C Trace Context: https://www.w3.org/TR/trace-context/
_TRACE_PARENT = ("traceparent", "tracestate")
# Anything else could forge log lines.
_REQUEST_ID_FORM = re.compile(r"[A-Za-z0-9._:-]{1,64}")

# Bytes of a payload that a caller must send or receive within `Patience.stall_seconds`.
PROGRESS_BYTES = 64 << 10

# The caller's clock started first, so its deadline passes a little before ours.
_SLACK_SECONDS = 0.05

_SECOND_NS = 1_000_000_000


class StageSpan(NamedTuple):
    """One interval that a call spent in a stage.

    Attributes:
        stage: Its name; kernel stages begin with "kernel.".
        started: Seconds by `time.perf_counter`.
        ended: Likewise.
    """

    stage: str
    started: float
    ended: float


class StageTimes:
    """Milliseconds by stage, in the order in which stages were first entered, and each interval."""

    def __init__(self) -> None:
        # By `time.perf_counter`: when the call arrived and ended.
        self.created = self._started = self.ended = time.perf_counter()
        # Converts the stages' monotonic clock to the time of day, which may jump.
        self._epoch_ns = time.time_ns() - int(self.created * _SECOND_NS)
        self.milliseconds: dict[str, float] = {}
        # Ordered by their ends.
        self.spans: list[StageSpan] = []

    def restart(self) -> None:
        """Measure the total from now on: the header has arrived."""
        self._started = time.perf_counter()

    @property
    def total(self) -> float:
        """Milliseconds since the call, or its header, arrived."""
        return (time.perf_counter() - self._started) * 1e3

    def end(self) -> float:
        """Record the end of the call; returns its total milliseconds."""
        self.ended = time.perf_counter()
        return (self.ended - self._started) * 1e3

    def epoch_ns(self, moment: float) -> int:
        """Convert a time of `time.perf_counter` to nanoseconds since 1970."""
        return self._epoch_ns + int(moment * _SECOND_NS)

    def add(self, stage: str, milliseconds: float) -> None:
        """Add an interval that was measured elsewhere and has just ended."""
        now = time.perf_counter()
        self._add(StageSpan(stage, now - milliseconds / 1e3, now))

    def add_kernel(self, milliseconds: Mapping[str, float]) -> None:
        """Add the stages of a kernel that has just ended.

        Only their durations are known: they are placed one after the other up to now, after the last interval.
        """
        now = time.perf_counter()
        length = sum(milliseconds.values()) / 1e3
        room = now - (self.spans[-1].ended if self.spans else self.created)
        scale = 1.0 if length <= room else room / length
        started = now - length * scale
        for stage, value in milliseconds.items():
            name, ended = f"kernel.{stage}", started + value / 1e3 * scale
            self.milliseconds[name] = self.milliseconds.get(name, 0.0) + value
            self.spans.append(StageSpan(name, started, ended))
            started = ended

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Measure the time spent in a `with` block."""
        return _Stage(self._add, name)

    def message(self) -> timings_pb2.Timings:
        """The timings as a reply carries them."""
        stages = [timings_pb2.Stage(name=name, milliseconds=value) for name, value in self.milliseconds.items()]
        return timings_pb2.Timings(stages=stages, total_milliseconds=self.total)

    def _add(self, span: StageSpan) -> None:
        milliseconds = (span.ended - span.started) * 1e3
        self.milliseconds[span.stage] = self.milliseconds.get(span.stage, 0.0) + milliseconds
        self.spans.append(span)


class _Stage:
    """Measures a `with` block; a generator would take as long as the shortest stages."""

    __slots__ = ("_add", "_stage", "_started")

    def __init__(self, add: Callable[[StageSpan], None], stage: str) -> None:
        self._add = add
        self._stage = stage

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._add(StageSpan(self._stage, self._started, time.perf_counter()))


# Allocates a buffer of that many bytes for an upload; BusyError if there is no room.
Allocate = Callable[[int], memoryview]


class NoLane:
    """The lane of a call that names none: all tensors travel in the stream."""

    # Bytes that travelled through shared memory.
    bytes_received = 0
    bytes_sent = 0

    def writer(self, *, is_single: bool = False) -> PayloadWriter:
        """Create the writer of a reply's tensors; with `is_single` the reply has to be one message if it can be."""
        return PayloadWriter()

    def check_room(self, nbytes: int) -> None:
        """Raise LaneLostError if so many bytes were to travel through shared memory, and it has no room for them."""

    def allocate(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array | None:
        """Allocate an array of the reply in shared memory, which the device can write to; None: not possible."""
        return None

    def reader(self, payload: memoryview, limit_bytes: int, allocate: Allocate) -> PayloadReader:
        """Create the reader of a request's tensors; those outside of the payload may have `limit_bytes` in all."""
        return PayloadReader(payload)

    def check_held(self) -> None:
        """Raise LaneLostError if the caller took memory back, or vanished, since a tensor in it was read in place."""

    def end(self, *, delivered: bool) -> None:
        """Release the lane at the end of the call."""


class Wait:
    """The time that a call has waited for its caller since the last progress."""

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

    @contextmanager
    def during(self) -> Iterator[None]:
        """Count the time of a `with` block as waiting for the caller."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._waited, self._since = self.seconds, math.inf

    def moved(self, nbytes: int) -> None:
        """Count bytes that were received or sent."""
        self._bytes += nbytes
        if self._bytes >= PROGRESS_BYTES:
            self.restart()

    def restart(self) -> None:
        """Reset the time and the bytes."""
        self._waited, self._bytes = 0.0, 0


class Call:
    """The state of a call that the layers below gRPC may use."""

    def __init__(self, method: str, context: grpc.ServicerContext) -> None:
        """Use the caller's request id if it is valid, else a random one."""
        self.method = method
        # Set by the RPC handler before anything reads it.
        self.tenant = ""
        self.priority = Priority.NORMAL
        self.times = StageTimes()
        # Milliseconds of stages that `report_stages` got already.
        self._reported: dict[str, float] = {}
        # Engine and operation, for the metrics of the kernels' stages.
        self.engine = ""
        self.operation = ""
        # Sizes of the request, by name, for the traces.
        self.facts: dict[str, int] = {}
        self.bytes_received = 0
        # Whether the first message has arrived.
        self.has_begun = False
        self.bytes_sent = 0
        # Steps of a training.
        self.steps = 0
        # Gradient values that are NaN or infinite.
        self.nonfinite = 0
        # Names of the status codes of a batch's items.
        self.item_codes: list[str] = []
        # Whether the reply must be one message; then nothing is read after the request's payload.
        self.has_single_reply = False
        # Separate, because requests and replies of a long call overlap.
        self.receiving = Wait()
        self.sending = Wait()
        # Whether a long call has received part of a request, but not its whole payload.
        self.is_payload_due = False
        # Called with engine, operation and stages of each request of a long call.
        self.report_stages: Callable[[str, str, Mapping[str, float]], None] = lambda *_: None
        # Finds the lane that a request of a long call names.
        self.lane_of: Callable[[Call], NoLane] = lambda _: NoLane()
        # Held during long work in Python; the RPC handler replaces it by one of the turns that all calls share.
        self.turn = Turn(Turns(), "")
        # Whether the call has many requests, and when the last arrived or was answered (monotonic clock).
        self.is_long = False
        self.renewed = time.monotonic()
        # Time of the last `check` (monotonic clock), which shows that the work makes progress.
        self.checked = time.monotonic()
        self._is_stopped = self._is_cancelled = False
        self._why_cancelled = "the call was cancelled"
        self._context = context
        metadata = {key: value for key, value in context.invocation_metadata() or ()}
        self.trace_parent = {key: metadata[key] for key in _TRACE_PARENT if key in metadata}
        given = metadata.get(REQUEST_ID, "")
        is_valid = isinstance(given, str) and _REQUEST_ID_FORM.fullmatch(given)
        self.request_id = given if is_valid else uuid.uuid4().hex[:16]
        # The caller's name of its lane; the RPC handler resolves it to `lane`.
        self.lane_name = metadata.get(LANE_METADATA, "")
        self.lane = NoLane()

    @property
    def remaining(self) -> float:
        """Seconds until the caller's deadline; infinity without one."""
        remaining: float = self._context.time_remaining()
        return remaining

    def check(self) -> None:
        """Raise DeadlineError, StoppingError or CancelledError if the call is over. Use it before each step of work."""
        self.checked = time.monotonic()
        remaining = self.remaining
        if remaining <= 0:
            raise DeadlineError
        if self._is_stopped:
            raise StoppingError
        # gRPC may report the end of the request before the cancellation.
        if self._is_cancelled or not self._context.is_active():
            raise DeadlineError if remaining < _SLACK_SECONDS else CancelledError(self._why_cancelled)

    def ended(self) -> Exception | None:
        """The DeadlineError or CancelledError that `check` would raise; None: it raises none."""
        try:
            self.check()
        except (DeadlineError, CancelledError) as error:
            return error
        return None

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the call ends for any reason; at once if it has ended."""
        if not self._context.add_callback(callback):
            callback()

    def use_engine(self, name: str) -> None:
        """Change the engine that the kernels' stages belong to; those so far are reported for the one before."""
        if self.engine and name != self.engine:
            self.report_stages(self.engine, self.operation, self.unreported)
            self._reported = dict(self.times.milliseconds)
        self.engine = name

    @property
    def unreported(self) -> dict[str, float]:
        """Milliseconds of the stages since the engine changed."""
        now, before = self.times.milliseconds, self._reported
        return {name: ms - before.get(name, 0.0) for name, ms in now.items() if ms != before.get(name)}

    def stop(self) -> None:
        """Make the next `check` raise StoppingError."""
        self._is_stopped = True

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

    def cancel(self, why: str) -> None:
        """Cancel the call; `check` raises a CancelledError with this reason."""
        self._why_cancelled = why
        self._is_cancelled = True
        self._context.cancel()


# How often a call that waits for a lock checks whether it has ended.
_CHECK_SECONDS = 0.05


@contextmanager
def held(lock: Any, call: Call | None) -> Iterator[None]:
    """Hold a lock for the length of a `with` block; waiting for it ends with the call. None: it does not end."""
    while not lock.acquire(timeout=_CHECK_SECONDS):
        if call is not None:
            call.turn.give()
            call.check()
    try:
        yield
    finally:
        lock.release()


# The key in a call's metadata.
PRIORITY = "lumigrad-priority"


class Priority(IntEnum):
    """Priorities of calls, the most urgent first."""

    INTERACTIVE = 0
    NORMAL = 1
    BATCH = 2


_BY_NAME = {priority.name.lower(): priority for priority in Priority}


def priority_of(context: grpc.ServicerContext) -> Priority:
    """The priority in the call's metadata, NORMAL by default; InvalidArgumentError for an unknown one."""
    given = [value for key, value in context.invocation_metadata() or () if key == PRIORITY]
    if not given:
        return Priority.NORMAL
    name = given[0]
    require(len(given) == 1 and name in _BY_NAME, PRIORITY, f"one of {', '.join(_BY_NAME)}", ", ".join(map(str, given)))
    return _BY_NAME[str(name)]


# A call without a first message occupies a slot at no cost to its caller, so it ends early.
_SILENT_SECONDS = 10.0


@dataclass(frozen=True)
class Patience:
    """Time limits for calls with a distant deadline, or none."""

    # Of a whole call; of a long call, between requests.
    call_seconds: float
    # For the caller to send or receive `PROGRESS_BYTES`, or all that are left.
    stall_seconds: float

    def why_end(self, call: Call, started: float) -> str:
        """The reason to end a call that began at `started` (monotonic clock); empty if it may continue."""
        now = time.monotonic()
        if call.is_long and now - max(started, call.renewed) > self.call_seconds:
            return f"the caller sent no request for {self.call_seconds:g} s (--max-call-seconds)"
        if not call.is_long and now - started > self.call_seconds:
            return f"the call took longer than {self.call_seconds:g} s (--max-call-seconds)"
        if not call.has_begun and call.receiving.seconds > _SILENT_SECONDS:
            return f"the caller sent no first message for {_SILENT_SECONDS:g} s"
        # The next request of a long call may take long.
        is_due = call.is_payload_due or not call.is_long
        for wait, verb in ((call.receiving, "sent"), (call.sending, "took")):
            if wait.seconds > self.stall_seconds and (is_due or wait is call.sending):
                least = f"less than {PROGRESS_BYTES >> 10} KiB of a payload"
                return f"the caller {verb} nothing, or {least}, in {self.stall_seconds:g} s (--stall-seconds)"
        return ""
