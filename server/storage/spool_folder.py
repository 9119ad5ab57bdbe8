"""The folder of the spool: claims it, lists its files and removes them durably."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

GONE = ".gone"


class Trash:
    """Files to remove: `sync` renames them durably, `sweep` removes them, which may take long."""

    def __init__(self) -> None:
        self._named: deque[str] = deque()
        self._renamed: deque[str] = deque()
        # Held while files are renamed, so that `sync` waits for renames of other threads.
        self.renaming = threading.Lock()

    def put(self, path: str) -> None:
        """Add a file. It keeps its name until `sync` returns."""
        self._named.append(path)

    def sync(self) -> None:
        """Rename the added files and fsync their folders, so that they stay removed after a power failure."""
        with self.renaming:
            folders = set()
            while self._named:
                path = self._named.popleft()
                folders.add(os.path.dirname(path))
                try:
                    os.rename(path, path + GONE)
                except OSError:
                    remove(path)
                else:
                    self._renamed.append(path + GONE)
            for folder in folders:
                # A missing folder needs no fsync.
                with contextlib.suppress(OSError):
                    sync_folder(folder)

    def sweep(self) -> None:
        """Remove the renamed files."""
        with contextlib.suppress(IndexError):
            while True:
                remove(self._renamed.popleft())


def remove(path: str) -> None:
    """Remove a file; errors are ignored."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def sync_folder(path: str) -> None:
    """Fsync a folder, so that the names in it are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# The suffix of a file that is being written.
PART = ".part"
_LOCK = "lock"
# The digests of a blob's name and alias, and a number that is larger for newer files.
_FORM = re.compile(r"([0-9a-f]{32})-([0-9a-f]{32}|0)-([0-9a-f]{16})")


@dataclass(frozen=True)
class SpoolFile:
    """A completely written file.

    Attributes:
        path: The file's path.
        key: OWNER/KIND/NAME of its blob; owner and name as digests.
        alias: The same with the alias as name; empty: it has none.
        number: Larger than the numbers of all earlier files.
        nbytes: Its size in bytes.
    """

    path: str
    key: str
    alias: str
    number: int
    nbytes: int


def claimed(folder: str) -> int:
    """Create the folder if needed and lock it; returns the descriptor that holds the lock.

    OSError if it belongs to another user or another worker uses it.
    """
    os.makedirs(os.path.dirname(os.path.abspath(folder)), exist_ok=True)
    if not os.path.isdir(folder):
        os.mkdir(folder)
    if os.stat(folder).st_uid != os.geteuid():
        raise OSError(errno.EPERM, "it belongs to another user")
    # Other users must not read tenants' scenes.
    os.chmod(folder, 0o700)
    lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise OSError(errno.EBUSY, "another worker uses it") from None
    return lock


def path(folder: str, key: str, alias: str, number: int) -> str:
    """The path of a new file; creates its folders."""
    owner, kind, name = key.split("/")
    for where in (os.path.join(folder, owner), os.path.join(folder, owner, kind)):
        if not os.path.isdir(where):
            os.makedirs(where, 0o700, exist_ok=True)
            sync_folder(os.path.dirname(where))
    return os.path.join(folder, owner, kind, f"{name}-{alias.rpartition('/')[2] or 0}-{number:016x}")


def files(folder: str, trash: Trash) -> list[SpoolFile]:
    """All complete files, the oldest first; partial files left by a crash go to the trash."""
    found = []
    for owner in _folders(folder):
        for kind in _folders(owner.path):
            for entry in os.scandir(kind.path):
                form = _FORM.fullmatch(entry.name)
                if form is None:
                    trash.put(entry.path)
                    continue
                where = f"{owner.name}/{kind.name}"
                alias = "" if form[2] == "0" else f"{where}/{form[2]}"
                nbytes = entry.stat(follow_symlinks=False).st_size
                found.append(SpoolFile(entry.path, f"{where}/{form[1]}", alias, int(form[3], 16), nbytes))
    return sorted(found, key=lambda file: file.number)


def _folders(path: str) -> Iterator[os.DirEntry[str]]:
    return (entry for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False))
