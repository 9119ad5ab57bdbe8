"""Several workers of one client: who they are, who is there, and who is asked."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from lumigrad.client import affinity, forks
from lumigrad.client.access import Access
from lumigrad.client.contexts import Kept
from lumigrad.client.errors import ContextLost, DeadlineExceeded, LumigradError, ResourceExhausted, Unavailable
from lumigrad.client.health import Standing
from lumigrad.client.retry import Deadline
from lumigrad.client.scene import Scene, SceneHandle
from lumigrad.client.scene_changes import SceneChanges
from lumigrad.client.search import Search, in_order
from lumigrad.client.targets import Address, Targets
from lumigrad.client.wish import Keys, Subject, Wish
from lumigrad.client.worker import Worker

T = TypeVar("T")
# Between two looks at who the workers are, where that may change; and after a call that found nobody, at the least.
_LOOK_S = 5.0
_KEEPALIVE_S = 10.0
_SOON_S = 0.5


class Pool:
    """Sends each call to the worker that its scene belongs to, and to the next one if that one is away."""

    def __init__(self, targets: Targets, access: Access) -> None:
        """Sets up, without connecting."""
        self.target = targets.text
        self.retry_s = access.retry_s
        self._targets = targets
        # Another worker is asked before the same one is again, and sooner than one who has nobody else would.
        self._access = replace(access, retry_s=0.0, keepalive_s=_KEEPALIVE_S)
        self._keys = Keys()
        self._lock = threading.Lock()
        self._workers: dict[str, Worker] = {}
        # No longer among the workers, but somebody may still have a forward state or a training there.
        self._retired: weakref.WeakSet[Worker] = weakref.WeakSet()
        self._is_missed = threading.Event()
        self._is_closed = False
        self._is_looking = False
        self._finalizer = weakref.finalize(self, _close_all, self._workers)
        if targets.is_fixed:
            self._adopt(targets.addresses())
        forks.follow(self)

    def deadline(self, timeout_s: float | None) -> Deadline:
        """Starts the clock of a call."""
        return Deadline(self._access.timeout_s if timeout_s is None else timeout_s)

    def key(self, scene: Scene) -> str:
        """The hash of its content."""
        return self._keys.of(scene)

    def call(self, subject: Subject, ask: Callable[[Worker], T], deadline: Deadline) -> T:
        """Asks the worker that `subject` belongs to, or the next one."""
        wish = self._keys.wish(subject)
        with affinity.to(wish.key):
            return Search(self._members, wish).run(ask, deadline, self.retry_s)

    def call_holder(self, kept: Kept, ask: Callable[[Worker], T], deadline: Deadline) -> T:
        """Asks the worker that has a forward state; what it cannot answer is computed again by whoever can."""
        worker = kept.worker
        try:
            with worker.busy():
                return ask(worker)
        except DeadlineExceeded:
            worker.health.suspect()
            raise
        except Unavailable as error:
            worker.health.doubt()
            self._is_missed.set()
            cause: LumigradError = error
        except ResourceExhausted as error:
            if error.retry_after_s is None:
                raise
            cause = error
        kept.discards.add(kept)
        raise ContextLost(f"the forward state cannot be reached: {cause}", kept.context_id) from cause

    def each(self, deadline: Deadline) -> Sequence[Worker]:
        """All but those that are known to be away; all, if that is everybody."""
        members = self._members()
        return tuple(worker for worker in members if worker.health.standing is not Standing.GONE) or members

    def spread(self, subject: Subject, most: int) -> Sequence[Wish]:
        """Wishes for the workers that the key prefers, or those with least to do."""
        wish = self._keys.wish(subject)
        if not wish.is_movable:
            return (wish,)
        ready = [worker for worker in in_order(wish, self._members()) if worker.health.standing is Standing.READY]
        return [replace(wish, address=worker.target) for worker in ready[:most]] or (wish,)

    def follow(self, leader: Worker, before: SceneHandle, after: SceneHandle, changes: SceneChanges) -> None:
        """Tells the other workers at once, or those that are away when they are asked next."""
        for worker in self._members():
            if worker is not leader:
                worker.store.owe(before, after, changes)
                if worker.health.standing is not Standing.GONE:
                    with suppress(LumigradError):
                        worker.store.catch_up(self.deadline(None))

    def close(self) -> None:
        """Ends all connections."""
        with self._lock:
            self._is_closed = True
            self._is_missed.set()
            for worker in tuple(self._retired):
                worker.close()
        self._finalizer()

    def after_fork(self, is_sound: bool) -> None:
        """Has other connections opened when they are needed, if that can be."""
        for worker in (*self._workers.values(), *self._retired):
            worker.abandon()
        if is_sound:
            self._workers.clear()
        self._retired = weakref.WeakSet()
        self._lock, self._is_missed, self._is_looking = threading.Lock(), threading.Event(), False

    def look(self) -> None:
        """Asks anew who the workers are.

        Raises:
            Unavailable: nobody could tell, and nobody is known.
        """
        try:
            self._adopt(self._targets.addresses())
        except Unavailable:
            # Whoever was told last is better than nobody.
            if not self._workers:
                raise

    def _members(self) -> tuple[Worker, ...]:
        if self._is_closed:
            raise LumigradError("this client is closed; make a new one")
        if not self._workers:
            self.look()
        if not self._targets.is_fixed:
            self._keep_looking()
        with self._lock:
            return tuple(self._workers.values())

    def _adopt(self, addresses: Sequence[Address]) -> None:
        with self._lock:
            if self._is_closed:
                return
            told = {address.target: address for address in addresses}
            for target in [target for target in self._workers if target not in told]:
                worker = self._workers.pop(target)
                worker.health.close()
                self._retired.add(worker)
            for target, address in told.items():
                if target not in self._workers:
                    worker = self._workers[target] = Worker(address, self._access)
                    worker.health.start()

    def _keep_looking(self) -> None:
        with self._lock:
            if self._is_looking:
                return
            self._is_looking = True
        arguments = (weakref.ref(self), self._is_missed)
        threading.Thread(target=_look_on, args=arguments, name="lumigrad workers", daemon=True).start()


def _look_on(pool: weakref.ref[Pool], is_missed: threading.Event) -> None:
    """Asks who the workers are until the pool is closed or forgotten."""
    pause = threading.Event()
    while True:
        is_missed.wait(_LOOK_S)
        is_missed.clear()
        alive = pool()
        if alive is None or alive._is_closed:
            return
        # Calls hear of it.
        with suppress(LumigradError):
            alive.look()
        del alive
        pause.wait(_SOON_S)


def _close_all(workers: dict[str, Worker]) -> None:
    for worker in tuple(workers.values()):
        worker.close()
