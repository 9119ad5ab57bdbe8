"""The meshes of worlds on a worker: stored when they are needed, and found again when they were lost or changed."""

from __future__ import annotations

import threading
from typing import Protocol
from weakref import WeakKeyDictionary

from lumigrad.client.errors import SceneNotFound, VersionMismatch
from lumigrad.client.transport.call import Call
from lumigrad.client.transport.retry import MOST_REPAIRS
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.world import World
from lumigrad.client.wire.worlds import References
from lumigrad.v1 import scene_pb2


class MeshStore(Protocol):
    """What is needed of the store of scenes."""

    def put(self, scene: Mesh, call: Call) -> SceneHandle:
        """Stores a mesh."""

    def get(self, scene_id: str, with_tensors: bool, call: Call) -> SceneHandle:
        """The handle of what is stored under a name."""

    def current(self, handle: SceneHandle) -> SceneHandle:
        """What a handle names now."""

    def repair(self, handle: SceneHandle, lost: SceneHandle, call: Call) -> None:
        """Puts a scene again that the worker has lost."""


def is_repairable(handle: SceneHandle, error: Exception | None, any_version: bool) -> bool:
    """Whether what went wrong is made good by putting the scene again.

    Args:
        handle: names the scene.
        error: what the worker said of it.
        any_version: also where somebody updated the scene meanwhile.
    """
    is_lost = isinstance(error, SceneNotFound) or (any_version and isinstance(error, VersionMismatch))
    return is_lost and handle.scene is not None


class WorldMeshes:
    """Finds what a worker calls the meshes of worlds."""

    def __init__(self, store: MeshStore) -> None:
        self._store = store
        self._residents: WeakKeyDictionary[Mesh, SceneHandle] = WeakKeyDictionary()
        # By scene_id, the last that this client made of it by an update.
        self._updated: dict[str, SceneHandle] = {}
        self._lock = threading.Lock()

    def resident(self, mesh: Mesh, call: Call, *, anew: bool = False) -> SceneHandle:
        """The handle of a mesh that is stored when it is first needed; `anew`: look whether it is still there."""
        with self._lock:
            handle = self._residents.get(mesh)
        if handle is None or anew:
            handle = self._store.put(mesh, call)
            with self._lock:
                self._residents[mesh] = handle
        return handle

    def note_update(self, handle: SceneHandle) -> None:
        """Notes the new version of a mesh, which stored worlds show from then on."""
        with self._lock:
            self._updated[handle.scene_id] = handle

    def references(
        self, world: World, call: Call, *, anew: bool, newest: bool = False, any_version: bool = False
    ) -> References:
        """The name and version of each obstacle's mesh.

        Args:
            world: the obstacles.
            call: of the calls that this takes.
            anew: look whether all that was stored is still there, and put again what is not.
            newest: of meshes that this client updated meanwhile, the last version.
            any_version: put the client's copy again where somebody updated a mesh meanwhile.
        """
        found: dict[int, SceneHandle] = {}
        for shape in (obstacle.shape for obstacle in world.obstacles):
            if isinstance(shape, Mesh) and id(shape) not in found:
                moved = self._moved(shape) if newest else None
                found[id(shape)] = (
                    self.resident(shape, call, anew=anew)
                    if moved is None
                    else self._found(moved, call, newest, any_version)
                )
            elif isinstance(shape, SceneHandle) and id(shape) not in found:
                handle = self._newest(shape) if newest else shape
                found[id(shape)] = (
                    self._found(handle, call, newest, any_version) if anew else self._store.current(handle)
                )
        handles = [found.get(id(obstacle.shape)) for obstacle in world.obstacles]
        return [
            None if handle is None else scene_pb2.SceneRef(scene_id=handle.scene_id, version=handle.version)
            for handle in handles
        ]

    def _found(self, handle: SceneHandle, call: Call, newest: bool, any_version: bool) -> SceneHandle:
        call, repairs = call.to(handle.affinity_key), 0
        while True:
            now = self._store.current(handle)
            try:
                stored = self._store.get(now.scene_id, False, call)
                if newest or stored.version == now.version:
                    return stored
                text = f"mesh {stored.scene_id} has version {stored.version}, not {now.version}: it was updated"
                raise VersionMismatch(
                    f"{text} meanwhile; place its new handle", stored.scene_id, now.version, stored.version
                )
            except (SceneNotFound, VersionMismatch) as error:
                if repairs == MOST_REPAIRS or not is_repairable(handle, error, any_version):
                    raise
            repairs += 1
            self._store.repair(handle, now, call)

    def _moved(self, mesh: Mesh) -> SceneHandle | None:
        """What this client made of a mesh in a world by updates; None: nothing."""
        with self._lock:
            stored = self._residents.get(mesh)
        newest = None if stored is None else self._newest(stored)
        return None if newest is None or newest.scene is mesh else newest

    def _newest(self, handle: SceneHandle) -> SceneHandle:
        while True:
            handle = self._store.current(handle)
            with self._lock:
                updated = self._updated.get(handle.scene_id)
            if updated is None or updated.version <= handle.version:
                return handle
            handle = updated
