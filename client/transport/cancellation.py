"""Cancelling what another thread does: whoever stops waiting for a call ends it on the worker too."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar


class Cancellation:
    """Ends the calls that it was given to, from any thread and without waiting for them."""

    def __init__(self) -> None:
        self._is_wanted = threading.Event()
        self._lock = threading.Lock()
        self._calls: set[Any] = set()

    def cancel(self) -> None:
        """Cancels the calls that are under way; there will be no others."""
        with self._lock:
            self._is_wanted.set()
            calls = tuple(self._calls)
        for call in calls:
            call.cancel()

    @contextmanager
    def watch(self, call: Any) -> Iterator[None]:
        """For the length of a `with` block, a call of gRPC is under way."""
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


C = TypeVar("C", bound="Cancellable")


class Cancellable:
    """Something whose calls another thread may cancel."""

    _cancellation: Cancellation | None = None

    def _cancelled_by(self: C, cancellation: Cancellation | None) -> C:
        """The same thing, whose calls `cancellation` ends; None: nobody does."""
        bound = object.__new__(type(self))
        bound.__dict__.update(self.__dict__, _cancellation=cancellation)
        return bound
