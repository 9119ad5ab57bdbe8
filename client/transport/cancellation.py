"""Whether anybody still waits for what a thread does. In the threads of a synchronous program somebody always does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Context, ContextVar
from typing import Any

import grpc

from lumigrad.client.errors import Cancelled

_current: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


class Cancellation:
    """Ends what goes on in a context, from any thread and without waiting for it."""

    def __init__(self) -> None:
        self._is_wanted = threading.Event()
        self._lock = threading.Lock()
        self._calls: set[Any] = set()

    def enter(self, context: Context) -> None:
        """Concerns what is done in this context from now on, and in copies of it."""
        context.run(_current.set, self)

    def cancel(self) -> None:
        """Cancels the calls that are under way; there will be no others."""
        with self._lock:
            self._is_wanted.set()
            calls = tuple(self._calls)
        for call in calls:
            call.cancel()

    @contextmanager
    def watch(self, call: Any) -> Iterator[None]:
        """Has a call of gRPC under way."""
        with self._lock:
            self._calls.add(call)
            is_late = self._is_wanted.is_set()
        try:
            if is_late:
                call.cancel()
            yield
        finally:
            with self._lock:
                self._calls.discard(call)

    def wait(self, seconds: float) -> bool:
        """Whether it was cancelled; waits that long for it."""
        return self._is_wanted.wait(seconds)


def check() -> None:
    """Raises Cancelled if nobody waits any more."""
    cancellation = _current.get()
    if cancellation is not None and cancellation.wait(0.0):
        raise _nobody_waits()


def pause(seconds: float) -> None:
    """Lets time pass; raises Cancelled as soon as nobody waits any more."""
    cancellation = _current.get()
    if cancellation is None:
        time.sleep(seconds)
    elif cancellation.wait(seconds):
        raise _nobody_waits()


def watching(call: Any) -> AbstractContextManager[None]:
    """For the length of a `with` block, whoever stops waiting cancels the call."""
    cancellation = _current.get()
    return nullcontext() if cancellation is None else cancellation.watch(call)


@contextmanager
def shielded() -> Iterator[None]:
    """For the length of a `with` block, what goes on is not cancelled: something would be left half done."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def reply_of(method: Any, request: Any, **options: Any) -> Any:
    """What a method answers that gives a single reply."""
    if _current.get() is None:
        # Without other threads in between.
        return method(request, **options)
    call = method.future(request, **options)
    try:
        with watching(call):
            return call.result()
    except grpc.FutureCancelledError:
        raise _nobody_waits() from None


def _nobody_waits() -> Cancelled:
    return Cancelled("nobody waits for the call any more")
