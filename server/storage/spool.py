"""Blobs on disk that outlive the process: by name, each owner's apart, within a share for each."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lumigrad.protos.chunks import allocate_bytes
from lumigrad.server.core import logs
from lumigrad.server.core.accounts import Account
from lumigrad.server.core.errors import BusyError
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.storage import spool_file, spool_folder
from lumigrad.server.storage.spool_file import DamagedError, Head
from lumigrad.server.storage.spool_folder import Trash, remove, sync_folder
from lumigrad.server.storage.spool_index import LASTING, Entry, SpoolIndex, kind_of

T = TypeVar("T")

# Of the digests that stand for names on the disk.
_DIGITS = 32
_RETRY_SECONDS = 5.0


@dataclass(frozen=True)
class Blob:
    """What was written under a name."""

    name: str
    header: bytes
    payload: memoryview


class Spool:
    """All files of one worker. What finds no room makes its owner's least recently used files go, and nobody else's."""

    def __init__(self, folder: str, space: Account, places: Account, metrics: Metrics, idle_seconds: float) -> None:
        """Take the folder, or make it; one that cannot be used, or that another process uses, is an OSError.

        Args:
            folder: Where the files are.
            space: Counts their bytes.
            places: Counts the files.
            metrics: Shows what is written, read and dropped.
            idle_seconds: How long nobody has used a lasting blob before another one may take its place.
        """
        self._folder = folder
        self._metrics = metrics
        self._lock = threading.Lock()
        self._index = SpoolIndex(space, places, idle_seconds)
        self._trash = Trash()
        self._claim = spool_folder.claimed(folder)
        files = spool_folder.files(folder, self._trash)
        self._number = max((file.number for file in files), default=0)
        # The newest first: there may be less room than there was.
        for file in sorted(files, key=lambda file: (kind_of(file.key) != LASTING, -file.number)):
            self._take(file)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def bytes(self) -> int:
        """The size of all files, those that are being written included."""
        return self._index.bytes

    def of_tenant(self, tenant: str) -> TenantSpool:
        """What belongs to one owner."""
        return TenantSpool(self, _digest(tenant))

    def write(
        self, key: str, alias: str, head: Head, buffers: Sequence[memoryview], is_wanted: Callable[[], bool]
    ) -> bool:
        """Write a blob; False if it is not wanted any more. BusyError: it cannot be written, which the log tells."""
        kind = kind_of(key)
        try:
            is_written = self._write(key, alias, head, buffers, is_wanted)
        except (BusyError, OSError) as error:
            why, result = (error.what, "no_room") if isinstance(error, BusyError) else (error.strerror, "failed")
            self._metrics.spool_writes.labels(kind, result).inc()
            logs.event("cannot write to the spool", logging.WARNING, kind=kind, why=why)
            if isinstance(error, BusyError):
                raise
            raise BusyError(f"the spool (--spool) cannot be written: {why}", _RETRY_SECONDS) from None
        self._metrics.spool_writes.labels(kind, "written" if is_written else "unwanted").inc()
        return is_written

    def read(self, key: str, allocate: Callable[[int], memoryview]) -> Blob | None:
        """The blob, unless it is not there or damaged."""
        with self._lock:
            entry = self._index.get(key)
        if entry is None:
            return None
        found = self._checked(key, entry, lambda: spool_file.read(entry.path, allocate))
        if found is None:
            return None
        self._metrics.spool_reads.labels(kind_of(key), "read").inc()
        return Blob(found[0].name, found[0].header, found[1])

    def heads(self, folder: str) -> Iterator[Head]:
        """Of all blobs of one OWNER/KIND."""
        with self._lock:
            entries = self._index.items(folder)
        for key, entry in entries:
            head = self._checked(key, entry, lambda path=entry.path: spool_file.read_head(path))  # type: ignore[misc]
            if head is not None:
                yield head

    def key_of_alias(self, alias: str) -> str:
        """The key of the blob that has another name; empty: there is none."""
        with self._lock:
            return self._index.key_of_alias(alias)

    def touch(self, key: str) -> bool:
        """Whether there is a blob; to ask is a use of it."""
        with self._lock:
            return self._index.get(key) is not None

    def forget(self, key: str) -> bool:
        """Forget a blob; False if there is none. After a crash it might be there again, until `sync` returns."""
        with self._lock:
            return self._forget(key)

    def sync(self) -> None:
        """See to it that nothing that was forgotten comes back."""
        self._trash.sync()

    def sweep(self) -> None:
        """Give the disk the room back that forgotten blobs take."""
        self._trash.sync()
        self._trash.sweep()

    def _write(
        self, key: str, alias: str, head: Head, buffers: Sequence[memoryview], is_wanted: Callable[[], bool]
    ) -> bool:
        nbytes = head.file_bytes
        if self._lacking_on_disk(nbytes):
            self.sweep()
        with self._lock:
            self._number += 1
            number = self._number
            dropped = self._index.drop_for(key, nbytes, self._lacking_on_disk(nbytes))
            for entry in dropped:
                self._metrics.evictions.labels("spool", "room").inc()
                self._trash.put(entry.path)
            entry = self._index.reserve(key, "", alias, nbytes)
        try:
            if dropped:
                self.sweep()
            entry.path = spool_folder.path(self._folder, key, alias, number)
            part = entry.path + spool_folder.PART
            try:
                spool_file.write(part, head, buffers)
                is_written = self._give_name(part, key, entry, is_wanted)
            except BaseException:
                remove(part)
                raise
            sync_folder(os.path.dirname(part))
        finally:
            with self._lock:
                if not self._index.has(key, entry):
                    entry.release()
        self.sweep()
        return is_written

    def _give_name(self, part: str, key: str, entry: Entry, is_wanted: Callable[[], bool]) -> bool:
        """Put a file that is written in the place of the one before it, if it is wanted still."""
        # Only who forgets something waits for the disk here, to be certain of it.
        with self._trash.renaming:
            os.rename(part, entry.path)
            with self._lock:
                try:
                    if is_wanted():
                        self._forget(key)
                        self._index.put(key, entry)
                        return True
                    return False
                finally:
                    if not self._index.has(key, entry):
                        self._trash.put(entry.path)

    def _forget(self, key: str) -> bool:
        entry = self._index.pop(key)
        if entry is not None:
            self._trash.put(entry.path)
        return entry is not None

    def _take(self, file: spool_folder.SpoolFile) -> None:
        """Count a file that a former worker left, unless it was replaced or there is no room for it any more."""
        try:
            entry = self._index.reserve(file.key, file.path, file.alias, file.nbytes)
        except BusyError:
            self._metrics.evictions.labels("spool", "room").inc()
            self._trash.put(file.path)
            return
        if not self._index.put_oldest(file.key, entry):
            # A crash came between a file and the end of the one before it.
            entry.release()
            self._trash.put(file.path)

    def _lacking_on_disk(self, nbytes: int) -> int:
        disk = os.statvfs(self._folder)
        # A file takes whole blocks, and one for what describes it.
        needed = (nbytes // disk.f_frsize + 2) * disk.f_frsize
        return max(0, needed - disk.f_bavail * disk.f_frsize)

    def _checked(self, key: str, entry: Entry, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except FileNotFoundError:
            # It was forgotten meanwhile.
            return None
        except DamagedError as error:
            logs.event("a damaged file of the spool is removed", logging.WARNING, file=entry.path, why=error)
            with self._lock:
                if self._index.has(key, entry):
                    self._forget(key)
            self.sweep()
            self._metrics.spool_reads.labels(kind_of(key), "damaged").inc()
            return None
        except OSError as error:
            logs.event("cannot read from the spool", logging.WARNING, file=entry.path, why=error.strerror)
            self._metrics.spool_reads.labels(kind_of(key), "failed").inc()
            return None


class TenantSpool:
    """The blobs of one owner: no name of anybody else's leads to them."""

    def __init__(self, spool: Spool, folder: str) -> None:
        self._spool = spool
        self._folder = folder

    def write(
        self,
        kind: str,
        name: str,
        header: bytes,
        buffers: Sequence[memoryview],
        *,
        alias: str = "",
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Write a blob, in place of what has the name; False if it was unwanted.

        BusyError, which names the limit and its option, if there is no room for it; what is there stays then.

        Args:
            kind: Of the blob, a lower-case word: kinds do not see each other.
            name: Any text.
            header: What its owner wants to know of it before it reads the rest.
            buffers: The payload in pieces.
            alias: Another name, under which `read_alias` finds it.
            is_wanted: Asked at the end, when nothing is visible yet.
        """
        head = spool_file.head_of(name, header, sum(buffer.nbytes for buffer in buffers))
        other = self._key(kind, alias) if alias else ""
        return self._spool.write(self._key(kind, name), other, head, buffers, is_wanted)

    def read(self, kind: str, name: str, allocate: Callable[[int], memoryview] = allocate_bytes) -> Blob | None:
        """The blob of a name, with its payload in the buffer that `allocate` gives; None: not there, or damaged."""
        return self._spool.read(self._key(kind, name), allocate)

    def read_alias(self, kind: str, alias: str, allocate: Callable[[int], memoryview] = allocate_bytes) -> Blob | None:
        """The blob that was last written with another name."""
        key = self._spool.key_of_alias(self._key(kind, alias))
        return self._spool.read(key, allocate) if key else None

    def has_alias(self, kind: str, alias: str) -> bool:
        """Whether there is a blob with another name."""
        return bool(self._spool.key_of_alias(self._key(kind, alias)))

    def heads(self, kind: str) -> Iterator[Head]:
        """Of all blobs of a kind."""
        return self._spool.heads(f"{self._folder}/{kind}")

    def touch(self, kind: str, name: str) -> bool:
        """Whether there is a blob of a name; to ask is a use of it."""
        return self._spool.touch(self._key(kind, name))

    def forget(self, kind: str, name: str) -> bool:
        """Forget a blob; False if there is none. After a crash it might be there again, until `sync` returns."""
        return self._spool.forget(self._key(kind, name))

    def sync(self) -> None:
        """See to it that nothing that was forgotten comes back."""
        self._spool.sync()

    def _key(self, kind: str, name: str) -> str:
        return f"{self._folder}/{kind}/{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
