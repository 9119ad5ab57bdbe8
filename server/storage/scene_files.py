"""The files of a tenant's scenes in the spool."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any
from weakref import WeakValueDictionary

from lumigrad.protos.hashing import content_hash
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.server.core.call import Allocate, Call, held
from lumigrad.server.core.errors import BusyError
from lumigrad.server.device.transfer import Transfer
from lumigrad.server.engines.levels import KIND as LEVELS
from lumigrad.server.storage.spool import Blob, TenantSpool
from lumigrad.server.storage.spool_files import DamagedError, PayloadFile
from lumigrad.server.storage.spool_writer import SpoolWriter, Writing
from lumigrad.server.storage.stored_scene import StoredScene
from lumigrad.v1 import scene_pb2

_BOOT_FILE = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """Return the id of this boot of the machine, or a random one if the system has none."""
    try:
        with open(_BOOT_FILE, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return secrets.token_hex(16)


KIND = "scene"
_SUFFIX = f"-{LEVELS}"
# A name begins with this many digits of the content hash, for people and balancers; the rest is random.
_PREFIX_LENGTH = 16
_RANDOM_BYTES = 8


@dataclass(frozen=True)
class LevelPayload:
    """The payload of a scene with levels as it arrives: `nbytes` in all, the `table` first, then `rows`."""

    nbytes: int
    table: memoryview
    rows: Iterable[memoryview]


@dataclass(frozen=True)
class SpooledScene:
    """A scene read from the spool. Its id and version are valid only if it was written since the machine's boot."""

    message: scene_pb2.GetReply
    reader: PayloadReader
    name: str
    is_valid: bool


