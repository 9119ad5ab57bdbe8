"""The scenes of a worker, seen from a client, and the repair of those that the worker lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from lumigrad.client.arrays import float32_array
from lumigrad.client.connection import Connection, Reply
from lumigrad.client.errors import Internal, InvalidArgument, SceneNotFound, VersionMismatch
from lumigrad.client.gaussians import Gaussians
from lumigrad.client.messages import scene_hash, scene_message
from lumigrad.client.retry import Deadline
from lumigrad.client.scene import SceneHandle
from lumigrad.client.spheres import Spheres
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import scene_pb2, tensor_pb2

T = TypeVar("T")

_TENSORS = {
    "spheres": ("positions", "colors", "radii", "opacities"),
    "gaussians": ("means", "quats", "scales", "covariances", "opacities", "sh", "colors"),
}


class SceneStore:
    """Stores, changes and finds scenes through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # Handles whose scene had to be put again, and what they name now.
        self._restored: dict[tuple[str, int], SceneHandle] = {}
        self._restored_lock = threading.Lock()

    def put(self, scene: Spheres | Gaussians, deadline: Deadline) -> SceneHandle:
        """Stores a scene; its bytes travel only if the worker does not have them."""
        digest = scene_hash(scene)
        try:
            found = self._connection.download(
                self._connection.scenes.Get, scene_pb2.GetRequest(content_hash=digest), deadline
            )
            return SceneHandle.of(found.header.info, scene)
        except SceneNotFound:
            payload = PayloadWriter()
            header = scene_pb2.PutRequest(scene=scene_message(scene, payload), content_hash=digest)
            reply = self._connection.upload(self._connection.scenes.Put, header, payload, deadline)
            return SceneHandle.of(reply.scene, scene)

    def update(self, handle: SceneHandle, tensors: dict[str, Any], deadline: Deadline) -> SceneHandle:
        """Replaces some tensors; the handle's version must be the worker's."""
        _check_names(handle.kind, tensors)
        local = None if handle.scene is None else replace(handle.scene, **tensors)
        if local is not None:
            arrays = local.tensors
        else:
            # Only the worker knows the shapes.
            arrays = {name: float32_array(name, value) for name, value in tensors.items()}
        payload = PayloadWriter()
        named = [tensor_pb2.NamedTensor(name=name, tensor=payload.add(arrays[name])) for name in tensors]

        def attempt(reference: scene_pb2.SceneRef) -> Any:
            header = scene_pb2.UpdateRequest(
                scene_id=reference.scene_id, expected_version=reference.version, tensors=named
            )
            return self._connection.upload(self._connection.scenes.Update, header, payload, deadline)

        return SceneHandle.of(self.with_reference(handle, attempt, deadline).scene, local)

    def get(self, scene_id: str, with_tensors: bool, deadline: Deadline) -> SceneHandle:
        """A handle to a scene by its name, with a copy of its content if asked."""
        request = scene_pb2.GetRequest(scene_id=scene_id, with_tensors=with_tensors)
        reply = self._connection.download(self._connection.scenes.Get, request, deadline)
        return SceneHandle.of(reply.header.info, _scene(reply) if with_tensors else None)

    def list(self, deadline: Deadline) -> tuple[SceneHandle, ...]:
        """Handles to all scenes, without content."""
        reply = self._connection.unary(self._connection.scenes.List, scene_pb2.ListRequest(), deadline)
        return tuple(SceneHandle.of(info) for info in reply.scenes)

    def delete(self, scene_id: str, deadline: Deadline) -> None:
        """Forgets a scene."""
        request = scene_pb2.DeleteRequest(scene_id=scene_id)
        self._connection.unary(self._connection.scenes.Delete, request, deadline)

    def current(self, handle: SceneHandle) -> SceneHandle:
        """What the handle names now: itself, or the scene that was put again for it."""
        with self._restored_lock:
            while (newer := self._restored.get((handle.scene_id, handle.version))) is not None:
                handle = newer
        return handle

    def with_reference(
        self,
        handle: SceneHandle,
        attempt: Callable[[scene_pb2.SceneRef], T],
        deadline: Deadline,
        *,
        any_version: bool = False,
    ) -> T:
        """Calls `attempt` with the scene's name and version, once more if the scene was lost and could be put again.

        Args:
            handle: names the scene.
            attempt: the call.
            deadline: of all of it.
            any_version: also put the client's copy again if somebody updated the scene meanwhile.
        """
        now = self.current(handle)
        try:
            return attempt(scene_pb2.SceneRef(scene_id=now.scene_id, version=now.version))
        except SceneNotFound:
            if handle.scene is None:
                raise
        except VersionMismatch as error:
            # A version from the past is what remains of a scene that the worker lost and got anew.
            if handle.scene is None or not (any_version or error.actual < error.expected):
                raise
        restored = self.put(handle.scene, deadline)
        self._note_restored(now, restored)
        return attempt(scene_pb2.SceneRef(scene_id=restored.scene_id, version=restored.version))

    def _note_restored(self, lost: SceneHandle, restored: SceneHandle) -> None:
        with self._restored_lock:
            # A worker may give out again a name that was itself replaced once: what exists now ends every chain, or
            # the chains would become circles.
            self._restored.pop((restored.scene_id, restored.version), None)
            if (restored.scene_id, restored.version) != (lost.scene_id, lost.version):
                self._restored[lost.scene_id, lost.version] = restored


def _check_names(kind: str, tensors: Iterable[str]) -> None:
    known = _TENSORS.get(kind, ())
    listed = " and ".join(", ".join(known).rsplit(", ", 1))
    if not tensors:
        raise InvalidArgument.of("tensors", f"expected at least one of {listed}, got none")
    for name in tensors:
        if known and name not in known:
            raise InvalidArgument.of(name, f"expected names out of {listed}, which {kind} have, got {name}")


def _scene(reply: Reply[Any]) -> Spheres | Gaussians:
    kind = reply.header.scene.WhichOneof("kind")
    if kind not in _TENSORS:
        raise Internal("the worker sent a scene of a kind that this client does not know; update Lumigrad")
    cloud = getattr(reply.header.scene, kind)
    arrays = {name: reply.reader.read(getattr(cloud, name), name) for name in _TENSORS[kind] if cloud.HasField(name)}
    if kind == "gaussians":
        return Gaussians(**{**dict.fromkeys(("quats", "scales")), **arrays})
    return Spheres(**arrays)
