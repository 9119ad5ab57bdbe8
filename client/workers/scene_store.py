"""The client's view of the scenes and meshes on one worker; stores lost ones again."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import replace
from weakref import WeakKeyDictionary

from google.protobuf.message import Message

from lumigrad.client.errors import DeadlineExceeded, SceneNotFound, VersionMismatch
from lumigrad.client.transport.call import Call
from lumigrad.client.transport.connection import Connection
from lumigrad.client.transport.retry import MOST_REPAIRS
from lumigrad.client.values.handle import Scene, SceneHandle
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.world import World
from lumigrad.client.wire.scenes import (
    References,
    SceneChanges,
    scene_fingerprints,
    scene_hash,
    scene_message,
    scene_of,
    updated_fingerprints,
)
from lumigrad.client.workers.mesh_updates import MeshUpdates
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import scene_pb2

# The name and version of a scene.
_Key = tuple[str, int]
# Limit of remembered lost scenes; the handle of a forgotten one needs another repair.
_MAX_RESTORED = 1 << 14
# Limit of scenes that are repaired at the same time.
_REPAIRS = 16
_NAME_BYTES = 8
# A scene's id begins with this many digits of its content hash.
_HASH_DIGITS = 16
# Page size of lists of scenes.
_LISTED = 4096


class SceneStore:
    """Stores, changes and finds scenes through one connection."""

    def __init__(self, connection: Connection, updates: MeshUpdates) -> None:
        self._connection = connection
        self.meshes = WorldMeshes(self, updates)
        # Maps lost scenes to the scenes stored in their place. Those may be lost in turn, so entries form rename
        # chains. The least recently used come first.
        self._restored: OrderedDict[_Key, _Key] = OrderedDict()
        self._lock = threading.Lock()
        # Locks for repairs, chosen by the scene's hash: calls that lack the same scene wait, so it is sent once. Worlds
        # have separate locks, since the repair of a world may repair its meshes.
        self._repairs = {kind: [threading.Lock() for _ in range(_REPAIRS)] for kind in (True, False)}
        # Changes made on other workers and not yet on this one: the handles before and after, the changes, and the id
        # of the update.
        self.changes: deque[tuple[SceneHandle, SceneHandle, SceneChanges, str]] = deque()
        self._catching = threading.Lock()
        # The routing key of all worlds and meshes, which must be on one worker because worlds share meshes.
        self.worlds = secrets.token_hex(_NAME_BYTES)

    def put(self, scene: Scene, call: Call, *, newest: bool = False, digest: str | None = None) -> SceneHandle:
        """Stores a scene, a world's meshes first; its bytes travel only if the worker does not have them.

        With `newest`, a world uses the latest versions of the meshes that this client has updated. `digest` is the hash
        of the content, if the caller has computed it; never given for a world.
        """
        call = call.to(self.worlds if isinstance(scene, World | Mesh) else "")
        references = self.meshes.references(scene, call, anew=True, newest=newest) if isinstance(scene, World) else ()
        digest = digest or scene_hash(scene, references)
        return self._put(scene, references, digest, call.to(digest))

    def _put(self, scene: Scene, references: References, digest: str, call: Call) -> SceneHandle:
        try:
            found = self._connection.download(
                self._connection.scenes.Get, scene_pb2.GetRequest(content_hash=digest), call
            )
            return self.handle(found.header.info, call, scene)
        except SceneNotFound:

            def build(payload: PayloadWriter) -> Message:
                return scene_pb2.PutRequest(scene=scene_message(scene, payload, references), content_hash=digest)

            reply = self._connection.upload(self._connection.scenes.Put, build, call)
            return self.handle(reply.scene, call, scene)

    def update(
        self, handle: SceneHandle, reference: scene_pb2.SceneRef, changes: SceneChanges, update_id: str, call: Call
    ) -> SceneHandle:
        """Replaces some tensors, or moves, enables or disables obstacles; the versions here and there must match.

        `reference` is the worker's id and version of the scene. Repetitions of an update have the same `update_id`, so
        that the worker applies it once.
        """

        def build(payload: PayloadWriter) -> Message:
            header = changes.message(handle, payload)
            header.update_id = update_id
            header.scene_id, header.expected_version = reference.scene_id, reference.version
            return header

        call = call.to(handle.affinity_key)
        reply = self._connection.upload(self._connection.scenes.Update, build, call)
        updated = replace(self.handle(reply.scene, call), replicas=handle.replicas)
        scene = changes.applied(handle)
        if scene is not None and handle.content is not None:
            content = updated_fingerprints(handle.content, scene, changes.tensors)
            updated = replace(updated, scene=scene, content=content)
        return updated

    def note_change(self, before: SceneHandle, after: SceneHandle, changes: SceneChanges) -> None:
        """Notes a change of a scene on another worker, if this worker may have the scene or a copy of it."""
        key = before.scene_id, before.version
        resident = self.meshes.find(before.scene)
        if resident is not None:
            self.note_copy(before, resident)
        # The change before this one may still be pending here. Looked for first, and in a copy: another thread may end
        # it now, after which the copy of the scene is known.
        is_pending = any((last.scene_id, last.version) == key for _, last, _, _ in tuple(self.changes))
        has_copy = self._key_now(before) != key or before.address == self._connection.target
        if is_pending or has_copy:
            self.changes.append((before, after, changes, secrets.token_hex(_NAME_BYTES)))

    def catch_up(self, call: Call) -> None:
        """Applies changes that were made on other workers to this worker's copies."""
        while self.changes:
            with self._catching:
                if not self.changes:
                    return
                before, after, changes, update_id = self.changes[0]
                # A copy that another client has changed stays as it is.
                with suppress(SceneNotFound, VersionMismatch):
                    changed = self.update(before, self.reference(before), changes, update_id, call)
                    self._note_restored(after, changed)
                self.changes.popleft()

    def at(self, address: str, call: Call) -> SceneHandle:
        """Makes the worker read a file; calls name its address, so a worker that dropped the scene reads it again."""
        handle = self.get(address, False, call, field="name")
        return replace(handle, scene_id="", version=0, name=address, affinity=address)

    def read_again(self, name: str, drawn: scene_pb2.SceneRef, call: Call) -> scene_pb2.SceneRef:
        """Makes the worker read files that it has dropped; raises SceneNotFound if they are not what was `drawn`."""
        found = self.get(name, False, call, field="name")
        if drawn.version != found.version or drawn.scene_id[:_HASH_DIGITS] != found.scene_id[:_HASH_DIGITS]:
            text = f"{name} has changed since the frame was rendered, and the worker no longer has what it was"
            raise SceneNotFound(f"{text}: render the frame again", scene_id=drawn.scene_id)
        return scene_pb2.SceneRef(scene_id=found.scene_id, version=found.version)

    def get(self, name: str, with_tensors: bool, call: Call, *, field: str = "scene_id") -> SceneHandle:
        """Returns a handle to a scene, found by its id or name.

        With `with_tensors` the handle has a copy of the scene; a world's copy includes its meshes.
        """
        request = scene_pb2.GetRequest(with_tensors=with_tensors)
        setattr(request, field, name)
        call = call.to(name)
        reply = self._connection.download(self._connection.scenes.Get, request, call)
        if not with_tensors:
            return self.handle(reply.header.info, call)
        meshes: dict[str, SceneHandle] = {}

        def mesh(mesh_id: str) -> SceneHandle:
            if mesh_id not in meshes:
                meshes[mesh_id] = self.get(mesh_id, True, call)
            return meshes[mesh_id]

        return self.handle(reply.header.info, call, scene_of(reply.header.scene, reply.reader, mesh))

    def list(self, call: Call) -> tuple[SceneHandle, ...]:
        """Returns handles to all scenes, without content."""
        found: list[SceneHandle] = []
        request = scene_pb2.ListRequest(page_size=_LISTED)
        while True:
            reply = self._connection.unary(self._connection.scenes.List, request, call)
            found += (self.handle(info, call) for info in reply.scenes)
            if not reply.next_page_token:
                return tuple(found)
            request.page_token = reply.next_page_token

    def delete(self, scene: SceneHandle | str, call: Call, *, one_put: bool = False) -> None:
        """Deletes a scene, given by its handle or id; with `one_put` only if its content was not put a second time."""
        name, affinity = (
            (scene, scene) if isinstance(scene, str) else (self.current(scene).scene_id, scene.affinity_key)
        )
        request = scene_pb2.DeleteRequest(scene_id=name, one_put=one_put)
        self._connection.unary(self._connection.scenes.Delete, request, call.to(affinity))

    def handle(self, info: scene_pb2.SceneInfo, call: Call, scene: Scene | None = None) -> SceneHandle:
        """Returns the handle of a stored scene; calls that use it are routed as `call`."""
        content = None if scene is None else scene_fingerprints(scene)
        return SceneHandle.of(info, scene, self._connection.target, affinity=call.affinity, content=content)

    def reference(self, handle: SceneHandle) -> scene_pb2.SceneRef:
        """Returns the worker's id and version of the handle's scene, or the name of one that it reads from files."""
        if not handle.scene_id:
            return scene_pb2.SceneRef(name=handle.name)
        scene_id, version = self._key_now(handle)
        return scene_pb2.SceneRef(scene_id=scene_id, version=version)

    def current(self, handle: SceneHandle) -> SceneHandle:
        """Returns the current handle: `handle` itself, or the handle of the scene that replaced its lost one."""
        if not self._restored:
            return handle
        scene_id, version = self._key_now(handle)
        return replace(handle, scene_id=scene_id, version=version)

    def _key_now(self, handle: SceneHandle) -> _Key:
        passed: list[_Key] = []
        with self._lock:
            key = handle.scene_id, handle.version
            while (newer := self._restored.get(key)) is not None:
                passed.append(key)
                key = newer
            for older in passed:
                # Shorten the rename chain, which would otherwise grow with each loss.
                self._restored[older] = key
                self._restored.move_to_end(older)
        return key

    def repair(self, handle: SceneHandle, lost: SceneHandle, call: Call) -> None:
        """Stores the client's copy of a scene again.

        `lost` is the handle that the failed call used. If another thread has stored the scene again since then, nothing
        is done.
        """
        scene, call = handle.scene, call.to(handle.affinity_key)
        assert scene is not None
        if handle.content != scene_fingerprints(scene):
            raise SceneNotFound(
                f"the worker lost scene {lost.scene_id}, and the arrays that it was made of were changed in place "
                "since: put the scene again to store their present content, or put a copy if the arrays keep changing",
                scene_id=lost.scene_id,
            )
        locks = self._repairs[isinstance(scene, World)]
        lock = locks[hash(lost.scene_id) % len(locks)]
        if not lock.acquire(timeout=call.remaining_s()):
            raise DeadlineExceeded(f"the call waited {call.timeout_s:g} s for another call to send its scene again")
        try:
            if self.current(handle) == lost:
                call.trace.note_repair("scene")
                self._note_restored(lost, self.put(scene, call, newest=True))
        finally:
            lock.release()

    def note_copy(self, handle: SceneHandle, copy: SceneHandle) -> None:
        """Notes that this worker has a copy of another worker's scene."""
        if handle.address != copy.address:
            self._note_restored(handle, copy)

    def _note_restored(self, lost: SceneHandle, restored: SceneHandle) -> None:
        before, now = (lost.scene_id, lost.version), (restored.scene_id, restored.version)
        with self._lock:
            # Behind a balancer, calls alternate between workers that lack each other's scenes. The scene that exists
            # now must end every rename chain, or the chains would become cycles.
            self._restored.pop(now, None)
            if now != before:
                self._restored[before] = now
            if len(self._restored) > _MAX_RESTORED:
                self._restored.popitem(last=False)


