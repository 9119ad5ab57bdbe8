"""Time limits for calls that a shortcut may answer, while C++ holds them."""

from __future__ import annotations

import logging
import time
from typing import Any

from lumigrad.kernels._native import ShortCall, ShortCalls
from lumigrad.server.core import logs
from lumigrad.server.core.call import announce
from lumigrad.server.core.progress import Patience


def end_overdue(calls: ShortCalls, patience: Patience, announcing_seconds: float) -> None:
    """Announce long calls; cancel calls that take too long, and calls whose caller stalls, even after the reply."""
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
    """Cancel a call after sending its id to the caller."""
    _announce(short)
    short.why_cancelled = why
    _cancel(short)


def give_up(request_id: str, method: str, seconds: float) -> str:
    """Log that a caller did not take the end of a reply; returns why its call is cancelled."""
    why = f"the caller did not take the end of the reply in {seconds:g} s (--stall-seconds)"
    logs.event("reply given up", logging.WARNING, request_id=request_id, method=method, why=why)
    return why


def _announce(short: ShortCall) -> None:
    if short.begin_announcing():
        context: Any = short.context
        try:
            announce(short.request_id, context)
        finally:
            short.announced()


def _cancel(short: ShortCall) -> None:
    context: Any = short.context
    context.cancel()
