"""The kinds of scenes, and how a call finds its scene: in memory, in the spool, or in the call itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from lumigrad.kernels.errors import ArgumentError
from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.hashing import content_hash
from lumigrad.protos.tensors import PayloadReader
from lumigrad.server.core import logs
from lumigrad.server.core.call import Allocate, Call, StageTimes, held
from lumigrad.server.core.errors import InvalidArgumentError, SceneFilesError, SceneNotFoundError
from lumigrad.server.core.limits import require
from lumigrad.server.device.memory import Cost
from lumigrad.server.engines.base import RenderEngine
from lumigrad.server.engines.content import Content
from lumigrad.server.engines.gaussians import GAUSSIANS, GaussianRules
from lumigrad.server.engines.spheres import SPHERES, SphereRules
from lumigrad.server.scenes.clouds import Arrival, Cloud, SceneKind
from lumigrad.server.scenes.mesh import MeshKind
from lumigrad.server.scenes.target_image import TargetImageRules
from lumigrad.server.scenes.world import WorldKind
from lumigrad.server.storage.named import NamedScene
from lumigrad.server.storage.scene_files import SceneSpool, SpooledScene
from lumigrad.server.storage.stored_scene import StoredScene
from lumigrad.server.storage.tenants import Runtime
from lumigrad.v1 import scene_pb2

ENGINES: Mapping[str, RenderEngine] = {engine.name: engine for engine in (SPHERES, GAUSSIANS)}
CLOUDS: Mapping[str, Cloud] = {rules.name: Cloud(rules) for rules in (SphereRules(), GaussianRules())}
_OTHER_KINDS: tuple[SceneKind, ...] = (MeshKind(), WorldKind(), Cloud(TargetImageRules()))
SCENE_KINDS: Mapping[str, SceneKind] = {**CLOUDS, **{kind.name: kind for kind in _OTHER_KINDS}}


def kind_of(scene: scene_pb2.Scene, field: str, expected: str | None = None) -> SceneKind:
    """The kind of a scene; one that is empty is refused as not being the one `expected`, or any."""
    name = scene.WhichOneof("kind")
    require(name is not None, field, expected or f"one of {', '.join(SCENE_KINDS)}", "none")
    return SCENE_KINDS[str(name)]


def stored_scene(runtime: Runtime, call: Call, scene_id: str, version: int = 0) -> StoredScene:
    """The scene with this id; `version` 0 means the current one."""
    try:
        return runtime.scenes.find(scene_id, version)
    except SceneNotFoundError:
        spool = runtime.spool
        if spool is None or not spool.touch(scene_id):
            raise
    with held(spool.exclusive, call):
        if not runtime.scenes.touch(scene_id):
            _restore(runtime, spool, call, lambda allocate: spool.read(scene_id, allocate))
    return runtime.scenes.find(scene_id, version)


def stored_content(runtime: Runtime, call: Call, digest: str, *, counts: bool = True) -> StoredScene | None:
    """The scene with this content, if there is one; it `counts` as an upload if it is there."""
    found, spool = runtime.scenes.find_content(digest, counts=counts), runtime.spool
    if found is not None or spool is None or not spool.has_content(digest):
        return found
    with held(spool.exclusive, call):
        found = runtime.scenes.find_content(digest, counts=counts)
        if found is None:
            _restore(runtime, spool, call, lambda allocate: spool.read_content(digest, allocate))
    return found or runtime.scenes.find_content(digest, counts=counts)


def named_scene(runtime: Runtime, call: Call, name: str) -> StoredScene:
    """The scene of this name, read from its files unless it is stored as they have it."""
    named = runtime.named.get(name)
    if named is None:
        raise SceneNotFoundError(name)

    def present() -> StoredScene | None:
        known = named.content_hash
        return stored_content(runtime, call, known, counts=False) if known else None

    found = present()
    if found is not None:
        return found
    with held(named.reading, call):
        return present() or read_named(runtime, named, call)


def read_named(runtime: Runtime, named: NamedScene, call: Call | None) -> StoredScene:
    """Read a scene from its files, and store it. Without a call its memory is not that of a payload."""
    times = StageTimes() if call is None else call.times
    with times.stage("restore"):
        take = runtime.transfer.allocate if call is None else runtime.payload_memory.allocator(call)
        message, reader = named.read(_checked(runtime, take))
        kind = kind_of(message, "scene")
        try:
            make = kind.arrival(message, runtime, kind.name).receive(reader)
            content = runtime.executor.run(lambda: make(times), call, Cost(is_repeatable=True))
        except (ArgumentError, InvalidArgumentError) as error:
            raise SceneFilesError(f"scene {named.name}: {error}") from error
        named.content_hash = content_hash(getattr(message, kind.name), reader.read)
    with runtime.scenes.room(content.bytes, call):
        return runtime.scenes.add(named.content_hash, content)[0]


def restore_meshes(runtime: Runtime, call: Call, scene: scene_pb2.Scene) -> None:
    """Bring the meshes of a world from the spool into memory; the check of the world refuses those that are nowhere."""
    if runtime.spool is None:
        return
    for name in {obstacle.mesh_id for obstacle in scene.world.obstacles}:
        if name and not runtime.scenes.touch(name) and runtime.spool.touch(name):
            stored_scene(runtime, call, name)


def _checked(runtime: Runtime, allocate: Allocate) -> Allocate:
    """Refuse a scene that can never fit, before memory for it is allocated."""

    def checked(nbytes: int) -> memoryview:
        runtime.memory.check(Cost.of_payload(nbytes))
        runtime.scenes.check(nbytes)
        return allocate(nbytes)

    return checked


def _restore(
    runtime: Runtime,
    spool: SceneSpool,
    call: Call,
    read: Callable[[Callable[[int], memoryview]], SpooledScene | None],
) -> None:
    """Bring a scene into memory, if it can be read and made; one that can never fit is refused before it is read."""
    with call.times.stage("restore"):
        found = read(_checked(runtime, runtime.payload_memory.allocator(call)))
        if found is None:
            return
        with runtime.scenes.room(found.message.info.bytes, call):
            try:
                scene = _made(runtime, call, found)
            except (ArgumentError, InvalidArgumentError, ProtocolError, SceneNotFoundError) as error:
                # The limits have changed, or a mesh of the world has gone.
                scene_id = found.message.info.scene_id
                logs.event("removing an invalid scene from the spool", logging.WARNING, scene=scene_id, why=error)
                spool.remove(found)
                return
            if found.is_valid:
                runtime.scenes.restore(scene)
                return
            runtime.scenes.add(scene.content_hash, scene.content)
        spool.remove(found)


def _made(runtime: Runtime, call: Call, found: SpooledScene) -> StoredScene:
    info, message = found.message.info, found.message.scene
    kind = kind_of(message, "scene")
    restore_meshes(runtime, call, message)
    make = kind.arrival(message, runtime, f"scene.{kind.name}").receive(found.reader)
    content = runtime.executor.run(lambda: make(call.times), call, Cost.of_payload(found.message.payload_bytes))
    updates = (info,) if info.update_id else ()
    return StoredScene(info.scene_id, info.version, info.content_hash, content, info.update_id, updates)


@dataclass(frozen=True)
class AcceptedKinds:
    """The kinds of scenes that a service accepts, and how error texts describe them."""

    kinds: Collection[str]
    text: str


class InlineScene:
    """A scene that comes with its call: its header was checked, and its tensors follow in the payload.

    It has the attributes and methods of a `StoredScene` that calls use.
    """

    reference = None

    def __init__(self, kind: str, arrival: Arrival, call: Call) -> None:
        self.kind = kind
        self.outline = arrival.outline
        self._arrival = arrival
        self._call = call

    def receive(self, reader: PayloadReader) -> None:
        """Check the tensors in the payload."""
        self._make = self._arrival.receive(reader)

    def load(self) -> Content:
        """Upload the tensors and check their values; called on the device's thread, after `receive`."""
        return self._make(self._call.times)


