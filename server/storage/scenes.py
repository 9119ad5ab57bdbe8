"""The store of versioned scenes, found by name and by content hash, and their files in the spool."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.server.core.call import Allocate, Call
from lumigrad.server.core.errors import BusyError, SceneNotFoundError, VersionMismatchError
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.device.memory import Budget
from lumigrad.server.device.transfer import Transfer
from lumigrad.server.engines.content import Content, Outline
from lumigrad.server.storage.lru import LruStore
from lumigrad.server.storage.spool import Blob, TenantSpool
from lumigrad.server.storage.spool_writer import SpoolWriter, Writing
from lumigrad.v1 import scene_pb2

# A name begins with this many digits of the content hash, for people and balancers; the rest is random.
_PREFIX_LENGTH = 16
_RANDOM_BYTES = 8
# Memory of a scene beside its tensors: measured as 3 to 8 KiB for each of 3,000 scenes of one primitive.
OVERHEAD_BYTES = 8 << 10
_RETRY_SECONDS = 5.0
# The number of a scene's updates that are recorded, so that a repeated one is recognised.
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
        """The facts that requests are checked against."""
        return self.content.outline

    @property
    def reference(self) -> scene_pb2.SceneRef:
        """The message with its name and version, for replies."""
        return scene_pb2.SceneRef(scene_id=self.scene_id, version=self.version)

    def receive(self, _: PayloadReader) -> None:
        """Do nothing: no tensors come with the call."""

    def load(self) -> Content:
        """Return the content, which is on the device."""
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
        """The reply to an update that was already applied; None: not applied, or no longer recorded."""
        return next((info for info in self.updates if update_id and info.update_id == update_id), None)

    def updated(self, content: Content, update_id: str) -> StoredScene:
        """The next version."""
        new = dataclasses.replace(self, version=self.version + 1, content_hash="", content=content, update_id=update_id)
        made = (*self.updates, new.info()) if update_id else self.updates
        return dataclasses.replace(new, updates=made[-_MAX_UPDATES:])


_BOOT_FILE = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """The id of this boot of the machine; a random one where the system has none."""
    try:
        with open(_BOOT_FILE, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return secrets.token_hex(16)


KIND = "scene"
# An updated scene is written once it has not changed for this long.
_REST_SECONDS = 1.0


@dataclass(frozen=True)
class SpooledScene:
    """A scene read from the spool; its id and version are valid only if it was written since the machine's boot."""

    message: scene_pb2.GetReply
    reader: PayloadReader
    name: str
    is_valid: bool


