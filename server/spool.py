"""Blobs on disk that outlive the process: by name, each owner's apart, within a byte budget."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lumigrad.protos.chunks import allocate_bytes
from lumigrad.server import logs, spool_file, spool_folder
from lumigrad.server.metrics import Metrics
from lumigrad.server.shelf import Shelf
from lumigrad.server.spool_file import DamagedError, Head
from lumigrad.server.trash import Trash, remove

T = TypeVar("T")

# Of the digests that stand for names on the disk.
_DIGITS = 32
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Blob:
    """What was written under a name."""

    name: str
    header: bytes
    payload: memoryview


@dataclass(frozen=True)
class _Entry:
    path: str
    # The key of the other name; empty: it has none.
    alias: str


class Spool:
    """All files of one worker. When they are too many, those that were used least recently go."""

    def __init__(self, folder: str, limit_bytes: int, metrics: Metrics) -> None:
        """Take the folder, or make it; one that cannot be used, or that another process uses, is an OSError."""
        self._folder = folder
        self._metrics = metrics
        self._lock = threading.Lock()
        self._shelf: Shelf[_Entry] = Shelf(limit_bytes, self._dropped)
        self._key_of_alias: dict[str, str] = {}
        self._trash = Trash()
        self._claim = spool_folder.claimed(folder)
        self._number = 0
        for file in spool_folder.files(folder, self._trash):
            self._number = file.number
            # A crash may have come between a file and the end of the one before it.
            self._forget(file.key)
            self._add(file.key, _Entry(file.path, file.alias), file.nbytes)

    def __len__(self) -> int:
        return len(self._shelf)

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return self._shelf.bytes

    def drawer(self, owner: str) -> Drawer:
        """What belongs to one owner."""
        return Drawer(self, _digest(owner))

    def write(
        self, key: str, alias: str, head: Head, buffers: Sequence[memoryview], is_wanted: Callable[[], bool]
    ) -> str:
        """Write a blob; returns how that went, in one word."""
        if head.file_bytes > self._shelf.limit_bytes:
            return "too_large"
        self._make_room(head.file_bytes)
        with self._lock:
            self._number += 1
            path = spool_folder.path(self._folder, key, alias, self._number)
        part = path + spool_folder.PART
        try:
            self._write_part(part, head, buffers)
            # Only who forgets something waits for the disk here, to be certain of it.
            with self._trash.renaming:
                os.rename(part, path)
                with self._lock:
                    is_written = is_wanted()
                    if is_written:
                        self._forget(key)
                        self._add(key, _Entry(path, alias), head.file_bytes)
                    else:
                        self._trash.put(path)
        except OSError as error:
            remove(part)
            logs.event("cannot write to the spool", logging.WARNING, why=error.strerror)
            return "failed"
        self.sweep()
        return "written" if is_written else "unwanted"

    def count_write(self, kind: str, result: str) -> None:
        """Have the metrics show how a write went."""
        self._metrics.spool_writes.labels(kind, result).inc()

    def read(self, key: str, allocate: Callable[[int], memoryview]) -> Blob | None:
        """The blob, unless it is not there or damaged."""
        with self._lock:
            entry = self._shelf.get(key)
        if entry is None:
            return None
        found = self._checked(key, entry, lambda: spool_file.read(entry.path, allocate))
        if found is None:
            return None
        self._metrics.spool_reads.labels(_kind(key), "read").inc()
        return Blob(found[0].name, found[0].header, found[1])

    def heads(self, prefix: str) -> Iterator[Head]:
        """Of all blobs whose key begins so."""
        with self._lock:
            entries = [(key, entry) for key, entry in self._shelf.items() if key.startswith(prefix)]
        for key, entry in entries:
            head = self._checked(key, entry, lambda path=entry.path: spool_file.read_head(path))  # type: ignore[misc]
            if head is not None:
                yield head

    def key_of_alias(self, alias: str) -> str:
        """The key of the blob that has another name; empty: there is none."""
        with self._lock:
            return self._key_of_alias.get(alias, "")

    def touch(self, key: str) -> bool:
        """Whether there is a blob; to ask is a use of it."""
        with self._lock:
            return self._shelf.get(key) is not None

    def forget(self, key: str) -> bool:
        """Forget a blob; False if there is none. After a crash it might be there again, until `settle` returns."""
        with self._lock:
            return self._forget(key)

    def settle(self) -> None:
        """See to it that nothing that was forgotten comes back."""
        self._trash.settle()

    def sweep(self) -> None:
        """Give the disk the room back that forgotten blobs take."""
        self._trash.settle()
        self._trash.sweep()

    def _write_part(self, part: str, head: Head, buffers: Sequence[memoryview]) -> None:
        try:
            spool_file.write(part, head, buffers)
        except OSError as error:
            # The disk may have less room than the budget says: what is old makes way for what is new.
            needed = self._shelf.limit_bytes - self._shelf.bytes + head.file_bytes
            remove(part)
            if error.errno not in _NO_ROOM or not self._make_room(needed):
                raise
            spool_file.write(part, head, buffers)

    def _make_room(self, nbytes: int) -> bool:
        """Drop what was used least recently, until so many bytes of the budget are free; whether that dropped any."""
        with self._lock:
            before = len(self._shelf)
            while self._shelf.bytes + nbytes > self._shelf.limit_bytes and self._shelf.drop_oldest(keep_newest=False):
                pass
            dropped = before - len(self._shelf)
        if dropped:
            self.sweep()
        return dropped > 0

    def _checked(self, key: str, entry: _Entry, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except FileNotFoundError:
            # It was forgotten meanwhile.
            return None
        except DamagedError as error:
            logs.event("a damaged file of the spool is removed", logging.WARNING, file=entry.path, why=error)
            with self._lock:
                if self._shelf.peek(key) is entry:
                    self._forget(key)
            self.sweep()
            self._metrics.spool_reads.labels(_kind(key), "damaged").inc()
            return None
        except OSError as error:
            logs.event("cannot read from the spool", logging.WARNING, file=entry.path, why=error.strerror)
            self._metrics.spool_reads.labels(_kind(key), "failed").inc()
            return None

    def _add(self, key: str, entry: _Entry, nbytes: int) -> None:
        if entry.alias:
            self._key_of_alias[entry.alias] = key
        self._shelf.put(key, entry, nbytes)

    def _forget(self, key: str) -> bool:
        entry = self._shelf.pop(key)
        if entry is None:
            return False
        self._let_go(key, entry)
        return True

    def _dropped(self, key: str, entry: _Entry, reason: str) -> None:
        self._metrics.evictions.labels("spool", reason).inc()
        self._let_go(key, entry)

    def _let_go(self, key: str, entry: _Entry) -> None:
        if self._key_of_alias.get(entry.alias) == key:
            del self._key_of_alias[entry.alias]
        self._trash.put(entry.path)


class Drawer:
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
        """Write a blob, in place of what has the name; False if that failed, which the log tells, or was unwanted.

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
        result = self._spool.write(self._key(kind, name), other, head, buffers, is_wanted)
        self._spool.count_write(kind, result)
        return result == "written"

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
        return self._spool.heads(self._key(kind, "")[:-_DIGITS])

    def touch(self, kind: str, name: str) -> bool:
        """Whether there is a blob of a name; to ask is a use of it."""
        return self._spool.touch(self._key(kind, name))

    def forget(self, kind: str, name: str) -> bool:
        """Forget a blob; False if there is none. After a crash it might be there again, until `settle` returns."""
        return self._spool.forget(self._key(kind, name))

    def settle(self) -> None:
        """See to it that nothing that was forgotten comes back."""
        self._spool.settle()

    def _key(self, kind: str, name: str) -> str:
        return f"{self._folder}/{kind}/{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _kind(key: str) -> str:
    return key.split("/")[1]
