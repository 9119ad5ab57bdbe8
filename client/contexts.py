"""Forward states on the worker, as their owners here hold and lose them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from lumigrad.client import affinity, tracing
from lumigrad.client.connection import Connection
from lumigrad.client.errors import ContextLost
from lumigrad.v1 import render_pb2

if TYPE_CHECKING:
    from lumigrad.client.worker import Worker

T = TypeVar("T")


class Discards:
    """Contexts of one service that nobody needs any more."""

    def __init__(self, connection: Connection, release: Any) -> None:
        """Takes the service's method Release."""
        self._connection = connection
        self._release = release
        self._waiting: deque[Kept] = deque()

    def add(self, kept: Kept) -> None:
        """Notes a state; the next call tells the worker.

        Called by finalizers, anywhere and in any thread: must not take a lock, so it does not call the worker itself.
        """
        self._waiting.append(kept)

    def flush(self) -> None:
        """Tells the worker which contexts it may forget, without waiting for it."""
        while self._waiting:
            kept = self._waiting.popleft()
            with affinity.to(kept.goes_by):
                self._connection.forget(self._release, render_pb2.ReleaseRequest(context_id=kept.context_id))


@dataclass(frozen=True)
class Kept:
    """A forward state.

    Attributes:
        context_id: names it on the worker.
        worker: has it; no other does.
        discards: where to leave it.
        goes_by: the name that the call went by which made it.
    """

    context_id: str
    worker: Worker
    discards: Discards
    goes_by: str

    @staticmethod
    def of(context_id: str, worker: Worker, discards: Discards) -> Kept | None:
        """What a reply tells; None: the worker kept none."""
        return Kept(context_id, worker, discards, affinity.current()) if context_id else None


class Context:
    """The forward state of one result; released when the result is dropped or says so."""

    def __init__(self, owner: object, kept: Kept | None) -> None:
        """Begins to hold it.

        Args:
            owner: a result that is dropped without backward should not occupy the worker until its context expires.
            kept: the state; None: there is none.
        """
        self._kept = kept
        if kept is not None:
            self._finalizer = weakref.finalize(owner, kept.discards.add, kept)
            self._finalizer.atexit = False

    def use(self, call: Callable[[Kept | None], T], release: bool) -> T:
        """Calls with the state, and without one if there is none or it was lost.

        Args:
            call: takes the state; None: computes everything again.
            release: the call lets the worker forget the state.
        """
        kept = self._kept
        if release:
            self._kept = None
        if kept is not None:
            try:
                result = call(kept)
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
        if self._kept is not None:
            self._kept.discards.add(self._kept)
            self._kept.discards.flush()
            self._forgotten()

    def _forgotten(self) -> None:
        """Notes that the worker has no state any more, so that nobody asks it to release one."""
        self._kept = None
        self._finalizer.detach()
