"""The workers of a client, at one address or many, and the choice of the worker for each call."""

from __future__ import annotations

import logging
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from lumigrad.client.base import forks
from lumigrad.client.base.arguments import seconds
from lumigrad.client.base.staying import Staying
from lumigrad.client.errors import LumigradError
from lumigrad.client.transport import tracing
from lumigrad.client.transport.addresses import Address, Targets
from lumigrad.client.transport.call import Call, Cancellation
from lumigrad.client.transport.channel import Access
from lumigrad.client.transport.retry import Attempts
from lumigrad.client.transport.tracing import Facts
from lumigrad.client.values.handle import Scene, SceneHandle
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.world import World
from lumigrad.client.wire.scenes import SceneChanges
from lumigrad.client.workers.attempts import RoutedAttempts
from lumigrad.client.workers.health import Standing
from lumigrad.client.workers.mesh_updates import MeshUpdates
from lumigrad.client.workers.routing import Keys, Route, Subject, in_order, route_of
from lumigrad.client.workers.worker import Worker

_log = logging.getLogger("lumigrad")
_NAME_BYTES = 8
# The longest and the shortest pause between look-ups of addresses that may change.
_LOOK_S = 5.0
_SOON_S = 0.5
_KEEPALIVE_S = 10.0


class Pool(Staying):
    """The workers of a client, one or many. Safe to use from several threads.

    Each call goes to the worker of its scene, or to the next in the scene's order if that worker is unavailable. The
    health of a lone worker is not watched, so a client without calls in progress survives a fork.

    Attributes:
        mesh_updates: the meshes that the client has updated.
    """

    def __init__(self, targets: Targets, access: Access) -> None:
        """Creates the workers, without connecting."""
        self.target = targets.text
        self.retry_s = access.retry_s
        self._targets = targets
        # Dead connections are detected sooner if there are several workers, because another one can answer.
        self._access = access if targets.is_lone else replace(access, keepalive_s=_KEEPALIVE_S)
        self._keys = Keys()
        self.mesh_updates = MeshUpdates()
        self._lock = threading.Lock()
        self._workers: dict[str, Worker] = {}
        # Removed workers, which may still have forward states or trainings of this client.
        self._retired: weakref.WeakSet[Worker] = weakref.WeakSet()
        self._look_soon = threading.Event()
        self._is_closed = False
        self._is_looking = False
        # The error of the last look-up.
        self._failure = ""
        if not targets.is_lone:
            # Ends the threads that watch the workers' health.
            weakref.finalize(self, _close_all, self._workers)
        if targets.is_fixed:
            self._adopt(targets.addresses())
        forks.follow(self)

    def begin(
        self,
        timeout_s: float | None,
        method: str,
        facts: Callable[[], Facts] | None = None,
        cancellation: Cancellation | None = None,
    ) -> Call:
        """Begins a call of the user, for a `with` block; `timeout_s` applies to the whole block (None: the client's).

        The call's trace span is named after the `method` that it mainly calls, and `facts` returns its attributes.
        """
        timeout_s = self._access.timeout_s if timeout_s is None else self.timeout_of(timeout_s)
        return Call(timeout_s, cancellation=cancellation, trace=tracing.begin(method, facts))

    def timeout_of(self, timeout_s: float | None) -> float:
        """Returns the caller's time-out, or the client's if that is None."""
        return self._access.timeout_s if timeout_s is None else seconds("timeout_s", timeout_s)

    def key(self, scene: Scene) -> str:
        """Returns the routing key of a scene, the hash of its content; empty for a lone worker."""
        return "" if self._targets.is_lone else self._keys.of(scene)

    def route(self, subject: Subject) -> Route:
        """Returns the route of a call. A lone worker may be a load balancer, which also needs keys."""
        if isinstance(subject, SceneHandle):
            return route_of(subject)
        if not self._targets.is_lone or isinstance(subject, Route):
            return self._keys.route(subject)
        if isinstance(subject, World | Mesh):
            return Route(self.members()[0].store.worlds)
        # The scene is sent with its call; a random key routes later calls to the worker that has the forward state.
        return Route(secrets.token_hex(_NAME_BYTES))

    def present(self) -> Sequence[Worker]:
        """Returns the workers that are not known to be unavailable; all of them if every one is unavailable."""
        members = self.members()
        return [worker for worker in members if worker.health.standing is not Standing.GONE] or members

    def attempts_at_each(self, call: Call) -> Iterator[tuple[Worker, Attempts]]:
        """Yields each present worker with its attempts; an unavailable worker is retried only if it is the only one."""
        is_one_of_many = len(self.members()) > 1
        for worker in self.present():
            yield worker, Attempts(call, self.retry_s, waits_for_room_only=is_one_of_many)

    def note_missing(self) -> None:
        """Requests an early look-up of the addresses, because a worker was missing."""
        self._look_soon.set()

    def put(self, scene: Scene, call: Call, *, route: Route | None = None) -> SceneHandle:
        """Stores a scene on the worker that it belongs to, or where `route` leads."""
        # A world's hash depends on the names that the worker gives to its meshes.
        digest = None if isinstance(scene, World) else self.key(scene)
        route = route or Route(self.key(scene) if digest is None else digest)
        attempts = RoutedAttempts(self, route, call)
        while True:
            with attempts as worker:
                return worker.store.put(scene, attempts.call, digest=digest)

    def spread(self, subject: Subject, most: int) -> Sequence[Route]:
        """Returns at most `most` routes to different workers for the parts of a call, ordered by its key or by load."""
        route = self.route(subject)
        if not route.is_movable:
            return (route,)
        ready = [worker for worker in in_order(route, self.members()) if worker.health.standing is Standing.READY]
        return [route._replace(address=worker.target) for worker in ready[:most]] or (route,)

    def follow(self, leader: Worker, before: SceneHandle, after: SceneHandle, changes: SceneChanges) -> None:
        """Updates the copies of a mesh on other workers; unavailable workers are updated by their next call."""
        self.mesh_updates.note(before, after)
        for worker in self.members():
            if worker is not leader:
                worker.store.note_change(before, after, changes)
                if worker.health.standing is not Standing.GONE:
                    with suppress(LumigradError):
                        worker.store.catch_up(Call(self.timeout_of(None)))

    def close(self) -> None:
        """Closes all connections."""
        with self._lock:
            self._is_closed = True
            self._look_soon.set()
            for worker in tuple(self._retired):
                worker.close()
        _close_all(self._workers)

    def after_fork(self, is_sound: bool) -> None:
        """In a forked child, leaves the connections to the parent; new ones are opened on demand if `is_sound`."""
        for worker in (*self._workers.values(), *self._retired):
            worker.abandon()
        if is_sound:
            self._workers.clear()
        self.mesh_updates.after_fork()
        self._retired = weakref.WeakSet()
        self._lock, self._look_soon, self._is_looking = threading.Lock(), threading.Event(), False

    def look(self) -> None:
        """Looks up the workers' addresses again.

        Raises:
            LumigradError: the look-up failed, and no addresses from an earlier one are known.
        """
        try:
            found = self._targets.addresses()
        except LumigradError as error:
            self._note_look_up(str(error))
            # Keep the addresses of the last successful look-up.
            if not self._workers:
                raise
        else:
            self._note_look_up("")
            self._adopt(found)

    def _note_look_up(self, failure: str) -> None:
        """Logs the outcome of a look-up if it differs from that of the last one; `failure` is empty on success."""
        before, self._failure = self._failure, failure
        if failure and failure != before:
            _log.warning("the look-up of workers fails, and is repeated: %s", failure)
        elif before and not failure:
            _log.info("the look-up of workers succeeds again")

    def members(self) -> tuple[Worker, ...]:
        """Returns the present list of workers."""
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
            found = {address.target: address for address in addresses}
            for target in [target for target in self._workers if target not in found]:
                worker = self._workers.pop(target)
                worker.health.close()
                self._retired.add(worker)
            for target, address in found.items():
                if target not in self._workers:
                    worker = self._workers[target] = Worker(address, self._access, self.mesh_updates)
                    if not self._targets.is_lone:
                        worker.health.start()

    def _keep_looking(self) -> None:
        with self._lock:
            if self._is_looking:
                return
            self._is_looking = True
        arguments = (weakref.ref(self), self._look_soon)
        threading.Thread(target=_look_on, args=arguments, name="lumigrad workers", daemon=True).start()


def _look_on(pool: weakref.ref[Pool], look_soon: threading.Event) -> None:
    """Looks up the workers' addresses repeatedly until the pool is closed or collected."""
    pause = threading.Event()
    while True:
        look_soon.wait(_LOOK_S)
        look_soon.clear()
        alive = pool()
        if alive is None or alive._is_closed:
            return
        try:
            alive.look()
        except BaseException as error:
            # No error may end this thread; a call that finds no workers raises it.
            if not isinstance(error, LumigradError):
                alive._note_look_up(f"{type(error).__name__}: {error}")
        del alive
        pause.wait(_SOON_S)


def _close_all(workers: dict[str, Worker]) -> None:
    for worker in tuple(workers.values()):
        worker.close()
