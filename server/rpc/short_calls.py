"""The entry of calls, of those first that a shortcut may answer: C++ keeps them until then."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import grpc

from lumigrad.kernels._native import ShortCall, ShortCalls
from lumigrad.protos.chunks import LARGEST_MESSAGE_BYTES, SHORT_BYTES
from lumigrad.protos.service import SINGLE_REPLY
from lumigrad.server.core import logs
from lumigrad.server.core.call import REQUEST_ID, Call, Priority
from lumigrad.server.core.progress import Patience
from lumigrad.server.rpc.authentication import Authenticate

# A method as gRPC calls it; one that may answer a call by the bytes of its reply; and what goes on with a call, from
# its requests, after that has failed with an error, if there is one.
Single = Callable[[Iterator[bytes], grpc.ServicerContext], bytes]
Early = Callable[[bytes, ShortCall], bytes | None]
GoOn = Callable[[ShortCall, Iterator[bytes], BaseException | None], bytes]


class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The handlers of methods by their paths; `singles` for calls that have SINGLE_REPLY among their metadata."""

    def __init__(
        self, streams: Mapping[str, grpc.RpcMethodHandler], singles: Mapping[str, grpc.RpcMethodHandler]
    ) -> None:
        self._streams = streams
        self._singles = singles

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """The handler of a call; None: there is no such method."""
        is_single = SINGLE_REPLY in (details.invocation_metadata or ())
        return (self._singles if is_single else self._streams).get(details.method)


def short_entry(
    calls: ShortCalls, name: str, authenticate: Authenticate | None, early: Early, general: Single, go_on: GoOn
) -> Single:
    """A method whose calls `early` may answer; `general` takes those that are not admitted, and says why."""
    admit = calls.admit

    def short(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        try:
            tenant = "" if authenticate is None else authenticate(context)
        except Exception:
            return general(requests, context)
        opened = admit(name, tenant, context, SHORT_BYTES, LARGEST_MESSAGE_BYTES)
        if opened is None:
            return general(requests, context)
        error = None
        raw = opened.receive(requests)
        if raw is not None:
            try:
                reply = early(raw, opened)
                if reply is not None:
                    return reply
            except Exception as failed:
                error = failed
            requests = itertools.chain((raw,), requests)
        try:
            return go_on(opened, requests, error)
        finally:
            # The error's traceback refers to this frame: a cycle, which would keep what the call held.
            del error

    return short


def call_of(short: ShortCall) -> Call:
    """The call of the general way that goes on with one which the shortcut has left."""
    context: Any = short.context
    call = Call(short.method, context, context.invocation_metadata() or (), deadline=short.deadline)
    call.record.request_id = short.request_id
    call.record.times.begin(short.arrived)
    call.tenant = call.record.tenant = short.tenant
    call.priority, call.message_bytes = Priority(short.priority), short.message_bytes
    call.progress.has_begun = short.progress.has_begun
    if not context.add_callback(call.end):
        call.end()
    return call


def end_overdue(calls: ShortCalls, patience: Patience, announcing_seconds: float) -> None:
    """Announce long calls; cancel those that take too long, and those whose caller stalls, after the reply, too."""
    now = time.monotonic()
    for short in calls.open():
        if now - short.arrived > announcing_seconds:
            _announce(short)
        why = patience.why_end(short.progress, short.arrived)
        if why:
            cancel(short, why)
    for short in calls.unsent(now - patience.stall_seconds):
        give_up(short.request_id, short.method, patience.stall_seconds)
        short.end()
        _cancel(short)


def cancel(short: ShortCall, why: str) -> None:
    """Cancel a call, whose caller is told its id first."""
    _announce(short)
    short.why_cancelled = why
    _cancel(short)


def announce(request_id: str, context: grpc.ServicerContext) -> None:
    """Tell a caller that its call has begun, and under which id."""
    # The reply may have begun, or the call have ended, in the meantime.
    with suppress(ValueError, grpc.RpcError):
        context.send_initial_metadata(((REQUEST_ID, request_id),))


def give_up(request_id: str, method: str, seconds: float) -> str:
    """Say that the end of a reply was not taken; returns why its call is cancelled."""
    why = f"the caller did not take the end of the reply in {seconds:g} s (--stall-seconds)"
    logs.event("reply given up", logging.WARNING, request_id=request_id, method=method, why=why)
    return why


def _announce(short: ShortCall) -> None:
    if not short.is_announced:
        short.is_announced = True
        context: Any = short.context
        announce(short.request_id, context)


def _cancel(short: ShortCall) -> None:
    context: Any = short.context
    context.cancel()
