"""A tenant's scenes in the spool: written a while after they were stored, and read when the worker lacks one."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.server.core.errors import BusyError
from lumigrad.server.device.transfer import Transfer
from lumigrad.server.storage.scenes import StoredScene
from lumigrad.server.storage.spool import Blob, TenantSpool
from lumigrad.server.storage.spool_writer import SpoolWriter, Writing
from lumigrad.v1 import scene_pb2

_FILE = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """The same for all processes until the machine starts again; where that cannot be told, no two are the same."""
    try:
        with open(_FILE, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return secrets.token_hex(16)


KIND = "scene"
# A scene that is updated all the time is not written all the time, but when it has not changed for so long.
_REST_SECONDS = 1.0

Allocate = Callable[[int], memoryview]


@dataclass(frozen=True)
class SpooledScene:
    """A scene as it was written.

    Attributes:
        message: As a worker would send it.
        reader: Of its tensors.
        name: Of the blob.
        is_valid: Its name and version stand for it still.
    """

    message: scene_pb2.GetReply
    reader: PayloadReader
    name: str
    is_valid: bool


class SceneSpool:
    """What a store of scenes has beside its memory. Its owner holds a lock around the calls that change anything.

    Names are of one start of the machine: what it loses when the power fails may be an update, and a version that
    was given out once must not be made again. Content is found by its hash after that, too.
    """

    def __init__(self, tenant_spool: TenantSpool, writer: SpoolWriter, transfer: Transfer) -> None:
        self._tenant_spool = tenant_spool
        self._writer = writer
        self._transfer = transfer
        self._boot = boot_id()
        self._writings: dict[str, Writing] = {}
        # Held while a scene is read and made, which nobody should do twice at once.
        self.restoring = threading.RLock()

    def stored(self, scene: StoredScene) -> None:
        """Have a new version written."""
        delay = _REST_SECONDS if scene.version > 1 else 0.0
        self._writings[scene.scene_id] = self._writer.submit(partial(self._write, scene), delay)

    def forget(self, scene_id: str) -> bool:
        """Forget what is written, or is to be; whether there was anything. It is certain once `sync` returns."""
        self.cancel_write(scene_id)
        return self._tenant_spool.forget(KIND, self._name(scene_id))

    def cancel_write(self, scene_id: str) -> None:
        """Write no more of a scene that the memory has no room for; what is written stays."""
        writing = self._writings.pop(scene_id, None)
        if writing is not None:
            self._writer.cancel(writing)

    def sync(self) -> None:
        """See to it that nothing that was forgotten comes back."""
        self._tenant_spool.sync()

    def touch(self, scene_id: str) -> bool:
        """Whether a scene is written; to ask is a use of it."""
        return self._tenant_spool.touch(KIND, self._name(scene_id))

    def has_content(self, content_hash: str) -> bool:
        """Whether a scene of this content is written."""
        return self._tenant_spool.has_alias(KIND, content_hash)

    def read(self, scene_id: str, allocate: Allocate) -> SpooledScene | None:
        """A scene by its name; None: not there, or damaged."""
        return self._decoded(self._tenant_spool.read(KIND, self._name(scene_id), allocate))

    def read_content(self, content_hash: str, allocate: Allocate) -> SpooledScene | None:
        """A scene by its content, likewise."""
        return self._decoded(self._tenant_spool.read_alias(KIND, content_hash, allocate))

    def remove(self, scene: SpooledScene) -> None:
        """Forget a scene of which nothing can be made, or that is stored under another name now."""
        self._tenant_spool.forget(KIND, scene.name)
        self._tenant_spool.sync()

    def infos(self) -> Iterator[scene_pb2.SceneInfo]:
        """What callers are told of all that is written."""
        for head in self._tenant_spool.heads(KIND):
            if head.name.startswith(self._name("")):
                yield scene_pb2.GetReply.FromString(head.header).info

    def _write(self, scene: StoredScene, is_wanted: Callable[[], bool]) -> None:
        tensors = scene.content.tensors
        payload = PayloadWriter()
        arrays = self._transfer.fetch(list(tensors.values()))
        sent = {name: payload.add(array) for name, array in zip(tensors, arrays, strict=True)}
        message = scene_pb2.GetReply(info=scene.info(), scene=scene.content.message(sent), payload_bytes=payload.length)
        # What finds no room is in memory only.
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