class SceneSpool:
    """Backs a scene store with files. The owner holds a lock around the calls that change anything.

    Names include the boot id: a power failure may lose an update, and a version that was given out must not be reused
    for other content. After a reboot scenes are found by their content hash only.
    """

    def __init__(self, tenant_spool: TenantSpool, writer: SpoolWriter, transfer: Transfer) -> None:
        self._tenant_spool = tenant_spool
        self._writer = writer
        self._transfer = transfer
        self._boot = boot_id()
        self._writings: dict[str, Writing] = {}
        # Held while a scene is restored, so that two calls do not restore it at once.
        self.restoring = threading.RLock()

    def stored(self, scene: StoredScene) -> None:
        """Schedule a new version to be written."""
        delay = _REST_SECONDS if scene.version > 1 else 0.0
        self._writings[scene.scene_id] = self._writer.submit(
            self._tenant_spool.owner, partial(self._write, scene), delay
        )

    def forget(self, scene_id: str) -> bool:
        """Delete a scene's file and cancel its write; returns whether a file existed. Durable once `sync` returns."""
        self.cancel_write(scene_id)
        return self._tenant_spool.forget(KIND, self._name(scene_id))

    def cancel_write(self, scene_id: str) -> None:
        """Cancel the pending write of a scene that was evicted; an existing file stays."""
        writing = self._writings.pop(scene_id, None)
        if writing is not None:
            self._writer.cancel(writing)

    def wait_until_written(self, scene_ids: Iterable[str], seconds: float, call: Call) -> None:
        """Wait until the pending writes of some scenes are done or cancelled, for `seconds`, or while a call lasts."""
        found = (self._writings.get(scene_id) for scene_id in scene_ids)
        self._writer.wait_for([writing for writing in found if writing is not None], seconds, call)

    def sync(self) -> None:
        """Make deletions durable."""
        self._tenant_spool.sync()

    def touch(self, scene_id: str) -> bool:
        """Whether a scene has a file; marks it as used."""
        return self._tenant_spool.touch(KIND, self._name(scene_id))

    def has_content(self, content_hash: str) -> bool:
        """Whether a file of this content exists."""
        return self._tenant_spool.has_alias(KIND, content_hash)

    def read(self, scene_id: str, allocate: Allocate) -> SpooledScene | None:
        """Read a scene by its name; None: missing or damaged."""
        return self._decoded(self._tenant_spool.read(KIND, self._name(scene_id), allocate))

    def read_content(self, content_hash: str, allocate: Allocate) -> SpooledScene | None:
        """Read a scene by its content hash; None: missing or damaged."""
        return self._decoded(self._tenant_spool.read_alias(KIND, content_hash, allocate))

    def remove(self, scene: SpooledScene) -> None:
        """Delete the file of a scene that cannot be restored, or that has another name now."""
        self._tenant_spool.forget(KIND, scene.name)
        self._tenant_spool.sync()

    def infos(self) -> Iterator[scene_pb2.SceneInfo]:
        """Descriptions of all scenes in files."""
        for head in self._tenant_spool.heads(KIND):
            if head.name.startswith(self._name("")):
                yield scene_pb2.GetReply.FromString(head.header).info

    def _write(self, scene: StoredScene, is_wanted: Callable[[], bool]) -> None:
        tensors = scene.content.tensors
        payload = PayloadWriter()
        arrays = self._transfer.fetch(list(tensors.values()))
        sent = {name: payload.add(array) for name, array in zip(tensors, arrays, strict=True)}
        message = scene_pb2.GetReply(info=scene.info(), scene=scene.content.message(sent), payload_bytes=payload.length)
        # A scene that does not fit into the spool stays in memory only.
        with contextlib.suppress(BusyError):
            self._tenant_spool.write(
                KIND,
                self._name(scene.scene_id),
                message.SerializeToString(),
                payload.buffers,
                alias=scene.content_hash,
                is_wanted=is_wanted,
            )

    def _decoded(self, blob: Blob | None) -> SpooledScene | None:
        if blob is None:
            return None
        message = scene_pb2.GetReply.FromString(blob.header)
        return SpooledScene(message, PayloadReader(blob.payload), blob.name, blob.name.startswith(self._name("")))

    def _name(self, scene_id: str) -> str:
        return f"{self._boot}/{scene_id}"


