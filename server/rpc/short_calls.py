"""Calls that a shortcut may answer, which C++ keeps until then."""

from __future__ import annotations

from typing import Any

from lumigrad.kernels._native import ShortCall
from lumigrad.server.core.call import Call, Priority


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
