"""Where a call's scene comes from: memory, the spool, or the call itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lumigrad.kernels.errors import ArgumentError
from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.tensors import PayloadReader
from lumigrad.server.core import logs
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import InvalidArgumentError, SceneNotFoundError
from lumigrad.server.core.limits import require
from lumigrad.server.engines.content import Content, Outline, Tensors
from lumigrad.server.scenes.kinds import kind_of
from lumigrad.server.storage.runtime import Runtime
from lumigrad.server.storage.scene_spool import SceneSpool, SpooledScene
from lumigrad.server.storage.scenes import StoredScene
from lumigrad.v1 import scene_pb2

# How often a call that waits for somebody else's reading looks whether it is wanted.
_LOOK_SECONDS = 0.05


def stored_scene(runtime: Runtime, call: Call, scene_id: str, version: int = 0) -> StoredScene:
    """The scene of a name; `version` 0 means whichever is current."""
    try:
        return runtime.scenes.find(scene_id, version)
    except SceneNotFoundError:
        spool = runtime.spool
        if spool is None or not spool.touch(scene_id):
            raise
    with _alone(spool, call):
        if scene_id not in runtime.scenes:
            _restore(runtime, spool, call, lambda allocate: spool.read(scene_id, allocate))
    return runtime.scenes.find(scene_id, version)


def stored_content(runtime: Runtime, call: Call, content_hash: str) -> StoredScene | None:
    """The scene with this content, if there is one."""
    found, spool = runtime.scenes.find_content(content_hash), runtime.spool
    if found is not None or spool is None or not spool.has_content(content_hash):
        return found
    with _alone(spool, call):
        found = runtime.scenes.find_content(content_hash)
        if found is None:
            _restore(runtime, spool, call, lambda allocate: spool.read_content(content_hash, allocate))
    return found or runtime.scenes.find_content(content_hash)


def bring_meshes(runtime: Runtime, call: Call, scene: scene_pb2.Scene) -> None:
    """Have in memory what a world shows; what is nowhere is for the world's own check to tell."""
    if runtime.spool is None:
        return
    for name in {obstacle.mesh_id for obstacle in scene.world.obstacles}:
        if name and name not in runtime.scenes and runtime.spool.touch(name):
            stored_scene(runtime, call, name)


@contextmanager
def _alone(spool: SceneSpool, call: Call) -> Iterator[None]:
    while not spool.restoring.acquire(timeout=_LOOK_SECONDS):
        call.check()
    try:
        yield
    finally:
        spool.restoring.release()


def _restore(
    runtime: Runtime,
    spool: SceneSpool,
    call: Call,
    read: Callable[[Callable[[int], memoryview]], SpooledScene | None],
) -> None:
    """Bring a scene into memory, if it can be read and made."""
    with call.times.stage("restore"):
        found = read(runtime.transit.allocator(call))
        if found is None:
            return
        try:
            scene = _made(runtime, call, found)
        except (ArgumentError, InvalidArgumentError, ProtocolError, SceneNotFoundError) as error:
            # Limits are others now, or a mesh has gone that a world shows.
            logs.event("a scene of the spool is removed", logging.WARNING, scene=found.message.info.scene_id, why=error)
            spool.remove(found)
            return
        if found.is_valid:
            runtime.scenes.restore(scene)
        else:
            runtime.scenes.add(scene.content_hash, scene.content)
            spool.remove(found)


def _made(runtime: Runtime, call: Call, found: SpooledScene) -> StoredScene:
    info, message = found.message.info, found.message.scene
    kind = kind_of(message, "scene")
    bring_meshes(runtime, call, message)
    make = kind.arrival(message, runtime, f"scene.{kind.name}").receive(found.reader)
    content = runtime.executor.run(lambda: make(call.times), call)
    updates = (info,) if info.update_id else ()
    return StoredScene(info.scene_id, info.version, info.content_hash, content, info.update_id, updates)


@dataclass(frozen=True)
class Subjects:
    """The kinds of scenes that a service takes, and what callers are told of them."""

    kinds: Collection[str]
    text: str

    def check(self, kind: str, field: str) -> None:
        """Refuse a scene of another kind."""
        require(kind in self.kinds, field, self.text, kind)


@dataclass(frozen=True)
class Source:
    """A scene that is known by its header; its tensors follow with the payload."""

    kind: str
    outline: Outline
    # The stored scene, if it is one.
    reference: scene_pb2.SceneRef | None
    # Checks the payload; returns what gives the content, for the device's thread.
    receive: Callable[[PayloadReader], Callable[[], Content]]

    def tensors(self, reader: PayloadReader) -> Callable[[], Tensors]:
        """As `receive`, for engines that want nothing but the tensors."""
        load = self.receive(reader)
        return lambda: load().tensors


def source_of(
    spec: Any, subjects: Subjects, runtime: Runtime, call: Call, field: str, expected: str | None = None
) -> Source:
    """Look the scene up, or check the one in the header.

    `spec` has the fields `scene_ref` and `scene` in one `source`, and `field` is its path in the request; empty: it is
    the request. An empty scene is refused as not being the one `expected`.
    """
    source, below = spec.WhichOneof("source"), f"{field}." if field else ""
    require(source is not None, field or "source", "scene_ref or scene", "neither")
    if source == "scene_ref":
        return _stored(spec.scene_ref, subjects, runtime, call, f"{below}scene_ref")
    kind = kind_of(spec.scene, f"{below}scene", expected or " or ".join(subjects.kinds))
    subjects.check(kind.name, f"{below}scene")
    bring_meshes(runtime, call, spec.scene)
    arrival = kind.arrival(spec.scene, runtime, f"{below}scene.{kind.name}")

    def receive(reader: PayloadReader) -> Callable[[], Content]:
        make = arrival.receive(reader)
        return lambda: make(call.times)

    return Source(kind.name, arrival.outline, None, receive)


def _stored(reference: scene_pb2.SceneRef, subjects: Subjects, runtime: Runtime, call: Call, field: str) -> Source:
    scene = stored_scene(runtime, call, reference.scene_id, reference.version)
    subjects.check(scene.kind, field)
    named = scene_pb2.SceneRef(scene_id=scene.scene_id, version=scene.version)
    return Source(scene.kind, scene.content.outline, named, lambda _: lambda: scene.content)
