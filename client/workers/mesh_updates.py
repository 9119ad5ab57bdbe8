"""The meshes that a client has stored and updated, whichever of its workers have them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias
from weakref import WeakKeyDictionary

from lumigrad.client.base.cautions import said
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.world import Shape, World

# The handle of each obstacle's mesh; None: another shape, or a mesh that is not known.
Versions: TypeAlias = Sequence[SceneHandle | None]


class MeshUpdates:
    """The latest version of each mesh, which stored worlds show from its update on.

    The workers of a client share it: a world that moves to another worker takes the meshes as they are now.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The handles of the latest updates, by the ids of the meshes before and after.
        self._latest: dict[str, SceneHandle] = {}
        self._stored: WeakKeyDictionary[Mesh, SceneHandle] = WeakKeyDictionary()
        # The number of updates, and the meshes of worlds after that many.
        self._count = 0
        self._shown: WeakKeyDictionary[World, tuple[int, Versions]] = WeakKeyDictionary()

    def after_fork(self) -> None:
        """Renews the lock in a forked child, since a thread of the parent may have held it."""
        self._lock = threading.Lock()

    def note(self, before: SceneHandle, after: SceneHandle) -> None:
        """Notes an update, on any worker; a mesh that a worker had lost has another id afterwards."""
        with self._lock:
            self._count += 1
            self._latest[before.scene_id] = self._latest[after.scene_id] = after
            # Worlds that were made of the mesh itself may have it on another worker.
            known = self._stored.get(before.scene) if isinstance(before.scene, Mesh) else None
            if known is not None:
                self._latest[known.scene_id] = after

    def newest(self, handle: SceneHandle) -> SceneHandle:
        """Returns the handle of the latest update of a mesh, or `handle` if there was none since."""
        with self._lock:
            while True:
                after = self._latest.get(handle.scene_id)
                if after is None or (after.scene_id == handle.scene_id and after.version <= handle.version):
                    return handle
                handle = after

    def stored(self, mesh: Mesh) -> SceneHandle | None:
        """Returns the handle under which a mesh of a world is stored."""
        with self._lock:
            return self._stored.get(mesh)

    def note_stored(self, mesh: Mesh, handle: SceneHandle) -> SceneHandle:
        """Notes where a mesh of a world is stored, unless that is known already; returns the known handle."""
        with self._lock:
            known = self._stored.get(mesh)
            if known is None or known.scene_id in self._latest:
                self._stored[mesh] = known = handle
            return known

    def versions(self, world: World) -> Versions:
        """Returns the meshes that a stored world shows now; empty as long as no mesh was updated."""
        with self._lock:
            count = self._count
            known = self._shown.get(world)
        if not count:
            return ()
        if known is None or known[0] != count:
            known = count, [self._version(obstacle.shape) for obstacle in world.obstacles]
            with self._lock:
                self._shown[world] = known
        return known[1]

    def as_then(self, world: World, then: Versions) -> World | None:
        """Returns a world with the meshes that a stored one showed `then`; None if it shows the same ones now."""
        now = self.versions(world)
        then = then or [self._version(obstacle.shape, newest=False) for obstacle in world.obstacles if now]
        if [_key(handle) for handle in now] == [_key(handle) for handle in then]:
            return None
        pairs = zip(world.obstacles, then, strict=True)
        with said():
            shown = [obstacle if handle is None else replace(obstacle, shape=handle) for obstacle, handle in pairs]
            return World(shown, world.environments)

    def _version(self, shape: Shape, *, newest: bool = True) -> SceneHandle | None:
        handle = self.stored(shape) if isinstance(shape, Mesh) else shape
        if not isinstance(handle, SceneHandle):
            return None
        found = self.newest(handle) if newest else handle
        return replace(found, scene=shape) if found is handle and isinstance(shape, Mesh) else found


def _key(handle: SceneHandle | None) -> tuple[str, int] | None:
    return None if handle is None else (handle.scene_id, handle.version)
