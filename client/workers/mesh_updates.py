"""The meshes that a client has stored and updated, whichever of its workers have them."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.mesh import Mesh


class MeshUpdates:
    """The latest version of each mesh, which stored worlds show from its update on.

    The workers of a client share it: a world that moves to another worker takes the meshes as they are now.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The handles of the latest updates, by the ids of the meshes before and after.
        self._latest: dict[str, SceneHandle] = {}
        self._stored: WeakKeyDictionary[Mesh, SceneHandle] = WeakKeyDictionary()

    def after_fork(self) -> None:
        """Renews the lock in a forked child, since a thread of the parent may have held it."""
        self._lock = threading.Lock()

    def note(self, before: SceneHandle, after: SceneHandle) -> None:
        """Notes an update, on any worker; a mesh that a worker had lost has another id afterwards."""
        with self._lock:
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
