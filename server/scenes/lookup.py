"""The kinds of scenes, and how a call finds its scene: in memory, in the spool, or in the call itself."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from lumigrad.kernels.errors import ArgumentError
from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.hashing import content_hash
from lumigrad.protos.tensors import PayloadReader
from lumigrad.server.core import logs
from lumigrad.server.core.accounts import Reservation
from lumigrad.server.core.call import Allocate, Call, held
from lumigrad.server.core.errors import (
    BusyError,
    InvalidArgumentError,
    SceneFilesError,
    SceneNotFoundError,
    VersionMismatchError,
)
from lumigrad.server.core.limits import require
from lumigrad.server.core.record import StageTimes
from lumigrad.server.device.memory import Cost
from lumigrad.server.engines.base import RenderEngine
from lumigrad.server.engines.content import Content
from lumigrad.server.engines.gaussians import GAUSSIANS, GaussianRules
from lumigrad.server.engines.runner import Source
from lumigrad.server.engines.spheres import SPHERES, SphereRules
from lumigrad.server.scenes.building import Reading
from lumigrad.server.scenes.clouds import Arrival, Cloud, SceneKind
from lumigrad.server.scenes.levels import LevelsKind
from lumigrad.server.scenes.mesh import MeshKind
from lumigrad.server.scenes.target_image import TargetImageRules
from lumigrad.server.scenes.world import WorldKind
from lumigrad.server.storage.named import NamedScene, is_address
from lumigrad.server.storage.scene_files import SceneSpool, SpooledScene
from lumigrad.server.storage.stored_scene import StoredScene
from lumigrad.server.storage.tenants import Runtime
from lumigrad.v1 import scene_pb2

ENGINES: Mapping[str, RenderEngine] = {engine.name: engine for engine in (SPHERES, GAUSSIANS)}
CLOUDS: Mapping[str, Cloud] = {rules.name: Cloud(rules) for rules in (SphereRules(), GaussianRules())}
_OTHER_KINDS: tuple[SceneKind, ...] = (MeshKind(), WorldKind(), Cloud(TargetImageRules()), LevelsKind())
SCENE_KINDS: Mapping[str, SceneKind] = {**CLOUDS, **{kind.name: kind for kind in _OTHER_KINDS}}

T = TypeVar("T")
# How often work is repeated if other calls evict its scenes meanwhile.
_MOST_ATTEMPTS = 8
_RETRY_SECONDS = 1.0


def kind_of(scene: scene_pb2.Scene, field: str, expected: str | None = None) -> SceneKind:
    """Return the kind of a scene. The error for an empty scene asks for `expected`, or for any kind."""
    name = scene.WhichOneof("kind")
    require(name is not None, field, expected or f"one of {', '.join(SCENE_KINDS)}", "none")
    return SCENE_KINDS[str(name)]


def stored_scene(runtime: Runtime, call: Call, scene_id: str, version: int = 0) -> StoredScene:
    """Return the scene with this id, the current version if `version` is 0."""
    try:
        return runtime.scenes.find(scene_id, version)
    except SceneNotFoundError:
        spool = runtime.spool
        if spool is None or not spool.touch(scene_id):
            raise
    with call.times.stage("restore"):
        found = runtime.reads.wait_for(
            ("id", scene_id), lambda allocate: _restored(runtime, spool, scene_id, allocate), call
        )
    # Do not look up the scene again: other reads may have evicted it already.
    if found is None:
        raise SceneNotFoundError(scene_id)
    if version not in (0, found.version):
        raise VersionMismatchError(scene_id, version, found.version)
    return found


def with_stored(runtime: Runtime, call: Call, attempt: Callable[[], T]) -> T:
    """Run `attempt`, and repeat it whenever it lacks a scene, once that is read from the spool.

    Raises BusyError if scenes are evicted as fast as they are read.
    """
    for _ in range(_MOST_ATTEMPTS):
        try:
            return attempt()
        except SceneNotFoundError as error:
            if runtime.spool is None or not runtime.spool.touch(error.scene_id):
                raise
            lacking = error.scene_id
        stored_scene(runtime, call, lacking)
    raise _evicted()


def stored_content(runtime: Runtime, call: Call, digest: str, *, counts: bool = True) -> StoredScene | None:
    """Return the scene with this content, if there is one; with `counts`, finding it counts as a put."""
    found, spool = runtime.scenes.find_content(digest, counts=counts), runtime.spool
    if found is not None or spool is None or not spool.has_content(digest):
        return found
    with call.times.stage("restore"):
        found = runtime.reads.wait_for(
            ("content", digest), lambda allocate: _restored_content(runtime, spool, digest, allocate), call
        )
    return runtime.scenes.find_content(digest, counts=counts) or found


def named_scene(runtime: Runtime, call: Call, name: str) -> StoredScene:
    """Return the scene of this name, read from its files unless their current content is stored."""
    named = runtime.named.get(name)
    if named is None:
        reader = "a worker with --scene-files or --scene-urls, which reads scenes at addresses"
        require(not is_address(name), "name", reader, "one without")
        raise SceneNotFoundError(name)
    known = named.content_hash
    found = stored_content(runtime, call, known, counts=False) if known else None
    if found is not None:
        return found

    def read(allocate: Allocate) -> StoredScene:
        # Another read may have ended since.
        known = named.content_hash
        found = runtime.scenes.find_content(known, counts=False) if known else None
        return found or read_named(runtime, named, allocate)

    with call.times.stage("restore"):
        # The key is the function that reads: calls share a read only if it is of the same, unchanged files.
        reads = runtime.downloads if named.is_remote else runtime.reads
        return reads.wait_for(("name", named.read), read, call)


def read_named(runtime: Runtime, named: NamedScene, allocate: Allocate) -> StoredScene:
    """Read a scene from its files into memory from `allocate`, and store it."""
    copies = Reservation(runtime.payload_memory.account, runtime.tenant)
    try:
        message, reader = named.read(_checked(runtime, allocate), copies.add)
    finally:
        copies.release()
    kind = kind_of(message, "scene")
    try:
        content = _read_content(runtime, kind.arrival(message, runtime, kind.name), reader, Cost(is_repeatable=True))
    except (ArgumentError, InvalidArgumentError) as error:
        raise SceneFilesError(f"scene {named.name}: {error}") from error
    digest = content_hash(getattr(message, kind.name), reader.read)
    named.on_stored(digest, reader)
    named.content_hash = digest
    with runtime.scenes.room(content.bytes, None):
        return runtime.scenes.add(digest, content)[0]


def restore_meshes(runtime: Runtime, call: Call, scene: scene_pb2.Scene) -> None:
    """Read the meshes of a world from the spool into memory; checking the world then refuses missing meshes."""
    for name in _lacking(runtime, scene):
        stored_scene(runtime, call, name)


def _lacking(runtime: Runtime, scene: scene_pb2.Scene) -> Iterator[str]:
    """Yield the meshes of a world that are only in the spool."""
    if runtime.spool is None:
        return
    for name in {obstacle.mesh_id for obstacle in scene.world.obstacles}:
        if name and not runtime.scenes.touch(name) and runtime.spool.touch(name):
            yield name


def _checked(runtime: Runtime, allocate: Allocate) -> Allocate:
    """Return an `allocate` that refuses a scene which can never fit, before any memory is allocated."""

    def checked(nbytes: int) -> memoryview:
        runtime.memory.check(Cost.of_payload(nbytes))
        runtime.scenes.check(nbytes)
        return allocate(nbytes)

    return checked


def _restored(runtime: Runtime, spool: SceneSpool, scene_id: str, allocate: Allocate) -> StoredScene | None:
    """Read a scene into memory by its name, on the thread of the tenant's reads; None if it does not exist."""
    with held(spool.exclusive, None):
        with contextlib.suppress(SceneNotFoundError):
            return runtime.scenes.find(scene_id)
        return _restore(runtime, spool, spool.read(scene_id, _checked(runtime, allocate)), allocate)


