"""The scenes of a worker, seen from a client, and the repair of those that the worker lost."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from google.protobuf.message import Message

from lumigrad.client.errors import DeadlineExceeded, SceneNotFound, VersionMismatch
from lumigrad.client.transport import affinity, tracing
from lumigrad.client.transport.connection import Connection
from lumigrad.client.transport.retry import MOST_REPAIRS, Deadline
from lumigrad.client.values.handle import Scene, SceneHandle
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.world import World
from lumigrad.client.wire.changes import SceneChanges
from lumigrad.client.wire.fingerprint import scene_fingerprints, updated_fingerprints
from lumigrad.client.wire.scenes import scene_hash, scene_message, scene_of
from lumigrad.client.wire.worlds import References
from lumigrad.client.workers.world_meshes import WorldMeshes
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import scene_pb2

T = TypeVar("T")
# The name and version of a scene.
_Key = tuple[str, int]
# Scenes that were lost and are remembered; one that is forgotten costs its handle another repair.
_MAX_RESTORED = 1 << 14
_UPDATE_ID_BYTES = 8
# Scenes that are put again at a time.
_REPAIRS = 16
_NAME_BYTES = 8


class SceneStore:
    """Stores, changes and finds scenes through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.meshes = WorldMeshes(self)
        # Of scenes that had to be put again, what they are called now; the least recently asked for first.
        self._restored: OrderedDict[_Key, _Key] = OrderedDict()
        self._lock = threading.Lock()
        # Who repairs a scene; others who miss it wait, since it need only be sent once. A world's meshes come with it.
        self._repairs = {kind: [threading.Lock() for _ in range(_REPAIRS)] for kind in (True, False)}
        # What was changed on other workers, and is to be changed here too: before, after, and how.
        self._owed: deque[tuple[SceneHandle, SceneHandle, SceneChanges]] = deque()
        self._catching = threading.Lock()
        # Worlds share meshes, which have to lie where they do: all of them go by one name.
        self.worlds = secrets.token_hex(_NAME_BYTES)

    def put(self, scene: Scene, deadline: Deadline, *, newest: bool = False, digest: str | None = None) -> SceneHandle:
        """Stores a scene, a world's meshes first; its bytes travel only if the worker does not have them.

        Args:
            scene: what to store.
            deadline: of all of it.
            newest: of a world's meshes that this client updated meanwhile, the last version.
            digest: the hash of its content, if the caller has it; of a world nobody can have it before.
        """
        with affinity.to(self.worlds if isinstance(scene, World | Mesh) else ""):
            references = (
                self.meshes.references(scene, deadline, anew=True, newest=newest) if isinstance(scene, World) else ()
            )
            digest = digest or scene_hash(scene, references)
            with affinity.to(digest):
                return self._put(scene, references, digest, deadline)

    def _put(self, scene: Scene, references: References, digest: str, deadline: Deadline) -> SceneHandle:
        try:
            found = self._connection.download(
                self._connection.scenes.Get, scene_pb2.GetRequest(content_hash=digest), deadline
            )
            return self.handle(found.header.info, scene)
        except SceneNotFound:

            def build(payload: PayloadWriter) -> Message:
                return scene_pb2.PutRequest(scene=scene_message(scene, payload, references), content_hash=digest)

            reply = self._connection.upload(self._connection.scenes.Put, build, deadline)
            return self.handle(reply.scene, scene)

    def update(self, handle: SceneHandle, changes: SceneChanges, deadline: Deadline) -> SceneHandle:
        """Replaces some tensors, or moves and switches obstacles; the handle's version must be the worker's."""
        update_id = secrets.token_hex(_UPDATE_ID_BYTES)

        def build(reference: scene_pb2.SceneRef, payload: PayloadWriter) -> Message:
            header = changes.message(handle, payload)
            header.update_id = update_id
            header.scene_id, header.expected_version = reference.scene_id, reference.version
            return header

        def attempt(reference: scene_pb2.SceneRef) -> Any:
            method = self._connection.scenes.Update
            return self._connection.upload(method, lambda payload: build(reference, payload), deadline)

        with affinity.to(handle.goes_by):
            reply = self.with_reference(handle, attempt, deadline)
            updated = replace(self.handle(reply.scene), replicas=handle.replicas)
        scene = changes.applied(handle)
        if scene is not None and handle.content is not None:
            content = updated_fingerprints(handle.content, scene, changes.tensors)
            updated = replace(updated, scene=scene, content=content)
        if updated.kind == "mesh":
            self.meshes.note_update(updated)
        return updated

    def owe(self, before: SceneHandle, after: SceneHandle, changes: SceneChanges) -> None:
        """Notes that a scene of which there is a copy here was changed on another worker."""
        if self._key_now(before) != (before.scene_id, before.version):
            with self._lock:
                self._owed.append((before, after, changes))

    def catch_up(self, deadline: Deadline) -> None:
        """Changes the copies here as their scenes were changed elsewhere."""
        while self._owed:
            with self._catching:
                if not self._owed:
                    return
                before, after, changes = self._owed[0]
                # One that somebody else has changed is another scene.
                with suppress(SceneNotFound, VersionMismatch):
                    self._note_restored(after, self.update(self.current(before), changes, deadline))
                self._owed.popleft()

    def get(self, scene_id: str, with_tensors: bool, deadline: Deadline) -> SceneHandle:
        """A handle to a scene by its name, with a copy of its content if asked; of a world with its meshes."""
        return self._got(scene_pb2.GetRequest(scene_id=scene_id, with_tensors=with_tensors), scene_id, deadline)

    def get_content(self, content_hash: str, deadline: Deadline) -> SceneHandle:
        """A handle to the scene with this content, with a copy of it."""
        return self._got(scene_pb2.GetRequest(content_hash=content_hash, with_tensors=True), content_hash, deadline)

    def _got(self, request: scene_pb2.GetRequest, name: str, deadline: Deadline) -> SceneHandle:
        with affinity.to(name):
            reply = self._connection.download(self._connection.scenes.Get, request, deadline)
            if not request.with_tensors:
                return self.handle(reply.header.info)
            meshes: dict[str, SceneHandle] = {}

            def mesh(mesh_id: str) -> SceneHandle:
                if mesh_id not in meshes:
                    meshes[mesh_id] = self.get(mesh_id, True, deadline)
                return meshes[mesh_id]

            return self.handle(reply.header.info, scene_of(reply.header.scene, reply.reader, mesh))

    def list(self, deadline: Deadline) -> tuple[SceneHandle, ...]:
        """Handles to all scenes, without content."""
        reply = self._connection.unary(self._connection.scenes.List, scene_pb2.ListRequest(), deadline)
        return tuple(self.handle(info) for info in reply.scenes)

    def delete(self, scene: SceneHandle | str, deadline: Deadline) -> None:
        """Forgets a scene, given by its handle or name."""
        name = scene if isinstance(scene, str) else self.current(scene).scene_id
        with affinity.to(name if isinstance(scene, str) else scene.goes_by):
            request = scene_pb2.DeleteRequest(scene_id=name)
            self._connection.remove(self._connection.scenes.Delete, request, deadline, SceneNotFound)

    def handle(self, info: scene_pb2.SceneInfo, scene: Scene | None = None) -> SceneHandle:
        """The handle of what this worker stores."""
        content = None if scene is None else scene_fingerprints(scene)
        return SceneHandle.of(info, scene, self._connection.target, affinity=affinity.current(), content=content)

    def current(self, handle: SceneHandle) -> SceneHandle:
        """What the handle names now: itself, or the scene that was put again for it."""
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
                # Scenes that are lost again and again would make the way ever longer.
                self._restored[older] = key
                self._restored.move_to_end(older)
        return key

    def with_reference(
        self,
        handle: SceneHandle,
        attempt: Callable[[scene_pb2.SceneRef], T],
        deadline: Deadline,
        *,
        any_version: bool = False,
    ) -> T:
        """Calls `attempt` with the scene's name and version, again if the scene was lost and could be put again.

        Args:
            handle: names the scene.
            attempt: the call.
            deadline: of all of it.
            any_version: also put the client's copy again if somebody updated the scene meanwhile.
        """
        repairs = 0
        with affinity.to(handle.goes_by):
            while True:
                now = self.current(handle)
                try:
                    return attempt(scene_pb2.SceneRef(scene_id=now.scene_id, version=now.version))
                except (SceneNotFound, VersionMismatch) as error:
                    is_lost = any_version or isinstance(error, SceneNotFound)
                    if handle.scene is None or not is_lost or repairs == MOST_REPAIRS:
                        raise
                repairs += 1
                self._repair(handle, handle.scene, now, deadline)

    def _repair(self, handle: SceneHandle, scene: Scene, lost: SceneHandle, deadline: Deadline) -> None:
        if handle.content != scene_fingerprints(scene):
            raise SceneNotFound(
                f"the worker lost scene {lost.scene_id}, and the arrays that it was made of were changed in place "
                "since: put the scene again for what they are now, or put a copy of arrays that go on changing",
                lost.scene_id,
            )
        turns = self._repairs[isinstance(scene, World)]
        turn = turns[hash(lost.scene_id) % len(turns)]
        if not turn.acquire(timeout=deadline.remaining_s()):
            raise DeadlineExceeded(f"the call waited {deadline.timeout_s:g} s for another one to send its scene again")
        try:
            if self.current(handle) == lost:
                tracing.note_repair("scene")
                self._note_restored(lost, self.put(scene, deadline, newest=True))
        finally:
            turn.release()

    def _note_restored(self, lost: SceneHandle, restored: SceneHandle) -> None:
        before, now = (lost.scene_id, lost.version), (restored.scene_id, restored.version)
        with self._lock:
            # Of workers that take turns each may find the other's scenes lost: what exists now ends every way, or the
            # ways would become circles.
            self._restored.pop(now, None)
            if now != before:
                self._restored[before] = now
            if len(self._restored) > _MAX_RESTORED:
                self._restored.popitem(last=False)
