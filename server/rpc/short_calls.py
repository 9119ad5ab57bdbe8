"""Calls that a shortcut may answer, which C++ keeps until then: what is rarely done with them."""

from __future__ import annotations

from contextlib import suppress

import grpc

from lumigrad.kernels._native import ShortCall, ShortCalls
from lumigrad.server.core.call import REQUEST_ID, Call, Priority
from lumigrad.server.core.progress import Progress
from lumigrad.server.core.record import CallRecord, StageTimes


def announce(request_id: str, context: grpc.ServicerContext) -> None:
    """Send the request id ahead of the reply: the caller then knows that a worker has begun the call."""
    # The reply may have begun, or the call have ended, in the meantime.
    with suppress(ValueError, grpc.RpcError):
        context.send_initial_metadata(((REQUEST_ID, request_id),))


def announce_short(short: ShortCall) -> None:
    """Do so, once."""
    if not short.is_announced:
        short.is_announced = True
        announce(short.request_id, short.context)


def cancel_short(short: ShortCall, why: str) -> None:
    """Cancel a call. Without the id its caller would take that for a proxy's doing, and repeat the call."""
    announce_short(short)
    short.why_cancelled = why
    short.context.cancel()


def progress_of(short: ShortCall) -> Progress:
    """How far a call is with its caller."""
    progress = Progress()
    progress.has_begun = short.has_begun
    progress.receiving.waited(short.receiving_seconds)
    return progress


def call_of(short: ShortCall) -> Call:
    """The call of the general way that goes on with one which the shortcut has left."""
    context = short.context
    call = Call(short.method, context, context.invocation_metadata() or (), deadline=short.deadline)
    call.record.request_id = short.request_id
    call.record.times.begin(short.arrived)
    call.tenant = call.record.tenant = short.tenant
    call.priority, call.message_bytes = Priority(short.priority), short.message_bytes
    call.progress.has_begun = short.has_begun
    if not context.add_callback(call.end):
        call.end()
    return call


def records_of(shorts: ShortCalls) -> list[CallRecord]:
    """The records of calls that have been answered since the last time."""
    records = []
    for method, request_id, tenant, engine, stages, milliseconds, ended_at, nbytes, views in shorts.take_records():
        times = StageTimes()
        times.milliseconds = stages
        record = CallRecord(method, request_id, times, tenant, engine, "forward")
        record.milliseconds, record.ended_at = milliseconds, ended_at
        record.bytes_sent, record.batch_views = nbytes, views
        records.append(record)
    return records
