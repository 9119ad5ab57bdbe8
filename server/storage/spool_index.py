"""The index of a spool: its blobs, their sizes, and which to evict for a new one."""

from __future__ import annotations

import errno
import os
import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from lumigrad.server.core.accounts import Account, Reservation
from lumigrad.server.core.errors import BusyError

# Blobs of this kind are evicted only for blobs of the same kind, and only after an idle time.
LASTING = "training"


@dataclass(eq=False)
class Entry:
    """A blob, possibly still being written.

    Attributes:
        alias: The key of its alias; empty without an alias.
        space: Reservation of bytes.
        file_slot: Reservation in the count of files.
        used: The time of its last use, by the monotonic clock.
    """

    path: str
    alias: str
    nbytes: int
    space: Reservation
    file_slot: Reservation
    used: float = field(default_factory=time.monotonic)

    def release(self) -> None:
        """Release its reservations."""
        self.space.release()
        self.file_slot.release()


class SpoolIndex:
    """The blobs by key, OWNER/KIND/NAME. Not thread-safe: the owner holds a lock around every call."""

    def __init__(self, space: Account, files: Account, idle_seconds: float) -> None:
        """Create an empty index; a training's snapshot may be evicted for another after `idle_seconds` without use."""
        self._space = space
        self._files = files
        self._idle_seconds = idle_seconds
        # Entries by OWNER/KIND; the least recently used first.
        self._folders: defaultdict[str, OrderedDict[str, Entry]] = defaultdict(OrderedDict)
        self._key_of_alias: dict[str, str] = {}

    def get(self, key: str) -> Entry | None:
        """Look up an entry and mark it as used."""
        entries = self._of(key)
        entry = entries.get(key)
        if entry is not None:
            entry.used = time.monotonic()
            entries.move_to_end(key)
        return entry

    def peek(self, key: str) -> Entry | None:
        """Look up an entry; does not mark it as used."""
        return self._of(key).get(key)

    def has(self, key: str, entry: Entry) -> bool:
        """Return whether `entry` is stored under `key`; does not mark it as used."""
        return self._of(key).get(key) is entry

    def items(self, folder: str) -> list[tuple[str, Entry]]:
        """Return the keys and entries of one OWNER/KIND, the least recently used first."""
        return list(self._folders[folder].items())

    def key_of_alias(self, alias: str) -> str:
        """Return the key of the blob with an alias; empty if there is none."""
        return self._key_of_alias.get(alias, "")

    def drop_for(self, key: str, nbytes: int, lacking_on_disk: int) -> list[Entry]:
        """Remove enough of the owner's blobs to make room for a new one; none if even all would not be enough.

        Raises OSError if the disk would still be full. `reserve` checks the accounts.
        """
        owner, old = key.split("/", maxsplit=1)[0], self._of(key).get(key)
        bytes_lacking = max(lacking_on_disk, self._space.lacking(owner, nbytes - (old.nbytes if old else 0)))
        files_lacking = self._files.lacking(owner, 0 if old else 1)
        going: list[str] = []
        freed = 0
        for other, entry in self._dispensable(key):
            if freed >= bytes_lacking and len(going) >= files_lacking:
                break
            going.append(other)
            freed += entry.nbytes
        if freed < lacking_on_disk:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if freed < bytes_lacking or len(going) < files_lacking:
            return []
        return [entry for entry in map(self.pop, going) if entry is not None]

    def reserve(self, key: str, path: str, alias: str, nbytes: int) -> Entry:
        """Reserve the room that a blob needs beyond the blob it replaces; raises BusyError if too little is left."""
        owner, old = key.split("/", maxsplit=1)[0], self._of(key).get(key)
        space = self._space.reserve(owner, max(0, nbytes - (old.nbytes if old else 0)))
        try:
            return Entry(path, alias, nbytes, space, self._files.reserve(owner, 0 if old else 1))
        except BusyError:
            space.release()
            raise

    def put(self, key: str, entry: Entry) -> None:
        """Store a blob under an unused key; raises BusyError if the room of the replaced blob was taken meanwhile."""
        entry.space.resize(entry.nbytes)
        entry.file_slot.resize(1)
        self._of(key)[key] = entry
        if entry.alias:
            self._key_of_alias[entry.alias] = key

    def put_oldest(self, key: str, entry: Entry) -> None:
        """Store a blob under an unused key as the least recently used of its folder."""
        entries = self._of(key)
        entries[key] = entry
        entries.move_to_end(key, last=False)
        if entry.alias:
            self._key_of_alias.setdefault(entry.alias, key)

    def pop(self, key: str) -> Entry | None:
        """Remove and return an entry."""
        entry = self._of(key).pop(key, None)
        if entry is None:
            return None
        entry.release()
        if self._key_of_alias.get(entry.alias) == key:
            del self._key_of_alias[entry.alias]
        return entry

    def _dispensable(self, key: str) -> Iterator[tuple[str, Entry]]:
        """Yield the entries that may be evicted for a blob with this key, in order."""
        owner, kind, _ = key.split("/")
        for folder, entries in self._folders.items():
            if folder.startswith(f"{owner}/") and kind_of(folder) != LASTING:
                yield from ((other, entry) for other, entry in entries.items() if other != key)
        if kind == LASTING:
            oldest = time.monotonic() - self._idle_seconds
            yield from ((other, it) for other, it in self._of(key).items() if other != key and it.used < oldest)

    def _of(self, key: str) -> OrderedDict[str, Entry]:
        return self._folders[key.rpartition("/")[0]]


def kind_of(key: str) -> str:
    """Return the kind in a blob's key or folder."""
    return key.split("/")[1]
