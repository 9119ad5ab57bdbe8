"""Calls in progress: their authentication, admission, time limits, metrics, log lines, and statuses of errors."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import grpc

from lumigrad.kernels._native import ShortCall, ShortCalls
from lumigrad.server.core.accounts import Account, Reservation
from lumigrad.server.core.call import REQUEST_ID, Call, NoLane, announce, call_of, message_bytes_of, priority_of
from lumigrad.server.core.errors import BusyError, StoppingError, UnauthenticatedError
from lumigrad.server.core.notes import Notes
from lumigrad.server.core.progress import Patience
from lumigrad.server.core.turns import Turn, Turns
from lumigrad.server.rpc.authentication import Authentication
from lumigrad.server.rpc.short_calls import cancel, end_overdue, give_up
from lumigrad.server.rpc.status import Answer, answer_to

# Long calls, which mostly wait for their callers, take no places of calls but have accounts of their own.
_TRAIN, _STREAM = "TrainingService.Train", "RenderService.RenderStream"
# A call that has received less than `PROGRESS_BYTES` in this time gives up its place to tenants that have fewer.
_WAY_SECONDS = 1.0
# The tokens of long calls are checked again after this time; the checks run about once a second.
TOKEN_SECONDS = 8.0
# Time without a reply after which a caller gets its call's id, which shows that the call has begun.
_ANNOUNCING_SECONDS = 0.5


@dataclass(eq=False, slots=True)
class _Open:
    """A call in progress: its start (monotonic clock), place and context; None for a part of another call.

    Attributes:
        checked: When the token of a long call was last checked again.
    """

    started: float
    place: Reservation | ShortCall
    context: grpc.ServicerContext | None
    is_announced: bool = False
    checked: float = 0.0

    def announce(self, call: Call) -> None:
        """Send the request id ahead of the reply, once: the caller then knows that a worker has begun the call."""
        if not self.is_announced and self.context is not None:
            self.is_announced = True
            announce(call.record.request_id, self.context)

    def cancel(self, call: Call, why: str) -> None:
        """Cancel the call, and send the request id first: else its caller would blame a proxy, and repeat the call."""
        self.announce(call)
        call.cancel(why)


class CallHandler:
    """Handles all calls, for servicers whose methods take `(request, call)`."""

    def __init__(
        self,
        notes: Notes,
        places: Account,
        patience: Patience,
        trainings: Account,
        authentication: Authentication | None = None,
        lane_of: Callable[[Call], NoLane] | None = None,
        *,
        streams: Account | None = None,
        is_traced: bool = False,
    ) -> None:
        """Serve calls; without `authentication` all callers are one tenant.

        `notes` takes the records of calls. `places` limits the calls in progress, except open trainings and streams,
        which have accounts of their own; without `streams` no stream may be opened. `lane_of` finds the lane that a
        call names.
        """
        self._notes = notes
        self.is_traced = is_traced
        self.authentication = authentication
        self._lane_of = lane_of or (lambda _: NoLane())
        self.places = places
        self.patience = patience
        # Returns the number of stream frames without calls of their own, and how many of them the device has begun.
        self.count_frames: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.trainings = trainings
        self.streams = streams or Account("open streams", 0, "--max-streams")
        self._long = {_TRAIN: self.trainings, _STREAM: self.streams}
        # Calls that a shortcut may answer. Those that it leaves to the general path are also in `_calls`.
        self.shorts = ShortCalls(places.books, notes.native)
        self._calls: dict[Call, _Open] = {}
        # Calls whose last bytes are not sent yet, with the time at which they ended (monotonic clock).
        self._leaving: dict[Call, float] = {}
        # Turns for long work in Python.
        self._turns = Turns()
        # Whether calls that a shortcut leaves to the general path are stopped.
        self._is_ended = False
        self._is_closed = False
        self._lock = threading.RLock()
        # Notified when calls end; waited for only before the process ends.
        self._changed = threading.Condition(self._lock)

    @property
    def in_progress(self) -> int:
        """The number of calls in progress."""
        return len(self._calls) + len(self.shorts) + self.count_frames()[0]

    @property
    def is_closed(self) -> bool:
        """Whether every new call is refused."""
        return self._is_closed

    def stages(self, waiting: int) -> Mapping[str, int]:
        """Return the number of calls in each stage of `CALL_STAGES`; `waiting` of them wait for the device."""
        calls, shorts = list(self._calls), self.shorts.open()
        frames, begun_frames = self.count_frames()
        begun = [call for call in calls if call.has_reached_device]
        sending = sum(call.progress.sending.is_on for call in begun)
        reached = len(begun) + sum(short.has_started for short in shorts) + begun_frames
        receiving = max(0, len(calls) + len(shorts) + frames - reached - waiting)
        return {"receive": receiving, "queue": waiting, "device": reached - sending, "send": sending}

    def close(self) -> None:
        """Refuse every new call."""
        self.shorts.close()
        with self._changed:
            self._is_closed = True

    def wait_idle(self, seconds: float) -> bool:
        """Wait until no call is in progress; False after `seconds`."""
        until = time.monotonic() + seconds
        # First wait for calls that may still move to the general path.
        if not self.shorts.wait_idle(seconds):
            return False
        with self._changed:
            return self._changed.wait_for(lambda: not self._calls, max(0.0, until - time.monotonic()))

    def end_all(self) -> None:
        """Stop the calls in progress at their next check, with a status that lets clients try another worker."""
        with self._changed:
            calls = list(self._calls)
            self._is_ended = True
        for call in calls:
            call.stop()

    def wait_sent(self, seconds: float) -> None:
        """Wait until all replies are sent, for at most `seconds`."""
        until = time.monotonic() + seconds
        self.shorts.wait_sent(seconds)
        with self._changed:
            self._changed.wait_for(lambda: not self._leaving, max(0.0, until - time.monotonic()))

    def begun(self, method: str, context: grpc.ServicerContext) -> Call:
        """Create the call for a gRPC context; it is not yet admitted."""
        call = Call(
            method,
            context,
            context.invocation_metadata() or (),
            # Read the clock first, so that a pause in between makes the deadline earlier, never later than the
            # caller's.
            deadline=time.monotonic() + context.time_remaining(),
            is_traced=self.is_traced,
        )
        if not context.add_callback(call.end):
            call.end()
        return call

    def end_pushed(self, call: Call, context: grpc.ServicerContext, error: BaseException | None) -> None:
        """Release a call, and set the status that its last push sends."""
        answer = None if error is None else _answer(call, error)
        self.leave(call, answer, error)
        details = () if answer is None else answer.trailing_metadata
        context.set_trailing_metadata((_named(call), *details))
        if answer is not None:
            context.set_code(answer.code)
            context.set_details(answer.text)

    def guarded(
        self,
        method: str,
        context: grpc.ServicerContext,
        translate: Callable[[Answer], Answer] = lambda answer: answer,
    ) -> Guard:
        """Return a context manager that admits and releases a call, and converts its exceptions to a status."""
        return Guard(self, self.begun(method, context), context, translate)

    def continued(self, short: ShortCall, translate: Callable[[Answer], Answer]) -> Guard:
        """Return a context manager as `guarded` does, for a call that a shortcut has left."""
        return Guard(self, call_of(short), short.context, translate, short)

    def take_over(self, call: Call, short: ShortCall) -> None:
        """Register a call that a shortcut has already admitted, and that keeps its place."""
        call.report_stages, call.lane_of = self._notes.stages, self._lane_of
        call.turn = Turn(self._turns, call.tenant)
        short.begin_reply()
        with self._lock:
            self._calls[call] = _Open(short.arrived, short, short.context, short.is_announced)
        short.hand_over()
        call.on_end(lambda: self._forget(call))
        if call.lane_name:
            call.lane = self._lane_of(call)
        if short.why_cancelled:
            call.cancel(short.why_cancelled)
        if self._is_ended:
            call.stop()

    def enter(self, call: Call, context: grpc.ServicerContext) -> None:
        """Authenticate the caller and admit the call; raises if too many are in progress."""
        call.report_stages = self._notes.stages
        call.lane_of = self._lane_of
        if self.authentication is not None:
            call.tenant = call.record.tenant = self.authentication.tenant_of(context)
        call.priority, call.message_bytes = priority_of(call.metadata), message_bytes_of(call.metadata)
        call.turn = Turn(self._turns, call.tenant)
        self._admit(call, context)

    def enter_part(self, part: Call, whole: Call) -> None:
        """Admit a call that is part of another call of the same caller."""
        part.report_stages, part.lane_of = whole.report_stages, whole.lane_of
        part.tenant = part.record.tenant = whole.tenant
        part.priority = whole.priority
        part.turn = Turn(self._turns, part.tenant)
        part.progress.has_begun = True
        self._admit(part, None)

    def check_tenant(self, call: Call) -> None:
        """Raise an UnauthenticatedError if the caller would not be admitted as the same tenant again."""
        if self.authentication is not None:
            self.authentication.check(call.tenant, call.metadata)

    def check_tokens(self) -> None:
        """Stop trainings whose tokens are no longer valid. Call it about once a second."""
        now = time.monotonic()
        for call, opened in list(self._calls.items()):
            is_due = now - max(opened.started, opened.checked) > TOKEN_SECONDS
            if call.record.method != _TRAIN or opened.context is None or not is_due:
                continue
            opened.checked = now
            try:
                self.check_tenant(call)
            except UnauthenticatedError as error:
                call.stop(partial(UnauthenticatedError, error.why))

    def announce(self, call: Call) -> None:
        """Send the call's id to its caller, which shows that the call has begun."""
        opened = self._calls.get(call)
        if opened is not None:
            opened.announce(call)

    def _admit(self, call: Call, context: grpc.ServicerContext | None) -> None:
        with self._lock:
            if self._is_closed:
                raise StoppingError
            self._calls[call] = _Open(time.monotonic(), self._place_for(call), context)
        call.on_end(lambda: self._forget(call))
        if call.lane_name:
            call.lane = self._lane_of(call)

    def leave(self, call: Call, answer: Answer | None, error: BaseException | None) -> None:
        """Release what a call holds, except what its reply still needs."""
        call.turn.give()
        record, lane = call.record, call.lane
        record.bytes_received += lane.bytes_received
        record.bytes_sent += lane.bytes_sent
        if answer is not None:
            record.code, record.reason, record.why = answer.code.name, answer.reason, answer.text
            if answer.code == grpc.StatusCode.INTERNAL:
                # The error's traceback refers to the call, and so to the record. This cycle keeps what the call held
                # until the record is logged.
                record.error = error
        record.end()
        # Recorded before the reply is sent, so that whoever has the reply finds the call in the metrics.
        self._notes.add(record)
        with self._lock:
            opened = self._calls.pop(call, None)
            if opened is not None:
                opened.place.release()
                if not call.has_ended:
                    self._leaving[call] = time.monotonic()
            self._changed.notify_all()
        lane.end(delivered=answer is None)

    def _place_for(self, call: Call) -> Reservation:
        account = self._long.get(call.record.method)
        if account is not None:
            return account.reserve(call.tenant, 1)
        try:
            return self.places.reserve(call.tenant, 1)
        except BusyError:
            if not self._make_way(call.tenant):
                raise
            return self.places.reserve(call.tenant, 1)

    def _make_way(self, tenant: str) -> bool:
        """End calls that wait for their callers, so that a tenant gets a place; False, and none ended, if that fails.

        The tenants with the most places give them up, and keep at least as many as this tenant then has.
        """
        taken = Counter(self.places.tenants())
        own = taken[tenant]
        calls: list[Call | ShortCall] = [call for call in self._calls if call.record.method not in self._long]
        waits = {call: call.progress.receiving for call in (*calls, *self.shorts.open())}
        idle = {call: wait.seconds for call, wait in waits.items() if wait.is_on and wait.seconds > _WAY_SECONDS}
        ended: list[Call | ShortCall] = []
        for _ in range(self.places.lacking(tenant, 1)):
            giving = [call for call in idle if call not in ended and taken[call.tenant] > own + 1]
            if own >= self.places.share or not giving:
                return False
            ended.append(max(giving, key=lambda call: (taken[call.tenant], idle[call])))
            taken[ended[-1].tenant] -= 1
        for call in ended:
            why = f"the caller sent nothing, or little, in {idle[call]:.1f} s, and others needed its place"
            if isinstance(call, ShortCall):
                call.release()
                cancel(call, why)
            else:
                opened = self._calls[call]
                opened.place.release()
                opened.cancel(call, why)
        return True

    def _forget(self, call: Call) -> None:
        with self._lock:
            if self._leaving.pop(call, None) is not None:
                self._changed.notify_all()

    def end_overdue(self) -> None:
        """Cancel calls that exceed the maximum duration, and calls whose caller stalls, even at the end of a reply."""
        with self._changed:
            calls = list(self._calls.items())
            leaving = list(self._leaving.items())
        now = time.monotonic()
        for call, opened in calls:
            why = self.patience.why_end(call.progress, opened.started)
            # Locked, so that the call stays open meanwhile: gRPC never reports the end of a call for which something is
            # sent after its status.
            with self._lock:
                if call not in self._calls:
                    continue
                if now - opened.started > _ANNOUNCING_SECONDS:
                    opened.announce(call)
                if why:
                    opened.cancel(call, why)
        seconds = self.patience.stall_seconds
        for call in [call for call, since in leaving if since < now - seconds]:
            call.cancel(give_up(call.record.request_id, call.record.method, seconds))
            call.end()
        end_overdue(self.shorts, self.patience, _ANNOUNCING_SECONDS)


