"""The workers of a client: one address or many, and which of them answers a call."""

from __future__ import annotations

import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, TypeVar

from lumigrad.client.base import forks
from lumigrad.client.errors import ContextLost, DeadlineExceeded, LumigradError, ResourceExhausted, Unavailable
from lumigrad.client.transport import affinity
from lumigrad.client.transport.access import Access
from lumigrad.client.transport.addresses import Address, Targets
from lumigrad.client.transport.retry import Deadline
from lumigrad.client.values.handle import Scene, SceneHandle
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.world import World
from lumigrad.client.wire.changes import SceneChanges
from lumigrad.client.workers.contexts import Kept
from lumigrad.client.workers.health import Standing
from lumigrad.client.workers.routing import Keys, Search, Subject, Wish, in_order
from lumigrad.client.workers.worker import Worker

T = TypeVar("T")
_NAME_BYTES = 8


class Workers(Protocol):
    """Who answers the calls of a client. Safe to use from several threads."""

    @property
    def target(self) -> str:
        """What the user named."""

    @property
    def retry_s(self) -> float:
        """How long a call is repeated while no worker answers, seconds."""

    def deadline(self, timeout_s: float | None) -> Deadline:
        """Starts the clock of a call; None: the client's time-out."""

    def key(self, scene: Scene) -> str:
        """What a scene's worker is chosen by; empty where there is no choice."""

    def call(self, subject: Subject, ask: Callable[[Worker], T], deadline: Deadline) -> T:
        """Asks the worker that a call about `subject` is for; another one, if there is one, where it cannot answer."""

    def call_holder(self, kept: Kept, ask: Callable[[Worker], T], deadline: Deadline) -> T:
        """Asks the worker that has a forward state; ContextLost if it cannot answer and others may."""

    def each(self, deadline: Deadline) -> Sequence[Worker]:
        """All that seem to be there."""

    def spread(self, subject: Subject, most: int) -> Sequence[Wish]:
        """For parts of a call about `subject`, up to so many: a wish each, for different workers."""

    def follow(self, leader: Worker, before: SceneHandle, after: SceneHandle, changes: SceneChanges) -> None:
        """Has copies of a scene, wherever they are, change as it did on the worker that it belongs to."""

    def close(self) -> None:
        """Ends all connections; calls under way are cancelled."""


class LoneWorker:
    """One worker at one address: its connection repeats calls while it is away."""

    def __init__(self, address: Address, access: Access) -> None:
        self.target = address.target
        self.retry_s = access.retry_s
        self._address = address
        self._access = access
        self._is_closed = False
        self._lock = threading.Lock()
        self._worker: Worker | None = Worker(address, access)
        forks.follow(self)

    @property
    def worker(self) -> Worker:
        """The one that there is."""
        if self._worker is None:
            with self._lock:
                self._worker = self._worker or Worker(self._address, self._access)
        return self._worker

    def after_fork(self, is_sound: bool) -> None:
        """Has another connection opened when it is needed, if that can be."""
        self._lock = threading.Lock()
        if self._worker is not None and not self._is_closed:
            self._worker.abandon()
            self._worker = None if is_sound else self._worker

    def deadline(self, timeout_s: float | None) -> Deadline:
        """Starts the clock of a call."""
        return Deadline(self._access.timeout_s if timeout_s is None else timeout_s)

    def key(self, scene: Scene) -> str:
        """Empty: there is no choice."""
        return ""

    def call(self, subject: Subject, ask: Callable[[Worker], T], deadline: Deadline) -> T:
        """Asks the one that there is; if that is a balancer, the worker that it keeps for such calls."""
        with affinity.to(self._name(subject)):
            return ask(self.worker)

    def call_holder(self, kept: Kept, ask: Callable[[Worker], T], deadline: Deadline) -> T:
        """Asks the one that there is."""
        with affinity.to(kept.goes_by):
            return ask(self.worker)

    def each(self, deadline: Deadline) -> Sequence[Worker]:
        """The one that there is."""
        return (self.worker,)

    def spread(self, subject: Subject, most: int) -> Sequence[Wish]:
        """There are no parts."""
        return (Wish(),)

    def follow(self, leader: Worker, before: SceneHandle, after: SceneHandle, changes: SceneChanges) -> None:
        """There are no copies."""

    def close(self) -> None:
        """Ends the connection."""
        self._is_closed = True
        self.worker.close()

    def _name(self, subject: Subject) -> str:
        if isinstance(subject, SceneHandle):
            return subject.goes_by
        if isinstance(subject, World | Mesh):
            return self.worker.store.worlds
        # Of its own, by which the forward state is found of what travels with its call.
        return "" if isinstance(subject, Wish) else secrets.token_hex(_NAME_BYTES)


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
