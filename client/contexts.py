"""Forward states on the worker, as their owners here hold and lose them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from lumigrad.client import tracing
from lumigrad.client.connection import Connection
from lumigrad.client.errors import ContextLost
from lumigrad.v1 import render_pb2

T = TypeVar("T")


class Discards:
    """Contexts of one service that nobody needs any more."""

    def __init__(self, connection: Connection, release: Any) -> None:
        """Takes the service's method Release."""
        self._connection = connection
        self._release = release
        self._waiting: deque[str] = deque()

    def add(self, context_id: str) -> None:
        """Notes a context; the next call tells the worker.

        Called by finalizers, anywhere and in any thread: must not take a lock, so it does not call the worker itself.
        """
        self._waiting.append(context_id)

    def flush(self) -> None:
        """Tells the worker which contexts it may forget, without waiting for it."""
        while self._waiting:
            request = render_pb2.ReleaseRequest(context_id=self._waiting.popleft())
            self._connection.forget(self._release, request)


class Context:
    """The forward state of one result; released when the result is dropped or says so."""

    def __init__(self, owner: object, context_id: str | None, discards: Discards) -> None:
        """Begins to hold it.

        Args:
            owner: a result that is dropped without backward should not occupy the worker until its context expires.
            context_id: names the state; None: the worker kept none.
            discards: where to leave it.
        """
        self._context_id = context_id
        self._discards = discards
        if context_id is not None:
            self._finalizer = weakref.finalize(owner, discards.add, context_id)
            self._finalizer.atexit = False

    def use(self, call: Callable[[str | None], T], release: bool) -> T:
        """Calls with the context, and without one if there is none or the worker lost it.

        Args:
            call: takes the context's id; None: computes everything again.
            release: the call lets the worker forget the context.
        """
        context_id = self._context_id
        if release:
            self._context_id = None
        if context_id is not None:
            try:
                result = call(context_id)
            except ContextLost:
                tracing.note_repair("context")
                self._forgotten()
            else:
                if release:
                    self._forgotten()
                return result
        return call(None)

    def release(self) -> None:
        """Lets the worker forget the state."""
        if self._context_id is not None:
            self._discards.add(self._context_id)
            self._discards.flush()
            self._forgotten()

    def _forgotten(self) -> None:
        """Notes that the worker has no context any more, so that nobody asks it to release one."""
        self._context_id = None
        self._finalizer.detach()