def is_repairable(handle: SceneHandle, error: Exception | None, any_version: bool) -> bool:
    """Whether storing the scene again resolves `error`; with `any_version` also if it was updated meanwhile."""
    is_lost = isinstance(error, SceneNotFound) or (any_version and isinstance(error, VersionMismatch))
    return is_lost and handle.scene is not None


class WorldMeshes:
    """Maps the meshes of worlds to their ids on one worker."""

    def __init__(self, store: SceneStore, updates: MeshUpdates) -> None:
        self._store = store
        self._updates = updates
        self._residents: WeakKeyDictionary[Mesh, SceneHandle] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def find(self, scene: Scene | None) -> SceneHandle | None:
        """Returns the handle of a mesh if this worker has it for a world."""
        with self._lock:
            return self._residents.get(scene) if isinstance(scene, Mesh) else None

    def resident(self, mesh: Mesh, call: Call, *, anew: bool = False) -> SceneHandle:
        """Returns the handle of a mesh, and stores the mesh on first use, or with `anew` if it is missing."""
        with self._lock:
            handle = self._residents.get(mesh)
        if handle is None or anew:
            # The handle would keep the mesh, and with it the entry, as long as the client lives.
            handle = replace(self._store.put(mesh, call), scene=None)
            with self._lock:
                self._residents[mesh] = handle
            self._store.note_copy(self._updates.note_stored(mesh, handle), handle)
        return replace(handle, scene=mesh)

    def references(
        self, world: World, call: Call, *, anew: bool, newest: bool = False, any_version: bool = False
    ) -> References:
        """Returns the id and version of each obstacle's mesh.

        With `anew`, checks that the worker has all meshes and stores missing ones again; with `any_version` also those
        that were updated meanwhile. With `newest`, uses the latest versions of meshes that this client has updated.
        """
        found: dict[int, SceneHandle] = {}
        for shape in (obstacle.shape for obstacle in world.obstacles):
            if isinstance(shape, Mesh) and id(shape) not in found:
                updated = self._updated_handle(shape) if newest else None
                found[id(shape)] = (
                    self.resident(shape, call, anew=anew)
                    if updated is None
                    else self._found(updated, call, newest, any_version)
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
                    f"{text} meanwhile; use its new handle in the world",
                    scene_id=stored.scene_id,
                    expected=now.version,
                    actual=stored.version,
                )
            except (SceneNotFound, VersionMismatch) as error:
                if repairs == MOST_REPAIRS or not is_repairable(handle, error, any_version):
                    raise
            repairs += 1
            self._store.repair(handle, now, call)

    def _updated_handle(self, mesh: Mesh) -> SceneHandle | None:
        """Returns the handle of this client's last update of a mesh in a world, or None if there was none."""
        stored = self._updates.stored(mesh)
        if stored is None:
            return None
        newest, now = self._newest(stored), self._store.current(stored)
        return None if (newest.scene_id, newest.version) == (now.scene_id, now.version) else newest

    def _newest(self, handle: SceneHandle) -> SceneHandle:
        while True:
            # An update may have been made of the mesh, or of the scene that replaced it here.
            newest = self._updates.newest(self._store.current(self._updates.newest(handle)))
            if (newest.scene_id, newest.version) == (handle.scene_id, handle.version):
                return newest
            handle = newest
