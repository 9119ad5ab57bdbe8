"""Which worker a call is for: what decides it, and whether another will do."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TypeAlias
from weakref import WeakKeyDictionary

from lumigrad.client.mesh import Mesh
from lumigrad.client.messages import scene_hash
from lumigrad.client.scene import Scene, SceneHandle
from lumigrad.client.world import World
from lumigrad.v1 import scene_pb2


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
