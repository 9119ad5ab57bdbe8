"""Forward states of one worker that nobody needs any more: a thread tells the worker to release them."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from lumigrad.client.transport.connection import Connection
from lumigrad.v1 import render_pb2

# A thread that has nothing to tell, and expects nothing, ends after so long.
_LINGER_S = 1.0


@dataclass(frozen=True)
class PendingRelease:
    """A forward state that the worker is to release one day.

    Attributes:
        context_id: names it on the worker.
        method: releases it.
        affinity: the key that the call was routed by which made it.
    """

    context_id: str
    method: Any
    affinity: str


class Releases:
    """Releases forward states of one worker in a thread, which runs while there may be any."""

    def __init__(self, connection: Connection) -> None:
        """Takes the way to the worker."""
        self._connection = connection
        # Finalizers run anywhere and in any thread, so they must not take a lock: this queue is made for them.
        self._waiting: SimpleQueue[PendingRelease | None] = SimpleQueue()
        # The contexts that will come here, unless a backward lets the worker forget them.
        self._held: set[str] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether the worker cannot be told any more: the client is closed, or another process's."""
        return self._is_closed

    def expect(self, release: PendingRelease) -> None:
        """Notes a state that will be added, or forgotten."""
        with self._lock:
            self._held.add(release.context_id)
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="lumigrad releases", daemon=True)
                self._thread.start()

    def add(self, release: PendingRelease) -> None:
        """Has the worker told that it may forget a state. Does not wait."""
        if not self._is_closed:
            self._waiting.put(release)

    def forget(self, release: PendingRelease) -> None:
        """Notes that the worker has forgotten a state by itself."""
        self._held.discard(release.context_id)

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
                release = self._waiting.get(timeout=_LINGER_S)
            except Empty:
                with self._lock:
                    if not self._held and self._waiting.empty():
                        self._thread = None
                        return
                continue
            if release is not None:
                request = render_pb2.ReleaseRequest(context_id=release.context_id)
                self._connection.tell(release.method, request, release.affinity)
                self.forget(release)
