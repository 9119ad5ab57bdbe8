"""Forward states on the worker, as their owners here hold and lose them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from lumigrad.client.errors import ContextLost
from lumigrad.client.transport import affinity, tracing
from lumigrad.client.transport.connection import Connection
from lumigrad.v1 import render_pb2

if TYPE_CHECKING:
    from lumigrad.client.workers.worker import Worker

T = TypeVar("T")
# A thread that has nothing to tell, and expects nothing, ends after so long.
_LINGER_S = 1.0


class Discards:
    """Contexts of one worker that nobody needs any more. A thread tells the worker, while there may be any."""

    def __init__(self, connection: Connection) -> None:
        """Takes the way to the worker."""
        self._connection = connection
        # Finalizers run anywhere and in any thread, so they must not take a lock: this queue is made for them.
        self._waiting: SimpleQueue[Kept | None] = SimpleQueue()
        # The contexts that will come here, unless a backward lets the worker forget them.
        self._held: set[str] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether the worker cannot be told any more: the client is closed, or another process's."""
        return self._is_closed

    def expect(self, kept: Kept) -> None:
        """Notes a state that will be added, or forgotten."""
        with self._lock:
            self._held.add(kept.context_id)
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="lumigrad releases", daemon=True)
                self._thread.start()

    def add(self, kept: Kept) -> None:
        """Has the worker told that it may forget a state. Does not wait."""
        if not self._is_closed:
            self._waiting.put(kept)

    def forget(self, kept: Kept) -> None:
        """Notes that the worker has forgotten a state by itself."""
        self._held.discard(kept.context_id)

    def close(self) -> None:
        """Ends the thread; states that the worker has not been told of stay there until they expire."""
        self._is_closed = True
        self._waiting.put(None)

    def abandon(self) -> None:
        """In a child of a fork: leaves everything to the parent."""
        self._is_closed = True

    def _run(self) -> None:
        while not self._is_closed:
            try:
                kept = self._waiting.get(timeout=_LINGER_S)
            except Empty:
                with self._lock:
                    if not self._held and self._waiting.empty():
                        self._thread = None
                        return
                continue
            if kept is not None:
                with affinity.to(kept.goes_by):
                    self._connection.tell(kept.release, render_pb2.ReleaseRequest(context_id=kept.context_id))
                self.forget(kept)


@dataclass(frozen=True)
class Kept:
    """A forward state.

    Attributes:
        context_id: names it on the worker.
        worker: has it; no other does.
        release: the method that lets the worker forget it.
        goes_by: the name that the call went by which made it.
    """

    context_id: str
    worker: Worker
    release: Any
    goes_by: str

    @staticmethod
    def of(context_id: str, worker: Worker, release: Any) -> Kept | None:
        """What a reply tells; None: the worker kept none."""
        return Kept(context_id, worker, release, affinity.current()) if context_id else None

    @property
    def discards(self) -> Discards:
        """Where to leave it."""
        return self.worker.discards


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
            kept.discards.expect(kept)
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
        # A state of the process that this one was forked from is that process's.
        if kept is not None and not kept.discards.is_closed:
            try:
                result = call(kept)
            except ContextLost:
                tracing.note_repair("context")
                self._forgotten(kept)
            else:
                if release:
                    self._forgotten(kept)
                return result
        return call(None)

    def release(self) -> None:
        """Lets the worker forget the state; soon, since nobody waits for it."""
        kept, self._kept = self._kept, None
        if kept is not None:
            self._finalizer.detach()
            kept.discards.add(kept)

    def _forgotten(self, kept: Kept) -> None:
        """Notes that the worker has no state any more, so that nobody asks it to release one."""
        self._kept = None
        self._finalizer.detach()
        kept.discards.forget(kept)