def _restored_content(runtime: Runtime, spool: SceneSpool, digest: str, allocate: Allocate) -> StoredScene | None:
    """Read a scene into memory by its content hash, on the thread of the tenant's reads; None if it does not exist."""
    with held(spool.exclusive, None):
        present = runtime.scenes.find_content(digest, counts=False)
        return present or _restore(runtime, spool, spool.read_content(digest, _checked(runtime, allocate)), allocate)


def _restore(runtime: Runtime, spool: SceneSpool, found: SpooledScene | None, allocate: Allocate) -> StoredScene | None:
    """Make and store a scene that was read; a scene that cannot be made is removed from the spool."""
    if found is None:
        return None
    for _ in range(_MOST_ATTEMPTS):
        try:
            return _stored(runtime, spool, found, allocate)
        except (ArgumentError, ProtocolError, SceneNotFoundError) as error:
            if isinstance(error, SceneNotFoundError) and spool.touch(error.scene_id):
                # Another read has evicted a mesh of the world meanwhile.
                continue
            # The limits have changed, or a mesh of the world was deleted.
            scene_id = found.message.info.scene_id
            logs.event("removing an invalid scene from the spool", logging.WARNING, scene=scene_id, why=error)
            spool.remove(found)
            return None
    raise _evicted()


def _stored(runtime: Runtime, spool: SceneSpool, found: SpooledScene, allocate: Allocate) -> StoredScene | None:
    """Make and store a scene that was read; None if it was deleted meanwhile."""
    with runtime.scenes.room(found.message.info.bytes, None):
        scene = _made(runtime, spool, found, allocate)
        if found.is_valid:
            return scene if runtime.scenes.restore(scene) else None
        added = runtime.scenes.add(scene.content_hash, scene.content)[0]
    spool.remove(found)
    return added