class SceneSpool:
    """Backs a scene store with files. The owner holds a lock around the calls that register or cancel writes.

    Names include the boot id: a power failure may lose an update, and a version that was given out must not be reused
    for other content. After a reboot, scenes are found only by their content hash. Names of scenes with levels do not
    include it, since these never change.
    """

    def __init__(self, tenant_spool: TenantSpool, writer: SpoolWriter, transfer: Transfer) -> None:
        self._tenant_spool = tenant_spool
        self._writer = writer
        self._transfer = transfer
        self._boot = boot_id()
        # Pending writes, whether a thread or a call makes them.
        self._writings: dict[str, Writing] = {}
        # Held by one call at a time, while it reads a scene or writes its next version.
        self.exclusive = threading.RLock()
        # Locks of arriving contents with levels, by hash.
        self._arriving: WeakValueDictionary[str, Any] = WeakValueDictionary()

    def submit(
        self, scene: StoredScene, on_end: Callable[[StoredScene, Callable[[], bool]], None], delay_seconds: float
    ) -> None:
        """Schedule a scene that has no file to be written.

        `on_end` is called when the write ends, with the scene and a function that returns whether it is still wanted.
        """
        self.cancel_write(scene.scene_id)
        work = partial(self._write, scene, on_end)
        self._writings[scene.scene_id] = self._writer.submit(self._tenant_spool.owner, work, delay_seconds)

    def is_due(self, scene_id: str) -> bool:
        """Return whether a scene is still to be written."""
        writing = self._writings.get(scene_id)
        return writing is not None and writing.is_wanted

    def begin_replacing(self, scene_id: str) -> Writing:
        """Register that a call writes the next version of a scene; `cancel_write` cancels that.

        Cancels the write of the previous version, so that whether it has a file can no longer change.
        """
        self.cancel_write(scene_id)
        writing = self._writings[scene_id] = Writing(self._tenant_spool.owner)
        return writing

    def replace(self, scene: StoredScene, writing: Writing) -> bool:
        """Write a scene's next version, replacing its file at the end; returns False if cancelled.

        Raises BusyError if it cannot be written.
        """
        return self._store(scene, lambda: writing.is_wanted)

    def forget(self, scene_id: str) -> bool:
        """Delete a scene's file and cancel its write; returns whether a file existed. Durable once `sync` returns."""
        self.cancel_write(scene_id)
        return self._tenant_spool.forget(KIND, self._name(scene_id))

    def discard(self, scene_id: str) -> None:
        """Durably delete a scene's file before its next version is visible; waits for renames of cancelled writes."""
        self._tenant_spool.forget(KIND, self._name(scene_id))
        self._tenant_spool.sync()

    def cancel_write(self, scene_id: str) -> None:
        """Cancel the pending write of a scene; an existing file stays."""
        writing = self._writings.pop(scene_id, None)
        if writing is not None:
            self._writer.cancel(writing)

    def wait_until_written(self, scene_ids: Iterable[str], seconds: float, call: Call | None) -> None:
        """Wait until the pending writes of some scenes are done or cancelled, for `seconds`, or while a call lasts."""
        found = (self._writings.get(scene_id) for scene_id in scene_ids)
        self._writer.wait_for([writing for writing in found if writing is not None], seconds, call)

    def sync(self) -> None:
        """Make deletions durable."""
        self._tenant_spool.sync()

    def touch(self, scene_id: str) -> bool:
        """Return whether a scene has a file; marks it as used."""
        return self._tenant_spool.touch(KIND, self._name(scene_id))

    def has_content(self, digest: str) -> bool:
        """Return whether a file of this content exists."""
        return self._tenant_spool.has_alias(KIND, digest)

    def read(self, scene_id: str, allocate: Allocate) -> SpooledScene | None:
        """Read a scene by its name; None if it is missing or damaged."""
        if is_levels(scene_id):
            return self._levels(self.open_levels(scene_id), allocate)
        return self._decoded(self._tenant_spool.read(KIND, self._name(scene_id), allocate))

    def read_content(self, digest: str, allocate: Allocate) -> SpooledScene | None:
        """Read a scene by its content hash; None if it is missing or damaged."""
        file = self._tenant_spool.open_alias(KIND, digest)
        if file is not None and is_levels(file.head.name):
            return self._levels(file, allocate)
        return self._decoded(self._tenant_spool.read_alias(KIND, digest, allocate))

    def write_levels(self, info: scene_pb2.SceneInfo, scene: scene_pb2.Scene, content: LevelPayload) -> None:
        """Write a scene with levels as it arrives; raises BusyError, before any row is read, if there is no room."""
        message = scene_pb2.GetReply(info=info, scene=scene, payload_bytes=content.table.nbytes)
        self._tenant_spool.write_stream(
            KIND,
            self._name(info.scene_id),
            message.SerializeToString(),
            content.nbytes,
            chain([content.table], content.rows),
            alias=info.content_hash,
        )

    @contextlib.contextmanager
    def arriving(self, digest: str, call: Call) -> Iterator[None]:
        """Hold the lock of an arriving content with levels: other calls that send it wait, and find it afterwards."""
        with held(self.exclusive, call):
            lock = self._arriving.setdefault(digest, threading.Lock())
        with held(lock, call):
            yield

    def open_levels(self, scene_id: str) -> PayloadFile | None:
        """Open a scene with levels to read its rows; None if it is missing or damaged."""
        return self._tenant_spool.open(KIND, self._name(scene_id))

    def damaged(self, scene_id: str, why: DamagedError) -> None:
        """Delete the file of a scene with levels whose rows are damaged."""
        self._tenant_spool.damaged(KIND, self._name(scene_id), why)

    def remove(self, scene: SpooledScene) -> None:
        """Delete the file of a scene that cannot be restored, or that now has another name."""
        self._tenant_spool.forget(KIND, scene.name)
        self._tenant_spool.sync()

    def info(self, scene_id: str) -> scene_pb2.SceneInfo | None:
        """Return the description of a scene in a file; None if it is missing or damaged."""
        return self.info_at(self.key(scene_id))

    def key(self, scene_id: str) -> str:
        """Return the name of a scene on disk, which is its key in lists."""
        return self._tenant_spool.digest(self._name(scene_id))

    def keys(self) -> set[str]:
        """Return the names on disk of all scenes in files."""
        return self._tenant_spool.digests(KIND)

    def info_at(self, key: str) -> scene_pb2.SceneInfo | None:
        """Return the description of a scene by its name on disk; None if missing, damaged, or from before a reboot."""
        head = self._tenant_spool.head_at(KIND, key)
        if head is None or not self._is_valid(head.name):
            return None
        return scene_pb2.GetReply.FromString(head.header).info

    def _write(
        self,
        scene: StoredScene,
        on_end: Callable[[StoredScene, Callable[[], bool]], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        try:
            # A scene that does not fit into the spool stays in memory only.
            with contextlib.suppress(BusyError):
                self._store(scene, is_wanted)
        finally:
            on_end(scene, is_wanted)

    def _store(self, scene: StoredScene, is_wanted: Callable[[], bool]) -> bool:
        tensors = scene.content.tensors
        payload = PayloadWriter()
        arrays = self._transfer.fetch(list(tensors.values()))
        sent = {name: payload.add(array) for name, array in zip(tensors, arrays, strict=True)}
        message = scene_pb2.GetReply(info=scene.info(), scene=scene.content.message(sent), payload_bytes=payload.length)
        return self._tenant_spool.write(
            KIND,
            self._name(scene.scene_id),
            message.SerializeToString(),
            payload.buffers,
            alias=scene.content_hash,
            is_wanted=is_wanted,
            # After a power failure, scenes are found only by content.
            is_durable=bool(scene.content_hash),
        )

    def _levels(self, file: PayloadFile | None, allocate: Allocate) -> SpooledScene | None:
        """Read the head of a scene with levels, which has its tensors; None if it is missing or damaged."""
        if file is None:
            return None
        message = scene_pb2.GetReply.FromString(file.head.header)
        try:
            reader = PayloadReader(file.read(0, allocate(message.payload_bytes)))
            if content_hash(message.scene.levels, reader.read) != message.info.content_hash:
                raise DamagedError("the tensors are not what was written")
        except DamagedError as error:
            self.damaged(file.head.name, error)
            return None
        return SpooledScene(message, reader, file.head.name, is_valid=True)

    def _decoded(self, blob: Blob | None) -> SpooledScene | None:
        if blob is None:
            return None
        message = scene_pb2.GetReply.FromString(blob.header)
        return SpooledScene(message, PayloadReader(blob.payload), blob.name, self._is_valid(blob.name))

    def _name(self, scene_id: str) -> str:
        return scene_id if is_levels(scene_id) else f"{self._boot}/{scene_id}"

    def _is_valid(self, name: str) -> bool:
        return is_levels(name) or name.startswith(self._name(""))


def is_levels(scene_id: str) -> bool:
    """Return whether the name is that of a scene with levels."""
    return scene_id.endswith(_SUFFIX)


def name_of_levels(digest: str) -> str:
    """Return the name of a new scene with levels."""
    return new_name(digest) + _SUFFIX


def new_name(digest: str) -> str:
    """Return a name that no worker has ever used, so that a name and version always stand for the same content."""
    return digest[:_PREFIX_LENGTH] + secrets.token_hex(_RANDOM_BYTES)
