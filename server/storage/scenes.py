"""The store of versioned scenes, found by name and by content hash."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import sys
from dataclasses import dataclass
from typing import Protocol

from lumigrad.protos.tensors import PayloadReader
from lumigrad.server.core.errors import BusyError, SceneNotFoundError, VersionMismatchError
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.device.memory import Budget
from lumigrad.server.engines.content import Content, Outline
from lumigrad.server.storage.lru import LruStore
from lumigrad.v1 import scene_pb2

# A name begins with this many digits of the content hash, for people and balancers; the rest is random.
_PREFIX_LENGTH = 16
_RANDOM_BYTES = 8
# Memory of a scene beside its tensors: measured as 3 to 8 KiB for each of 3,000 scenes of one primitive.
OVERHEAD_BYTES = 8 << 10
_RETRY_SECONDS = 5.0
# Updates of a scene that are remembered, so that a repeated one is recognised.
_MAX_UPDATES = 16


@dataclass(frozen=True)
class StoredScene:
    """One version of a scene. Immutable: an update creates the next version."""

    scene_id: str
    version: int
    # Empty once an update has changed the content.
    content_hash: str
    content: Content
    update_id: str = ""
    # The replies to updates that had an id, the oldest first.
    updates: tuple[scene_pb2.SceneInfo, ...] = ()

    @property
    def kind(self) -> str:
        """Its field in `Scene`."""
        return self.content.kind

    @property
    def outline(self) -> Outline:
        """What requests about it are checked against."""
        return self.content.outline

    @property
    def reference(self) -> scene_pb2.SceneRef:
        """Its name and version, as replies carry them."""
        return scene_pb2.SceneRef(scene_id=self.scene_id, version=self.version)

    def receive(self, _: PayloadReader) -> None:
        """Do nothing: no tensors come with the call."""

    def load(self) -> Content:
        """The content, which is on the device."""
        return self.content

    def info(self) -> scene_pb2.SceneInfo:
        """The description that clients receive."""
        info = scene_pb2.SceneInfo(
            scene_id=self.scene_id,
            version=self.version,
            content_hash=self.content_hash,
            kind=self.kind,
            bytes=self.content.bytes,
            count=self.content.count,
            update_id=self.update_id,
        )
        self.content.describe(info)
        return info

    def made_by(self, update_id: str) -> scene_pb2.SceneInfo | None:
        """The reply to an update that was already applied; None: not applied, or no longer remembered."""
        return next((info for info in self.updates if update_id and info.update_id == update_id), None)

    def updated(self, content: Content, update_id: str) -> StoredScene:
        """The next version."""
        new = dataclasses.replace(self, version=self.version + 1, content_hash="", content=content, update_id=update_id)
        made = (*self.updates, new.info()) if update_id else self.updates
        return dataclasses.replace(new, updates=made[-_MAX_UPDATES:])


class Backing(Protocol):
    """Storage of scenes that outlives memory and process; see `SceneSpool`."""

    def stored(self, scene: StoredScene) -> None:
        """Schedule a new version to be written."""

    def forget(self, scene_id: str) -> bool:
        """Delete the written version of a scene; returns whether there was one."""

    def cancel_write(self, scene_id: str) -> None:
        """Cancel the pending write of an evicted scene."""

    def sync(self) -> None:
        """Make deletions durable."""

    def touch(self, scene_id: str) -> bool:
        """Whether a scene is written; marks it as used."""


class NoBacking:
    """Stores nothing."""

    def stored(self, scene: StoredScene) -> None:
        """Do nothing."""

    def forget(self, _: str) -> bool:
        """Nothing was written."""
        return False

    def cancel_write(self, scene_id: str) -> None:
        """Do nothing."""

    def sync(self) -> None:
        """Do nothing."""

    def touch(self, _: str) -> bool:
        """Nothing is written."""
        return False


class SceneStore(LruStore[StoredScene]):
    """A tenant's scenes in memory, bounded by its own limit and the budget of all tenants."""

    def __init__(
        self,
        limit_bytes: int,
        budget: Budget,
        metrics: Metrics,
        backing: Backing | None = None,
        limit_count: int = sys.maxsize,
        option: str = "--scene-mib",
    ) -> None:
        """`option` is the option that sets `limit_bytes`, for error texts."""
        self._option = option
        self._backing = backing or NoBacking()
        self._metrics = metrics
        self._id_of_hash: dict[str, str] = {}
        super().__init__(limit_bytes, limit_count, budget)

    def __contains__(self, scene_id: object) -> bool:
        """Whether a scene is stored; marks it as used."""
        with self._lock:
            return isinstance(scene_id, str) and self._cache.get(scene_id) is not None

    def check(self, nbytes: int) -> None:
        """Raise BusyError, without a retry time, for a scene larger than the whole limit."""
        limit = self._cache.limit_bytes
        if nbytes > limit:
            raise BusyError(f"the scene takes {nbytes} bytes, of {limit} that scenes may take ({self._option})", None)

    def add(self, content_hash: str, content: Content) -> tuple[StoredScene, bool]:
        """Store a scene unless its content is present; returns the scene and whether it was present.

        SceneNotFoundError names a scene that it needs and that was removed meanwhile. BusyError: it does not fit
        beside other tenants' scenes.
        """
        with self._lock:
            present = self._by_hash(content_hash)
            if present is not None:
                self._metrics.scene_puts.labels("present").inc()
                return present, True
            for name in content.needs:
                self._find(name, 0)
            scene = StoredScene(_new_name(content_hash), 1, content_hash, content)
            self._put(scene)
            self._backing.stored(scene)
        if not self._budget.enforce(self):
            with contextlib.suppress(SceneNotFoundError):
                self.delete(scene.scene_id)
            raise self._no_room(scene)
        self._metrics.scene_puts.labels("stored").inc()
        return scene, False

    def restore(self, scene: StoredScene) -> None:
        """Store a scene read from the backing, unless it is present or was deleted meanwhile; raises as `add` does."""
        with self._lock:
            if self._cache.get(scene.scene_id) is not None or not self._backing.touch(scene.scene_id):
                return
            for name in scene.content.needs:
                self._find(name, 0)
            self._put(scene)
        if not self._budget.enforce(self):
            with self._lock:
                self._cache.pop(scene.scene_id)
                self._forget_hash(scene)
            raise self._no_room(scene)

    def find(self, scene_id: str, version: int = 0) -> StoredScene:
        """Return a scene; `version` 0: the current one. SceneNotFoundError or VersionMismatchError."""
        with self._lock:
            scene = self._find(scene_id, version)
        self._backing.touch(scene_id)
        return scene

    def touch(self, scene_id: str) -> bool:
        """Whether a scene is in memory; marks it as used."""
        return scene_id in self

    def find_content(self, content_hash: str) -> StoredScene | None:
        """The scene with this content, if it is in memory."""
        with self._lock:
            present = self._by_hash(content_hash)
        if present is not None:
            # The client asks instead of uploading, so it counts as an upload.
            self._metrics.scene_puts.labels("present").inc()
        return present

    def peek(self, scene_id: str) -> StoredScene | None:
        """The scene, even if it was deleted but another scene needs it; does not mark it as used."""
        with self._lock:
            return self._cache.peek(scene_id)

    def replace(
        self, scene_id: str, expected_version: int, content: Content, update_id: str = ""
    ) -> scene_pb2.SceneInfo:
        """Store the next version and describe it; VersionMismatchError if the version is not `expected_version`.

        An update that was already applied, by `update_id`, is not applied again.
        """
        with self._lock:
            made = self._find(scene_id, 0).made_by(update_id)
            if made is not None:
                return made
            old = self._find(scene_id, expected_version)
            new = old.updated(content, update_id)
            self._forget_hash(old)
            # After a crash the file of the old version must not pass for the newest: updating that would create a
            # second content of one version.
            self._backing.forget(scene_id)
            self._put(new)
            self._backing.stored(new)
        self._backing.sync()
        self._budget.enforce(self)
        return new.info()

    def delete(self, scene_id: str) -> None:
        """Delete a scene; SceneNotFoundError if there is none."""
        with self._lock:
            scene = self._cache.pop(scene_id)
            was_kept = self._backing.forget(scene_id)
            if scene is None and not was_kept:
                raise SceneNotFoundError(scene_id)
            if scene is not None:
                self._forget_hash(scene)
        self._backing.sync()

    def clear(self) -> None:
        """Remove every scene from memory."""
        with self._lock:
            self._cache.clear()
            self._id_of_hash.clear()

    def all(self) -> list[StoredScene]:
        """Every scene in memory."""
        with self._lock:
            return list(self._cache.values())

    def _put(self, scene: StoredScene) -> None:
        for name in scene.content.needs:
            # A needed scene may have grown: a mesh allocates memory for signs by winding numbers.
            needed = self._cache.peek(name)
            if needed is not None:
                self._cache.recount(name, _size(needed))
        if scene.content_hash:
            self._id_of_hash[scene.content_hash] = scene.scene_id
        self._cache.put(scene.scene_id, scene, _size(scene), scene.content.needs)

    def _find(self, scene_id: str, version: int) -> StoredScene:
        scene = self._cache.get(scene_id)
        if scene is None:
            raise SceneNotFoundError(scene_id)
        if version not in (0, scene.version):
            raise VersionMismatchError(scene_id, version, scene.version)
        return scene

    def _by_hash(self, content_hash: str) -> StoredScene | None:
        scene_id = self._id_of_hash.get(content_hash)
        return None if scene_id is None else self._cache.get(scene_id)

    def _forget_hash(self, scene: StoredScene) -> None:
        if self._id_of_hash.get(scene.content_hash) == scene.scene_id:
            del self._id_of_hash[scene.content_hash]

    def _dropped(self, _: str, scene: StoredScene, reason: str) -> None:
        self._forget_hash(scene)
        self._backing.cancel_write(scene.scene_id)
        self._metrics.evictions.labels("scenes", reason).inc()

    def _no_room(self, scene: StoredScene) -> BusyError:
        budget = self._budget
        limits = f"{budget.limit_bytes} bytes (--scene-mib) and {budget.limit_count} scenes (--max-scenes)"
        what = f"there is no room for a scene of {_size(scene)} bytes beside other tenants', of {limits} in all"
        return BusyError(what, _RETRY_SECONDS)


def _size(scene: StoredScene) -> int:
    return scene.content.bytes + OVERHEAD_BYTES


def _new_name(content_hash: str) -> str:
    """A name that no worker has ever used, so that a name and version always stand for the same content."""
    return content_hash[:_PREFIX_LENGTH] + secrets.token_hex(_RANDOM_BYTES)
