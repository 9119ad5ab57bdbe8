"""The meshes of worlds on a worker: stored when they are needed, and found again when they were lost or changed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeVar
from weakref import WeakKeyDictionary

from lumigrad.client.errors import SceneNotFound, VersionMismatch
from lumigrad.client.transport import tracing
from lumigrad.client.transport.retry import MOST_REPAIRS, Deadline
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.world import World
from lumigrad.client.wire.worlds import References
from lumigrad.v1 import scene_pb2

T = TypeVar("T")


class MeshStore(Protocol):
    """What is needed of the store of scenes."""

    def put(self, scene: Mesh, deadline: Deadline) -> SceneHandle:
        """Stores a mesh."""

    def get(self, scene_id: str, with_tensors: bool, deadline: Deadline) -> SceneHandle:
        """The handle of what is stored under a name."""

    def current(self, handle: SceneHandle) -> SceneHandle:
        """What a handle names now."""

    def with_reference(
        self,
        handle: SceneHandle,
        attempt: Callable[[scene_pb2.SceneRef], SceneHandle],
        deadline: Deadline,
        *,
        any_version: bool = False,
    ) -> SceneHandle:
        """Calls with a scene's name, again if it was lost and could be put again."""


class WorldMeshes:
    """Finds what a worker calls the meshes of worlds."""

    def __init__(self, store: MeshStore) -> None:
        self._store = store
        self._residents: WeakKeyDictionary[Mesh, SceneHandle] = WeakKeyDictionary()
        # By scene_id, the last that this client made of it by an update.
        self._updated: dict[str, SceneHandle] = {}
        self._lock = threading.Lock()

    def resident(self, mesh: Mesh, deadline: Deadline, *, anew: bool = False) -> SceneHandle:
        """The handle of a mesh that is stored when it is first needed; `anew`: look whether it is still there."""
        with self._lock:
            handle = self._residents.get(mesh)
        if handle is None or anew:
            handle = self._store.put(mesh, deadline)
            with self._lock:
                self._residents[mesh] = handle
        return handle

    def note_update(self, handle: SceneHandle) -> None:
        """Notes the new version of a mesh, which stored worlds show from then on."""
        with self._lock:
            self._updated[handle.scene_id] = handle

    def references(
        self, world: World, deadline: Deadline, *, anew: bool, newest: bool = False, any_version: bool = False
    ) -> References:
        """The name and version of each obstacle's mesh.

        Args:
            world: the obstacles.
            deadline: of the calls that this takes.
            anew: look whether all that was stored is still there, and put again what is not.
            newest: of meshes that this client updated meanwhile, the last version.
            any_version: put the client's copy again where somebody updated a mesh meanwhile.
        """
        found: dict[int, SceneHandle] = {}
        for shape in (obstacle.shape for obstacle in world.obstacles):
            if isinstance(shape, Mesh) and id(shape) not in found:
                moved = self._moved(shape) if newest else None
                found[id(shape)] = (
                    self.resident(shape, deadline, anew=anew)
                    if moved is None
                    else self._found(moved, deadline, newest, any_version)
                )
            elif isinstance(shape, SceneHandle) and id(shape) not in found:
                handle = self._newest(shape) if newest else shape
                found[id(shape)] = (
                    self._found(handle, deadline, newest, any_version) if anew else self._store.current(handle)
                )
        handles = [found.get(id(obstacle.shape)) for obstacle in world.obstacles]
        return [
            None if handle is None else scene_pb2.SceneRef(scene_id=handle.scene_id, version=handle.version)
            for handle in handles
        ]

    def call(
        self, world: World, attempt: Callable[[References], T], deadline: Deadline, *, any_version: bool = False
    ) -> T:
        """Calls `attempt`, and again after a repair if the worker does not have a mesh as it was meant."""
        references, repairs = self.references(world, deadline, anew=False), 0
        while True:
            try:
                return attempt(references)
            except (SceneNotFound, VersionMismatch) as error:
                mine = {reference.scene_id for reference in references if reference is not None}
                if error.scene_id not in mine or repairs == MOST_REPAIRS:
                    raise
            repairs += 1
            tracing.note_repair("mesh")
            references = self.references(world, deadline, anew=True, any_version=any_version)

    def _found(self, handle: SceneHandle, deadline: Deadline, newest: bool, any_version: bool) -> SceneHandle:
        def look(reference: scene_pb2.SceneRef) -> SceneHandle:
            stored = self._store.get(reference.scene_id, False, deadline)
            if stored.version != reference.version and not newest:
                text = f"mesh {stored.scene_id} has version {stored.version}, not {reference.version}: it was updated"
                raise VersionMismatch(
                    f"{text} meanwhile; place its new handle", stored.scene_id, reference.version, stored.version
                )
            return stored

        return self._store.with_reference(handle, look, deadline, any_version=any_version)

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
