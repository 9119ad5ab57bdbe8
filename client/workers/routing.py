"""Chooses the worker that a scene belongs to, by rendezvous hashing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from lumigrad.client.values.handle import Scene, SceneHandle
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.world import World
from lumigrad.client.wire.scenes import scene_hash
from lumigrad.client.workers.worker import Worker
from lumigrad.v1 import scene_pb2


def ranked(key: str, names: Iterable[str]) -> list[str]:
    """Sorts names by their weights for a key, largest first.

    A weight depends only on the key and one name. Removing a name therefore keeps the order of the others, so the keys
    of a lost worker are spread over all other workers, and a new worker takes its share of the keys from all of them.
    """
    weights = {name: hashlib.blake2b(f"{key}\0{name}".encode(), digest_size=8).digest() for name in names}
    return sorted(weights, key=lambda name: (weights[name], name), reverse=True)


@lru_cache(maxsize=1024)
def _ranked_once(key: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the order of `ranked`, cached because it hashes every name and each call of a scene needs it."""
    return tuple(ranked(key, names))


class Route(NamedTuple):
    """The route of a call.

    Attributes:
        key: the routing key of the scene, which proxies may use too; it determines the order of preferred workers.
            Empty: any worker can serve the call.
        address: the worker that has the scene, if the key does not determine it; empty: unknown.
        is_movable: whether any worker can serve the call, because the client can upload the scene.
        copies: how many of the preferred workers share the calls.
    """

    key: str = ""
    address: str = ""
    is_movable: bool = True
    copies: int = 1


# The subject of a call: a stored scene, a world or mesh to be stored, an explicit route, or nothing stored.
Subject: TypeAlias = SceneHandle | World | Mesh | Route | None


class Keys:
    """The keys of scenes, which are the same in all clients."""

    def __init__(self) -> None:
        # One mesh may be in many worlds, and hashing a large mesh takes milliseconds.
        self._of_meshes: WeakKeyDictionary[Mesh, str] = WeakKeyDictionary()

    def of(self, scene: Scene) -> str:
        """Returns the key of a scene to be stored: the hash of its content."""
        if isinstance(scene, Mesh):
            return self._of_mesh(scene)
        return scene_hash(scene, self._references(scene) if isinstance(scene, World) else ())

    def route(self, subject: Subject) -> Route:
        """Returns the route of a call."""
        if subject is None:
            return Route()
        if isinstance(subject, Route):
            return subject
        if isinstance(subject, Mesh):
            return Route(self._of_mesh(subject))
        if isinstance(subject, World):
            # A world's poses change often, so only its meshes determine the key.
            meshes = {reference.scene_id for reference in self._references(subject) if reference is not None}
            return Route(hashlib.sha256(" ".join(sorted(meshes)).encode()).hexdigest() if meshes else "")
        return route_of(subject)

    def _references(self, world: World) -> list[scene_pb2.SceneRef | None]:
        """Names each obstacle's mesh by its key, because its id differs between workers."""
        return [
            scene_pb2.SceneRef(scene_id=self._of_mesh(obstacle.shape), version=1)
            if isinstance(obstacle.shape, Mesh | SceneHandle)
            else None
            for obstacle in world.obstacles
        ]

    def _of_mesh(self, mesh: Mesh | SceneHandle) -> str:
        if isinstance(mesh, SceneHandle):
            return mesh.affinity_key
        key = self._of_meshes.get(mesh)
        if key is None:
            key = self._of_meshes[mesh] = scene_hash(mesh)
        return key


def route_of(handle: SceneHandle) -> Route:
    """Returns the route of a call about a stored scene."""
    key = handle.affinity_key
    # If the handle was found by id and has no copy, calls go to the worker that returned it.
    is_found = handle.scene is None or key == handle.scene_id
    return Route(key, handle.address if is_found else "", handle.scene is not None, handle.replicas)


def in_order(route: Route, members: Sequence[Worker]) -> Sequence[Worker]:
    """Returns the workers in the order to try them: the route's address, then by key or load; unavailable ones last."""
    if len(members) == 1:
        return members
    if route.key:
        by_target = {worker.target: worker for worker in members}
        ordered = [by_target[target] for target in _ranked_once(route.key, tuple(by_target))]
        shared = sorted(ordered[: route.copies], key=lambda worker: worker.under_way)
        ordered[: route.copies] = shared
    else:
        ordered = sorted(members, key=lambda worker: (worker.under_way, worker.asked))
    return sorted(ordered, key=lambda worker: _rank(route, worker))


def _rank(route: Route, worker: Worker) -> tuple[bool, int, bool]:
    is_there = worker.target == route.address
    return (not is_there and not route.is_movable, worker.health.standing, not is_there)
