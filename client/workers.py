"""The workers of a client: one, or several (`pool`)."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from lumigrad.client import affinity, forks
from lumigrad.client.access import Access
from lumigrad.client.contexts import Kept
from lumigrad.client.mesh import Mesh
from lumigrad.client.retry import Deadline
from lumigrad.client.scene import Scene, SceneHandle
from lumigrad.client.scene_changes import SceneChanges
from lumigrad.client.targets import Address
from lumigrad.client.wish import Subject, Wish
from lumigrad.client.worker import Worker
from lumigrad.client.world import World

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
