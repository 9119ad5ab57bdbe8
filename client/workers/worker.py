"""The client's state of one worker: its connection, scenes and forward states."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from lumigrad.client.transport.addresses import Address
from lumigrad.client.transport.channel import Access
from lumigrad.client.transport.connection import Connection
from lumigrad.client.workers.health import Health
from lumigrad.client.workers.mesh_updates import MeshUpdates
from lumigrad.client.workers.scene_store import SceneStore
from lumigrad.protos.finalizers import finalize
from lumigrad.v1 import render_pb2

# The thread ends after this many seconds without states to release or to expect.
_LINGER_S = 1.0


class Worker:
    """The client's state of one worker.

    `under_way` counts this client's calls in progress, `asked` all its calls so far. The counts are not synchronized
    between threads, since they only help to choose a worker.
    """

    def __init__(self, address: Address, access: Access, updates: MeshUpdates) -> None:
        """Creates the connection, without connecting; the workers of a client share `updates`."""
        self.target = address.target
        self.connection = Connection(address, access)
        self.store = SceneStore(self.connection, updates)
        self.releases = Releases(self.connection)
        self.health = Health(self.connection.channel)
        self.under_way = 0
        self.asked = 0

    def __repr__(self) -> str:
        return f"Worker({self.target!r})"

    def close(self) -> None:
        """Closes the connection; calls in progress are cancelled."""
        self.releases.close()
        self.health.close()
        self.connection.close()

    def abandon(self) -> None:
        """Leaves all resources to the parent, in a forked child."""
        self.releases.abandon()
        self.connection.abandon()


@dataclass(frozen=True)
class Kept:
    """A forward state on a worker.

    `method` is the RPC that releases it, and `affinity` is the routing key of the call that computed it.
    """

    context_id: str
    method: Any
    affinity: str
    worker: Worker


class Releases:
    """Releases forward states of one worker in a background thread, which runs while there may be states to release."""

    def __init__(self, connection: Connection) -> None:
        """Stores the connection."""
        self._connection = connection
        # Finalizers may interrupt any thread, so they must not take a lock; SimpleQueue.put is safe in them.
        self._waiting: SimpleQueue[Kept | None] = SimpleQueue()
        # Contexts that will be queued for release, unless a backward call releases them.
        self._held: set[str] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent any more, because the client is closed or belongs to another process."""
        return self._is_closed

    def expect(self, release: Kept) -> None:
        """Notes a state that will later be added or forgotten, and starts the thread."""
        with self._lock:
            self._held.add(release.context_id)
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="lumigrad releases", daemon=True)
                self._thread.start()

    def add(self, release: Kept) -> None:
        """Queues the release of a state. Does not wait."""
        if not self._is_closed:
            self._waiting.put(release)

    def forget(self, release: Kept) -> None:
        """Notes that the worker has dropped a state by itself."""
        self._held.discard(release.context_id)

    def close(self) -> None:
        """Ends the thread; states that were not released yet stay on the worker until they expire."""
        self._is_closed = True
        self._waiting.put(None)

    def abandon(self) -> None:
        """Leaves all resources to the parent, in a forked child."""
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


class Context:
    """The forward state of one result; released with `release` or when the result is dropped."""

    def __init__(self, owner: object, kept: Kept | None) -> None:
        """Takes ownership of the state.

        Args:
            owner: the result; the state is released when the result is garbage-collected, before it expires.
            kept: the state, or None.
        """
        self._kept = kept
        if kept is not None:
            kept.worker.releases.expect(kept)
            self._finalizer = finalize(owner, kept.worker.releases.add, kept)

    def take(self, *, to_release: bool) -> Kept | None:
        """Returns the state for one call, or None; with `to_release` later calls get None."""
        kept = self._kept
        if to_release:
            self._kept = None
        # In a forked child, the state belongs to the parent.
        return None if kept is None or kept.worker.releases.is_closed else kept

    def forget(self, kept: Kept) -> None:
        """Notes that the worker no longer has the state, so that it need not be released."""
        self._kept = None
        self._finalizer.detach()
        kept.worker.releases.forget(kept)

    def release(self) -> None:
        """Releases the state on the worker, without waiting."""
        kept, self._kept = self._kept, None
        if kept is not None:
            self._finalizer.detach()
            kept.worker.releases.add(kept)
