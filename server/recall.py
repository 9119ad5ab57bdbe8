"""Scenes that memory lacks, made anew from what the spool has of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lumigrad.kernels.errors import ArgumentError
from lumigrad.protos.errors import ProtocolError
from lumigrad.server import logs
from lumigrad.server.call import Call
from lumigrad.server.engines import kind_of
from lumigrad.server.errors import InvalidArgumentError, SceneNotFoundError
from lumigrad.server.runtime import Runtime
from lumigrad.server.scene_spool import SceneSpool, SpooledScene
from lumigrad.server.scenes import StoredScene
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