def find_scene(
    spec: Any, accepted: AcceptedKinds, runtime: Runtime, call: Call, field: str, expected: str | None = None
) -> InlineScene | StoredScene:
    """Look up the stored scene that a request names, or check the header of the scene in the request.

    `spec` has the fields `scene_ref` and `scene` in the oneof `source`, and `field` is its path in the request; empty:
    it is the request. An error about an empty scene names the kind `expected`.
    """
    source, below = spec.WhichOneof("source"), f"{field}." if field else ""
    require(source is not None, field or "source", "scene_ref or scene", "neither")
    if source == "scene_ref":
        stored = _referred(spec.scene_ref, runtime, call, f"{below}scene_ref")
        require(stored.kind in accepted.kinds, f"{below}scene_ref", accepted.text, stored.kind)
        return stored
    kind = kind_of(spec.scene, f"{below}scene", expected or " or ".join(accepted.kinds))
    require(kind.name in accepted.kinds, f"{below}scene", accepted.text, kind.name)
    restore_meshes(runtime, call, spec.scene)
    return InlineScene(kind.name, kind.arrival(spec.scene, runtime, f"{below}scene.{kind.name}"), call)


def _referred(reference: scene_pb2.SceneRef, runtime: Runtime, call: Call, field: str) -> StoredScene:
    if not reference.name:
        return stored_scene(runtime, call, reference.scene_id, reference.version)
    given = [name for name in ("scene_id", "version") if getattr(reference, name)]
    require(not given, f"{field}.name", "either name or scene_id and version", f"name and {' and '.join(given)}")
    return named_scene(runtime, call, reference.name)