class Guard:
    """The context manager of a call. A class, because a generator would delay every call."""

    __slots__ = ("_call", "_context", "_handler", "_short", "_translate")

    def __init__(
        self,
        handler: CallHandler,
        call: Call,
        context: grpc.ServicerContext,
        translate: Callable[[Answer], Answer],
        short: ShortCall | None = None,
    ) -> None:
        """Guard a call; `short` is its earlier form, if a shortcut has left it."""
        self._handler = handler
        self._short = short
        self._call = call
        self._context = context
        self._translate = translate

    def __enter__(self) -> Call:
        try:
            if self._short is None:
                self._handler.enter(self._call, self._context)
            else:
                self._handler.take_over(self._call, self._short)
            self._call.check()
        except BaseException as error:
            self._refuse(error)
        return self._call

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, GeneratorExit):
            # A generator that is being closed must raise nothing else. Python raises the error again: raised in a
            # function that has it as a variable, it would refer to itself.
            self._handler.leave(self._call, self._translate(_answer(self._call, error)), error)
            return
        if error is not None:
            self._refuse(error)
        self._handler.leave(self._call, None, None)
        self._context.set_trailing_metadata((_named(self._call),))

    def _refuse(self, error: BaseException) -> NoReturn:
        """Release the call, and end it with the status of an error."""
        call, context = self._call, self._context
        answer = self._translate(_answer(call, error))
        self._handler.leave(call, answer, error)
        context.set_trailing_metadata((_named(call), *answer.trailing_metadata))
        context.abort(answer.code, answer.text)
        raise AssertionError("gRPC's abort raises")


def _named(call: Call) -> tuple[str, str]:
    return REQUEST_ID, call.record.request_id


def _answer(call: Call, error: BaseException) -> Answer:
    """Return the status for an error. If the call has ended meanwhile, the reason for its end takes precedence."""
    try:
        call.check()
    except Exception as ended:
        return answer_to(ended, call.record.request_id)
    return answer_to(error, call.record.request_id)
