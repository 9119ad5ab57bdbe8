"""Which worker a scene belongs to: rendezvous hashing, and the search for workers that answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from lumigrad.client.errors import Cancelled, DeadlineExceeded, ResourceExhausted, SceneNotFound, Unavailable
from lumigrad.client.transport.retry import Deadline, retry_unavailable
from lumigrad.client.values.handle import Scene, SceneHandle
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.world import World
from lumigrad.client.wire.scenes import scene_hash
from lumigrad.client.workers.worker import Worker
from lumigrad.v1 import scene_pb2


def ranked(key: str, names: Iterable[str]) -> list[str]:
    """The names in the order in which a key prefers them.

    Each name has a weight that depends on the key and on that name alone. Without one name, the order of the others
    stays; a new one comes first for its share of the keys. Who comes first without it is the second: the keys of a
    worker that is lost spread over all others.
    """
    return sorted(names, key=lambda name: (_weight(key, name), name), reverse=True)


def _weight(key: str, name: str) -> bytes:
    return hashlib.blake2b(f"{key}\0{name}".encode(), digest_size=8).digest()


@dataclass(frozen=True)
class Wish:
    """What a call asks of the choice of its worker.

    Attributes:
        key: of the scene; the same key prefers the same workers in the same order. Empty: there is none, any will do.
        address: the worker that has the scene, if that is not for the key to say; empty: nobody knows.
        is_movable: whether the call can be made anywhere, since what a worker lacks can be sent there.
        copies: how many of the workers that the key prefers share the calls.
    """

    key: str = ""
    address: str = ""
    is_movable: bool = True
    copies: int = 1


# What is asked about: a stored scene, what travels with the call and needs its meshes stored, or nothing stored at all.
Subject: TypeAlias = SceneHandle | World | Mesh | Wish | None


class Keys:
    """The keys of scenes; all clients find the same ones."""

    def __init__(self) -> None:
        # Meshes are placed again and again, and hashing a large one takes milliseconds.
        self._of_meshes: WeakKeyDictionary[Mesh, str] = WeakKeyDictionary()

    def of(self, scene: Scene) -> str:
        """The key of a scene that is put: the hash of its content."""
        if isinstance(scene, Mesh):
            return self._of_mesh(scene)
        return scene_hash(scene, self._references(scene) if isinstance(scene, World) else ())

    def wish(self, subject: Subject) -> Wish:
        """Where a call about something should go."""
        if subject is None:
            return Wish()
        if isinstance(subject, Wish):
            return subject
        if isinstance(subject, Mesh):
            return Wish(self._of_mesh(subject))
        if isinstance(subject, World):
            # The poses that it is asked about change all the time; its meshes stay where they are.
            meshes = {reference.scene_id for reference in self._references(subject) if reference is not None}
            return Wish(hashlib.sha256(" ".join(sorted(meshes)).encode()).hexdigest() if meshes else "")
        key = subject.goes_by
        # One that was found by its name alone is where it was found.
        is_found = subject.scene is None or key == subject.scene_id
        return Wish(key, subject.address if is_found else "", subject.scene is not None, subject.replicas)

    def _references(self, world: World) -> list[scene_pb2.SceneRef | None]:
        """Each obstacle's mesh, by its key: what workers call it differs."""
        return [
            scene_pb2.SceneRef(scene_id=self._of_mesh(obstacle.shape), version=1)
            if isinstance(obstacle.shape, Mesh | SceneHandle)
            else None
            for obstacle in world.obstacles
        ]

    def _of_mesh(self, mesh: Mesh | SceneHandle) -> str:
        if isinstance(mesh, SceneHandle):
            return mesh.goes_by
        key = self._of_meshes.get(mesh)
        if key is None:
            key = self._of_meshes[mesh] = scene_hash(mesh)
        return key


T = TypeVar("T")
# A crowd that finds a worker full must not carry its scene to all others.
_MOST_SPILLS = 2


class Search:
    """Asks workers in the order in which a wish prefers them, until one has answered."""

    def __init__(self, members: Callable[[], Sequence[Worker]], wish: Wish) -> None:
        """`members` tells the workers that there are, each time anew."""
        self._members = members
        self._wish = wish
        # In this round; another one begins, after a pause, when everybody has been asked.
        self._asked: set[Worker] = set()
        self._missed: Unavailable | Cancelled | None = None
        self._failures: dict[str, Unavailable] = {}
        self._busy: ResourceExhausted | None = None
        self._spills = 0

    def run(self, ask: Callable[[Worker], T], deadline: Deadline, retry_s: float) -> T:
        """The answer of the first worker that gives one.

        Raises:
            Unavailable: none did, for `retry_s` and the time of the last attempt; the text names all of them.
        """
        try:
            return retry_unavailable(lambda: self._attempt(ask, deadline), deadline, retry_s, self._has_others)
        except Unavailable as error:
            if len(self._failures) < 2 or error.is_lasting:
                raise
            told = "; ".join(f"{target}: {failure}" for target, failure in self._failures.items())
            text = f"none of {len(self._failures)} workers answered: {told}"
            raise Unavailable(text, was_begun=error.was_begun) from error

    def _attempt(self, ask: Callable[[Worker], T], deadline: Deadline) -> T:
        while True:
            worker = self._next()
            try:
                with worker.busy():
                    worker.store.catch_up(deadline)
                    return ask(worker)
            except Unavailable as error:
                worker.health.doubt()
                self._failures[worker.target] = self._missed = error
                raise
            except DeadlineExceeded:
                worker.health.suspect()
                raise
            except Cancelled as error:
                self._missed = error
                raise
            except ResourceExhausted as error:
                self._busy = self._busy or error
                if error.retry_after_s is None or not self._may_spill():
                    busy, self._busy = self._busy, None
                    # After a pause another round begins, with the worker that the call prefers.
                    self._asked.clear()
                    self._spills = 0
                    raise busy from None
                self._spills += 1
            except SceneNotFound:
                # There is no copy of it here that could be put: it may be on another worker.
                if not self._has_others():
                    # One that did not answer may have it.
                    if self._missed is not None:
                        raise self._missed from None
                    raise

    def _may_spill(self) -> bool:
        return self._wish.is_movable and self._spills < _MOST_SPILLS and self._has_others()

    def _has_others(self) -> bool:
        return any(worker not in self._asked for worker in self._members())

    def _next(self) -> Worker:
        members = in_order(self._wish, self._members())
        worker = next((worker for worker in members if worker not in self._asked), None)
        if worker is None:
            self._asked.clear()
            self._missed = None
            worker = members[0]
        self._asked.add(worker)
        return worker


def in_order(wish: Wish, members: Sequence[Worker]) -> list[Worker]:
    """Whom to ask first, second, ...: who has it if nobody here does, then by the key or by load; away last."""
    if wish.key:
        by_target = {worker.target: worker for worker in members}
        ordered = [by_target[target] for target in ranked(wish.key, by_target)]
        shared = sorted(ordered[: wish.copies], key=lambda worker: worker.under_way)
        ordered[: wish.copies] = shared
    else:
        ordered = sorted(members, key=lambda worker: (worker.under_way, worker.asked))
    return sorted(ordered, key=lambda worker: _rank(wish, worker))


def _rank(wish: Wish, worker: Worker) -> tuple[bool, int, bool]:
    is_there = worker.target == wish.address
    return (not is_there and not wish.is_movable, worker.health.standing, not is_there)