def _evicted() -> BusyError:
    what = "the scenes that the call needs are evicted as fast as they are read: all of them take too much memory"
    return BusyError(f"{what} (--scene-mib)", _RETRY_SECONDS)


def _made(runtime: Runtime, spool: SceneSpool, found: SpooledScene, allocate: Allocate) -> StoredScene:
    info, message = found.message.info, found.message.scene
    kind = kind_of(message, "scene")
    for name in _lacking(runtime, message):
        _restored(runtime, spool, name, allocate)
    cost = Cost.of_payload(found.message.payload_bytes)
    content = _read_content(runtime, kind.arrival(message, runtime, f"scene.{kind.name}"), found.reader, cost)
    updates = (info,) if info.update_id else ()
    return StoredScene(info.scene_id, info.version, info.content_hash, content, info.update_id, updates)


def _read_content(runtime: Runtime, arrival: Arrival, reader: PayloadReader, cost: Cost) -> Content:
    """Make the content of a scene that was read."""
    with contextlib.ExitStack() as ends:
        make = arrival.receive(reader)(Reading(ends))
        return runtime.executor.run(lambda: make(StageTimes()), None, cost, waits=True, tenant=runtime.tenant)


@dataclass(frozen=True)
class AcceptedKinds:
    """The kinds of scenes that a service accepts, and how error texts describe them."""

    kinds: Collection[str]
    text: str


class InlineScene(Source):
    """A scene inside a call, whose header was checked and whose tensors follow in the payload."""

    reference = None

    def __init__(self, kind: str, arrival: Arrival, call: Call) -> None:
        self.kind = kind
        self.outline = arrival.outline
        self._arrival = arrival
        self._call = call

    def receive(self, reader: PayloadReader) -> None:
        """Check the tensors in the payload, and do the host's work on them."""
        self._make = self._arrival.receive(reader)(self._call)

    def load(self) -> Content:
        """Upload the tensors and check their values; called on the device's thread, after `receive`."""
        return self._make(self._call.times)


def find_scene(
    spec: Any, accepted: AcceptedKinds, runtime: Runtime, call: Call, field: str, expected: str | None = None
) -> InlineScene | StoredScene:
    """Look up the stored scene that a request names, or check the header of a scene in the request.

    `spec` has the fields `scene_ref` and `scene` in the oneof `source`, and `field` is its path, empty if `spec` is the
    request itself. An error about an empty scene asks for the kind `expected`.
    """
    source, below = spec.WhichOneof("source"), f"{field}." if field else ""
    require(source is not None, field or "source", "scene_ref or scene", "neither")
    if source == "scene_ref":
        stored = referred_scene(spec.scene_ref, runtime, call, f"{below}scene_ref")
        given = stored.kind
        require(given in accepted.kinds, f"{below}scene_ref", accepted.text, given)
        return stored
    kind = kind_of(spec.scene, f"{below}scene", expected or " or ".join(accepted.kinds))
    require(kind.name in accepted.kinds, f"{below}scene", accepted.text, kind.name)
    restore_meshes(runtime, call, spec.scene)
    arrival = with_stored(runtime, call, lambda: kind.arrival(spec.scene, runtime, f"{below}scene.{kind.name}"))
    return InlineScene(kind.name, arrival, call)


def referred_scene(reference: scene_pb2.SceneRef, runtime: Runtime, call: Call, field: str) -> StoredScene:
    """Return the stored scene of a reference, whose path in the request is `field`."""
    if not reference.name:
        return stored_scene(runtime, call, reference.scene_id, reference.version)
    given = [name for name in ("scene_id", "version") if getattr(reference, name)]
    require(not given, f"{field}.name", "either name or scene_id and version", f"name and {' and '.join(given)}")
    return named_scene(runtime, call, reference.name)
