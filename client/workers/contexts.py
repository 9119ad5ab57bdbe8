"""Forward states on the worker, as their owners here hold and lose them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from lumigrad.client.workers.releases import PendingRelease
from lumigrad.client.workers.worker import Worker


@dataclass(frozen=True)
class Kept(PendingRelease):
    """A forward state on the worker that has it; no other does."""

    worker: Worker

    @staticmethod
    def of(context_id: str, worker: Worker, release: Any, affinity: str) -> Kept | None:
        """What a reply tells; None: the worker kept none."""
        return Kept(context_id, release, affinity, worker) if context_id else None


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
            kept.worker.releases.expect(kept)
            self._finalizer = weakref.finalize(owner, kept.worker.releases.add, kept)
            self._finalizer.atexit = False

    def take(self, *, to_release: bool) -> Kept | None:
        """The state, for one call; None: there is none any more.

        Args:
            to_release: the call lets the worker forget the state, so no other call gets it.
        """
        kept = self._kept
        if to_release:
            self._kept = None
        # A state of the process that this one was forked from is that process's.
        return None if kept is None or kept.worker.releases.is_closed else kept

    def forget(self, kept: Kept) -> None:
        """Notes that the worker has no state any more, so that nobody asks it to release one."""
        self._kept = None
        self._finalizer.detach()
        kept.worker.releases.forget(kept)

    def release(self) -> None:
        """Lets the worker forget the state; soon, since nobody waits for it."""
        kept, self._kept = self._kept, None
        if kept is not None:
            self._finalizer.detach()
            kept.worker.releases.add(kept)
