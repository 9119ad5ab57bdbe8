"""Runs native jobs for calls: admits them as the executor admits Python jobs, and ends them when their calls end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lumigrad.kernels._native import NativeCall, Outcome, ShortCall
from lumigrad.server.core.call import Call, NativeRequest
from lumigrad.server.core.errors import CancelledError, DeviceTimeError
from lumigrad.server.device.memory import Cost
from lumigrad.server.storage.tenants import Runtime


@dataclass(frozen=True, slots=True)
class Sent:
    """Record of a call that a native job has answered; bytes are payload bytes."""

    engine: str
    operation: str
    received: int
    sent: int
    batch_views: int = 0


@dataclass(frozen=True, slots=True)
class AskingCall:
    """A call of the general path that a native job may answer.

    Attributes:
        most_bytes: The longest payload that its caller accepts in one message.
    """

    runtime: Runtime
    most_bytes: int
    call: Call

    def remember(self, request: NativeRequest) -> None:
        """Keep the request, in case its kind is yet to be prepared."""
        self.call.request = request

    def run(self, job: Callable[..., NativeCall], kind: Any, request: Any, cost: Cost) -> NativeCall | None:
        """Run `job(queue, kind, request, ...)` and wait; None if the general path must answer the call, and may fail.

        Raises the error of the call if that has ended meanwhile.
        """
        call = self.call
        made = _made(self, job, kind, request, cost, call.tenant, int(call.priority), call.deadline)
        if made is None:
            return None
        call.job = made
        call.on_end(made.end)
        outcome = made.run(call.times.arrived)
        if outcome == Outcome.CANCELLED:
            call.check()
        return _done(made, outcome, made.overdue_limit)

    def answered(self, made: NativeCall, sent: Sent) -> None:
        """Record the call, whose reply is about to be sent."""
        self.call.times.milliseconds = made.stages
        record = self.call.record
        record.engine, record.operation = sent.engine, sent.operation
        record.bytes_received, record.bytes_sent = sent.received, sent.sent
        record.batch_views = sent.batch_views


@dataclass(frozen=True, slots=True)
class AskingShort:
    """A call admitted in C++ that a native job may answer. If none does, the general path continues with it."""

    runtime: Runtime
    short: ShortCall

    @property
    def most_bytes(self) -> int:
        """The longest payload that its caller accepts in one message."""
        return self.short.message_bytes

    def remember(self, request: NativeRequest) -> None:
        """Keep the request for the general path, in case that continues the call and has to prepare its kind."""
        self.short.request = request

    def run(self, job: Callable[..., NativeCall], kind: Any, request: Any, cost: Cost) -> NativeCall | None:
        """Run a job and wait, as `AskingCall.run` does."""
        short = self.short
        made = _made(self, job, kind, request, cost, short.tenant, short.priority, short.deadline)
        return None if made is None else _done(made, short.run(made), made.overdue_limit)

    def check(self) -> None:
        """Raise an error if the call has ended."""
        if self.short.has_ended:
            raise CancelledError

    def answered(self, made: NativeCall, sent: Sent) -> None:
        """Record the call, whose reply is about to be sent."""
        del made
        self.short.answered(sent.engine, sent.operation, sent.received, sent.sent, sent.batch_views)


Asking = AskingCall | AskingShort


def _made(
    asking: Asking,
    job: Callable[..., NativeCall],
    kind: Any,
    request: Any,
    cost: Cost,
    tenant: str,
    priority: int,
    deadline: float,
) -> NativeCall | None:
    """Create a job with the memory that it needs; None if there is too little."""
    runtime = asking.runtime
    room = runtime.memory.room_bytes(cost)
    reserved = None if room is None else runtime.payload_memory.account.take(tenant, cost.payload_bytes)
    if room is None or reserved is None:
        return None
    staged, queue = kind.staging_bytes, runtime.executor.queue
    staging = runtime.transfer.allocate(staged) if staged else None
    return job(queue, kind, request, staging, reserved, tenant, priority, deadline, room)


def _done(made: NativeCall, outcome: Outcome, overdue_limit: float) -> NativeCall | None:
    """Return a job that has succeeded, or None. A failed job may run again, unless its call has ended, which raises."""
    if outcome == Outcome.DONE:
        return made
    made.end()
    check_outcome(outcome, overdue_limit)
    return None


def check_outcome(outcome: Outcome, overdue_limit: float) -> None:
    """Raise the error of a job that was stopped. Jobs that failed otherwise may run again."""
    if outcome == Outcome.OVERDUE:
        raise DeviceTimeError(overdue_limit)
    if outcome == Outcome.CANCELLED:
        raise CancelledError