class SceneStore(LruStore[StoredScene]):
    """A tenant's scenes in memory, bounded by its own limit and the budget of all tenants."""

    def __init__(
        self,
        limit_bytes: int,
        budget: Budget,
        metrics: Metrics,
        spool: SceneSpool | None = None,
        limit_count: int = sys.maxsize,
        option: str = "--scene-mib",
    ) -> None:
        """`spool` outlives memory and process; `option` sets `limit_bytes`, for error texts."""
        self._option = option
        self._spool = spool
        self._metrics = metrics
        self._id_of_hash: dict[str, str] = {}
        # How often the content of each scene was put and not taken back; unknown of scenes read from the spool.
        self._puts: dict[str, int] = {}
        super().__init__(limit_bytes, limit_count, budget)

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
                self._count_put(present)
                return present, True
            for name in content.needs:
                self._find(name, 0)
            scene = StoredScene(_new_name(content_hash), 1, content_hash, content)
            self._put(scene)
            self._puts[scene.scene_id] = 1
            if self._spool is not None:
                self._spool.stored(scene)
        if not self._budget.enforce(self):
            with contextlib.suppress(SceneNotFoundError):
                self.delete(scene.scene_id)
            raise self._no_room(scene)
        self._metrics.scene_puts.labels("stored").inc()
        return scene, False

    def restore(self, scene: StoredScene) -> None:
        """Store a scene read from the spool, unless it is present or was deleted meanwhile; raises as `add` does."""
        with self._lock:
            is_written = self._spool is not None and self._spool.touch(scene.scene_id)
            if self._cache.get(scene.scene_id) is not None or not is_written:
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
        if self._spool is not None:
            self._spool.touch(scene_id)
        return scene

    def touch(self, scene_id: str) -> bool:
        """Whether a scene is in memory; marks it as used."""
        with self._lock:
            return self._cache.get(scene_id) is not None

    def find_content(self, content_hash: str, *, counts: bool = True) -> StoredScene | None:
        """The scene with this content, if it is in memory.

        It `counts` as an upload where a client asks for the content instead of uploading it.
        """
        with self._lock:
            present = self._by_hash(content_hash)
            if present is not None and counts:
                self._count_put(present)
        return present

    def wait_until_written(self, content_hashes: Iterable[str], seconds: float, call: Call) -> None:
        """Wait until the spool has written scenes that were put before, for `seconds`, or while a call lasts."""
        if self._spool is None:
            return
        with self._lock:
            scene_ids = {self._id_of_hash.get(content_hash, "") for content_hash in content_hashes}
        self._spool.wait_until_written(scene_ids, seconds, call)

    def peek(self, scene_id: str) -> StoredScene | None:
        """The scene, even if it was deleted but another scene needs it; does not mark it as used."""
        with self._lock:
            return self._cache.peek(scene_id)

    def replace(
        self,
        scene_id: str,
        expected_version: int,
        content: Content,
        update_id: str = "",
        *,
        keeps_shared: bool = False,
    ) -> scene_pb2.SceneInfo:
        """Store the next version and describe it; VersionMismatchError if the version is not `expected_version`.

        An update that was already applied, by `update_id`, is not applied again. With `keeps_shared` a scene whose
        content others have put stays, and the next version is a scene of its own, which takes back one of the puts.
        """
        with self._lock:
            made = self._find(scene_id, 0).made_by(update_id)
            if made is not None:
                return made
            old = self._find(scene_id, expected_version)
            new = old.updated(content, update_id)
            if keeps_shared and old.content_hash and self._puts.get(scene_id) != 1:
                self._add_puts(old, -1)
                new = dataclasses.replace(new, scene_id=_new_name(old.content_hash))
            else:
                self._forget_hash(old)
                if self._spool is not None:
                    # After a crash the file of the old version must not pass for the newest: updating that would create
                    # a second content of one version.
                    self._spool.forget(scene_id)
            self._put(new)
            if self._spool is not None:
                self._spool.stored(new)
        if self._spool is not None:
            self._spool.sync()
        self._budget.enforce(self)
        return new.info()

    def delete(self, scene_id: str) -> None:
        """Delete a scene; SceneNotFoundError if there is none."""
        with self._lock:
            self._remove(scene_id)
        if self._spool is not None:
            self._spool.sync()

    def take_back(self, scene_id: str) -> None:
        """Take back one put of a scene's content; deletes the scene if that was the only one."""
        with self._lock:
            puts = self._puts.get(scene_id)
            if puts == 1:
                self._remove(scene_id)
            elif puts is not None:
                self._puts[scene_id] = puts - 1
        if self._spool is not None:
            self._spool.sync()

    def clear(self) -> None:
        """Remove every scene from memory."""
        with self._lock:
            self._cache.clear()
            self._id_of_hash.clear()
            self._puts.clear()

    def all(self) -> list[StoredScene]:
        """Every scene in memory."""
        with self._lock:
            return list(self._cache.values())

    def _remove(self, scene_id: str) -> None:
        self._puts.pop(scene_id, None)
        scene = self._cache.pop(scene_id)
        was_kept = self._spool is not None and self._spool.forget(scene_id)
        if scene is None and not was_kept:
            raise SceneNotFoundError(scene_id)
        if scene is not None:
            self._forget_hash(scene)

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

    def _count_put(self, scene: StoredScene) -> None:
        """Count a put of content that is present."""
        self._metrics.scene_puts.labels("present").inc()
        self._add_puts(scene, 1)

    def _add_puts(self, scene: StoredScene, count: int) -> None:
        if scene.scene_id in self._puts:
            self._puts[scene.scene_id] += count

    def _forget_hash(self, scene: StoredScene) -> None:
        if self._id_of_hash.get(scene.content_hash) == scene.scene_id:
            del self._id_of_hash[scene.content_hash]

    def _dropped(self, _: str, scene: StoredScene, reason: str) -> None:
        self._forget_hash(scene)
        self._puts.pop(scene.scene_id, None)
        if self._spool is not None:
            self._spool.cancel_write(scene.scene_id)
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
