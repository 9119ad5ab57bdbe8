"""Blobs on disk that outlive the process, by tenant and name, within each tenant's share. Replacement is atomic."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lumigrad.protos.chunks import allocate_bytes
from lumigrad.server.core import logs
from lumigrad.server.core.accounts import Account
from lumigrad.server.core.errors import BusyError
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.storage import spool_files
from lumigrad.server.storage.spool_files import DamagedError, Head, PayloadFile, SpoolFile, Trash, remove, sync_folder
from lumigrad.server.storage.spool_index import LASTING, Entry, SpoolIndex, kind_of

T = TypeVar("T")

# Hexadecimal digits of the digests that replace names on disk.
_DIGITS = 32
_RETRY_SECONDS = 5.0
# Errors that may pass once others free resources, unlike a missing or read-only folder.
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR)


@dataclass(frozen=True)
class Blob:
    """A blob read from the spool."""

    name: str
    header: bytes
    payload: memoryview


@dataclass(frozen=True, eq=False)
class SpoolMemory:
    """Memory in an unnamed file, with allocated disk space that counts until it is released."""

    data: memoryview
    release: Callable[[], None]


class Spool:
    """All files of one worker. A new file evicts only files of the same tenant, the least recently used first."""

    def __init__(
        self, folder: str, space: Account, file_account: Account, metrics: Metrics, idle_seconds: float
    ) -> None:
        """Claim the folder, creating it if needed; raises OSError if it is unusable or another process uses it.

        Args:
            folder: The folder of the files.
            space: Counts their bytes.
            file_account: Counts the files.
            metrics: Counts writes, reads and evictions.
            idle_seconds: The time without use after which a training's snapshot may be evicted for another.
        """
        self._folder = folder
        self._metrics = metrics
        self.lock = threading.Lock()
        self._space, self._files = space, file_account
        self.index = SpoolIndex(space, file_account, idle_seconds)
        self._trash = Trash()
        self._claim = spool_files.claimed(folder)
        files = spool_files.files(folder, self._trash)
        self._number = max((file.number for file in files), default=0)
        # A crash may have come after a file was replaced and before it was removed. The older file is removed even if
        # there is no room for the newer.
        newest = {file.key: file for file in files}
        for file in files:
            if newest[file.key] is not file:
                self._trash.put(file.path)
        # Newest first, because the limits may be lower than before.
        for file in sorted(newest.values(), key=lambda file: (kind_of(file.key) != LASTING, -file.number)):
            if not file.is_newer:
                self._take(file)
        self._tell_of_newer([file for file in newest.values() if file.is_newer])
        # Files that do not fit must not be found at the next start, nor have the name of a new file.
        self._trash.sync()

    def __len__(self) -> int:
        return self._files.taken

    @property
    def bytes(self) -> int:
        """The size of all files, those being written included."""
        return self._space.taken

    def of_tenant(self, tenant: str) -> TenantSpool:
        """Return the files of one tenant."""
        return TenantSpool(self, _digest(tenant))

    def write(
        self,
        key: str,
        alias: str,
        head: Head,
        buffers: Iterable[memoryview],
        is_wanted: Callable[[], bool],
        *,
        is_durable: bool,
    ) -> bool:
        """Write a blob; False if it is no longer wanted. Logs and raises BusyError if it cannot be written."""
        kind = kind_of(key)
        try:
            is_written = self._write(key, alias, head, buffers, is_wanted, is_durable=is_durable)
        except (BusyError, OSError) as error:
            why, result = (error.what, "no_room") if isinstance(error, BusyError) else (error.strerror, "failed")
            self._metrics.spool_writes.labels(kind, result).inc()
            logs.event("cannot write to the spool", logging.WARNING, kind=kind, spool=self._folder, why=why)
            if isinstance(error, BusyError):
                raise
            raise _refusal(error) from None
        self._metrics.spool_writes.labels(kind, "written" if is_written else "unwanted").inc()
        return is_written

    def read(self, key: str, allocate: Callable[[int], memoryview]) -> Blob | None:
        """Read a blob; None if it is missing or damaged."""
        with self.lock:
            entry = self.index.get(key)
        if entry is None:
            return None
        found = self._checked(key, entry, lambda: spool_files.read(entry.path, allocate))
        if found is None:
            return None
        self._metrics.spool_reads.labels(kind_of(key), "read").inc()
        return Blob(found[0].name, found[0].header, found[1])

    def open(self, key: str) -> PayloadFile | None:
        """Open a blob to read parts of it; None if it is missing or its head is damaged."""
        with self.lock:
            entry = self.index.get(key)
        return None if entry is None else self._checked(key, entry, lambda: PayloadFile(entry.path))

    def damaged(self, key: str, why: DamagedError) -> None:
        """Delete a blob of which a part turned out to be damaged."""
        with self.lock:
            entry = self.index.peek(key)
        if entry is not None:
            self._remove_damaged(key, entry, why)

    def head(self, key: str) -> Head | None:
        """Return the head of a blob; None if it is missing or damaged."""
        with self.lock:
            entry = self.index.peek(key)
        return None if entry is None else self._checked(key, entry, lambda: spool_files.read_head(entry.path))

    def forget(self, key: str) -> bool:
        """Delete a blob; False if there is none. Until `sync` returns, it may reappear after a crash."""
        with self.lock:
            return self._forget(key)

    def memory(self, key: str, nbytes: int) -> SpoolMemory:
        """Return memory in a file that ends with the process; raises BusyError if there is no room for it."""
        try:
            entry = self._reserved(key, "", nbytes)
            try:
                return SpoolMemory(spool_files.mapped(entry.path + spool_files.PART, nbytes), entry.release)
            except BaseException:
                entry.release()
                raise
        except OSError as error:
            raise _refusal(error) from None

    def sync(self) -> None:
        """Make deletions durable."""
        self._trash.sync()

    def sweep(self) -> None:
        """Free the disk space of deleted blobs."""
        self._trash.sync()
        self._trash.sweep()

    def _write(
        self,
        key: str,
        alias: str,
        head: Head,
        buffers: Iterable[memoryview],
        is_wanted: Callable[[], bool],
        *,
        is_durable: bool,
    ) -> bool:
        entry = self._reserved(key, alias, head.file_bytes)
        try:
            part = entry.path + spool_files.PART
            try:
                spool_files.write(part, head, buffers, is_durable=is_durable)
                is_written = self._give_name(part, key, entry, is_wanted, is_durable=is_durable)
            except BaseException:
                remove(part)
                raise
            if is_durable:
                sync_folder(os.path.dirname(part))
        finally:
            with self.lock:
                if not self.index.has(key, entry):
                    entry.release()
        if is_durable:
            self.sweep()
        return is_written

    def _reserved(self, key: str, alias: str, nbytes: int) -> Entry:
        """Reserve room for a new file, evicting files of its owner."""
        if self._lacking_on_disk(nbytes):
            self.sweep()
        with self.lock:
            self._number += 1
            number = self._number
            dropped = self.index.drop_for(key, nbytes, self._lacking_on_disk(nbytes))
            for old in dropped:
                self._metrics.evictions.labels("spool", "room").inc()
                self._trash.put(old.path)
            entry = self.index.reserve(key, "", alias, nbytes)
        try:
            if dropped:
                self.sweep()
            entry.path = spool_files.path(self._folder, key, alias, number)
        except BaseException:
            entry.release()
            raise
        return entry

    def _give_name(self, part: str, key: str, entry: Entry, is_wanted: Callable[[], bool], *, is_durable: bool) -> bool:
        """Rename a written file to replace the previous one, if it is still wanted."""
        replaced: Entry | None = None
        # `sync` waits for this lock, so that deletions follow the rename, and the previous file is gone afterwards.
        with self._trash.renaming:
            if not is_wanted():
                # The caller that cancelled the write may have called `sync` already: a crash would bring the file back.
                remove(part)
                return False
            os.rename(part, entry.path)
            with self.lock:
                is_put = False
                try:
                    if not is_wanted():
                        return False
                    replaced = self.index.pop(key)
                    self.index.put(key, entry)
                    is_put = True
                finally:
                    if replaced is not None and (is_durable or not is_put):
                        self._trash.put(replaced.path)
                    if not is_put:
                        self._trash.put(entry.path)
            if replaced is not None and not is_durable:
                # If the process dies, the newer file counts, so nothing has to be made durable.
                remove(replaced.path)
        return True

    def _forget(self, key: str) -> bool:
        entry = self.index.pop(key)
        if entry is not None:
            self._trash.put(entry.path)
        return entry is not None

    def _take(self, file: SpoolFile) -> None:
        """Count a file of an earlier worker, unless it no longer fits."""
        try:
            entry = self.index.reserve(file.key, file.path, file.alias, file.nbytes)
        except BusyError:
            self._metrics.evictions.labels("spool", "room").inc()
            self._trash.put(file.path)
            return
        self.index.put_oldest(file.key, entry)

    def _tell_of_newer(self, files: Sequence[SpoolFile]) -> None:
        if files:
            what = "a newer version wrote files of the spool, which stay and are not served"
            nbytes = sum(file.nbytes for file in files)
            logs.event(what, logging.WARNING, files=len(files), bytes=nbytes, spool=self._folder)

    def _lacking_on_disk(self, nbytes: int) -> int:
        disk = os.statvfs(self._folder)
        if not disk.f_blocks:
            # File systems without a size, such as ramfs and some in user space, report no blocks at all.
            return 0
        # A file takes whole blocks, plus one for its metadata.
        needed = (nbytes // disk.f_frsize + 2) * disk.f_frsize
        return max(0, needed - disk.f_bavail * disk.f_frsize)

    def _checked(self, key: str, entry: Entry, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except FileNotFoundError:
            # The file was deleted meanwhile.
            return None
        except DamagedError as error:
            self._remove_damaged(key, entry, error)
            return None
        except OSError as error:
            logs.event("cannot read from the spool", logging.WARNING, file=entry.path, why=error.strerror)
            self._metrics.spool_reads.labels(kind_of(key), "failed").inc()
            return None

    def _remove_damaged(self, key: str, entry: Entry, why: DamagedError) -> None:
        logs.event("removing a damaged file from the spool", logging.WARNING, file=entry.path, why=why)
        with self.lock:
            if self.index.has(key, entry):
                self._forget(key)
        self.sweep()
        self._metrics.spool_reads.labels(kind_of(key), "damaged").inc()


class TenantSpool:
    """The blobs of one tenant; names of other tenants never resolve to them."""

    def __init__(self, spool: Spool, folder: str) -> None:
        self._spool = spool
        self._folder = folder

    @property
    def owner(self) -> str:
        """The tenant's name on disk."""
        return self._folder

    def write(
        self,
        kind: str,
        name: str,
        header: bytes,
        buffers: Sequence[memoryview],
        *,
        alias: str = "",
        is_wanted: Callable[[], bool] = lambda: True,
        is_durable: bool = True,
    ) -> bool:
        """Write or replace a blob; False if it was no longer wanted.

        Raises BusyError, which names the limit and its option, if the blob does not fit; the old blob then stays.

        Args:
            kind: A lower-case word; names of different kinds are separate.
            name: Any text.
            header: Data that can be read without the payload.
            buffers: The payload in pieces.
            alias: A second name, for `read_alias`.
            is_wanted: Called at the end, before the blob becomes visible.
            is_durable: Whether the blob survives a power failure; otherwise it survives only the process, and is
                written faster.
        """
        head = spool_files.head_of(name, header, sum(buffer.nbytes for buffer in buffers))
        other = self._key(kind, alias) if alias else ""
        return self._spool.write(self._key(kind, name), other, head, buffers, is_wanted, is_durable=is_durable)

    def write_stream(
        self, kind: str, name: str, header: bytes, payload_bytes: int, pieces: Iterable[memoryview], alias: str
    ) -> None:
        """Durably write a blob whose payload comes in pieces; raises errors as `write` does, and those of `pieces`.

        Room is reserved before the first piece is taken, and released if not all pieces come.
        """
        head = spool_files.head_of(name, header, payload_bytes)
        self._spool.write(self._key(kind, name), self._key(kind, alias), head, pieces, lambda: True, is_durable=True)

    def memory(self, kind: str, nbytes: int) -> SpoolMemory:
        """Return memory in a file that ends with the process; raises BusyError, which names the limit, without room."""
        return self._spool.memory(self._key(kind, secrets.token_hex()), nbytes)

    def open(self, kind: str, name: str) -> PayloadFile | None:
        """Open a blob to read parts of it; None if it is missing or its head is damaged."""
        return self._spool.open(self._key(kind, name))

    def open_alias(self, kind: str, alias: str) -> PayloadFile | None:
        """Open the blob that was last written with an alias; None if it is missing or its head is damaged."""
        with self._spool.lock:
            key = self._spool.index.key_of_alias(self._key(kind, alias))
        return self._spool.open(key) if key else None

    def damaged(self, kind: str, name: str, why: DamagedError) -> None:
        """Delete a blob of which a part turned out to be damaged."""
        self._spool.damaged(self._key(kind, name), why)

    def read(self, kind: str, name: str, allocate: Callable[[int], memoryview] = allocate_bytes) -> Blob | None:
        """Read a blob into a buffer from `allocate`; None if it is missing or damaged."""
        return self._spool.read(self._key(kind, name), allocate)

    def read_alias(self, kind: str, alias: str, allocate: Callable[[int], memoryview] = allocate_bytes) -> Blob | None:
        """Read the blob that was last written with an alias; None if it is missing or damaged."""
        with self._spool.lock:
            key = self._spool.index.key_of_alias(self._key(kind, alias))
        return self._spool.read(key, allocate) if key else None

    def has_alias(self, kind: str, alias: str) -> bool:
        """Return whether a blob with an alias exists; marks it as used."""
        with self._spool.lock:
            key = self._spool.index.key_of_alias(self._key(kind, alias))
            return self._spool.index.get(key) is not None if key else False

    def head(self, kind: str, name: str) -> Head | None:
        """Return the head of a blob; None if it is missing or damaged."""
        return self.head_at(kind, _digest(name))

    def head_at(self, kind: str, digest: str) -> Head | None:
        """Return the head of a blob by the digest of its name."""
        return self._spool.head(f"{self._folder}/{kind}/{digest}")

    def digest(self, name: str) -> str:
        """Return the name of a blob on disk."""
        return _digest(name)

    def digests(self, kind: str) -> set[str]:
        """Return the digests of the names of all blobs of a kind."""
        with self._spool.lock:
            return {key.rpartition("/")[2] for key, _ in self._spool.index.items(f"{self._folder}/{kind}")}

    def touch(self, kind: str, name: str) -> bool:
        """Return whether a blob exists; marks it as used."""
        with self._spool.lock:
            return self._spool.index.get(self._key(kind, name)) is not None

    def forget(self, kind: str, name: str) -> bool:
        """Delete a blob; False if there is none. Until `sync` returns, it may reappear after a crash."""
        return self._spool.forget(self._key(kind, name))

    def sync(self) -> None:
        """Make deletions durable."""
        self._spool.sync()

    def _key(self, kind: str, name: str) -> str:
        return f"{self._folder}/{kind}/{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _refusal(error: OSError) -> BusyError:
    """Return the error of a file that cannot be written, with a retry time only if the cause may pass by itself."""
    seconds = _RETRY_SECONDS if error.errno in _PASSING else None
    return BusyError(f"the spool (--spool) cannot be written: {error.strerror}", seconds)
