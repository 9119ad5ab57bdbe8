"""The folder of the spool: who may use it, what is in it, and what is removed from it for good."""

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
    """Takes files at once, renames them when it settles, and removes them, which may take long, when it is swept."""

    def __init__(self) -> None:
        self._named: deque[str] = deque()
        self._renamed: deque[str] = deque()
        # Held while files get other names: who waits for it may rely on what somebody else has begun.
        self.renaming = threading.Lock()

    def put(self, path: str) -> None:
        """Take a file. It is there under its name until `sync` returns."""
        self._named.append(path)

    def sync(self) -> None:
        """See to it that whatever was put here is under its name no more, not even after the power failed."""
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
                # One that has gone keeps nothing.
                with contextlib.suppress(OSError):
                    sync_folder(folder)

    def sweep(self) -> None:
        """Remove what was renamed."""
        with contextlib.suppress(IndexError):
            while True:
                remove(self._renamed.popleft())


def remove(path: str) -> None:
    """Remove a file if it is there and the system lets us."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def sync_folder(path: str) -> None:
    """See to it that the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Of a file that is being written.
PART = ".part"
_LOCK = "lock"
# The digests of a blob's name and of its other name, and a number that is larger for newer files.
_FORM = re.compile(r"([0-9a-f]{32})-([0-9a-f]{32}|0)-([0-9a-f]{16})")


@dataclass(frozen=True)
class SpoolFile:
    """A file that was written to its end.

    Attributes:
        path: Of the file.
        key: OWNER/KIND/NAME of its blob, as digests but for the kind.
        alias: The same with the other name; empty: it has none.
        number: Larger than of all files written before.
        nbytes: Its size.
    """

    path: str
    key: str
    alias: str
    number: int
    nbytes: int


def claimed(folder: str) -> int:
    """Make the folder if need be, and let no other process use it; returns the descriptor that keeps it so.

    What stands in the way is an OSError.
    """
    os.makedirs(os.path.dirname(os.path.abspath(folder)), exist_ok=True)
    if not os.path.isdir(folder):
        os.mkdir(folder)
    if os.stat(folder).st_uid != os.geteuid():
        raise OSError(errno.EPERM, "it belongs to another user")
    # Scenes are their owners' own.
    os.chmod(folder, 0o700)
    lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise OSError(errno.EBUSY, "another worker uses it") from None
    return lock


def path(folder: str, key: str, alias: str, number: int) -> str:
    """Where a new file is to be; makes the folders on the way."""
    owner, kind, name = key.split("/")
    for where in (os.path.join(folder, owner), os.path.join(folder, owner, kind)):
        if not os.path.isdir(where):
            os.makedirs(where, 0o700, exist_ok=True)
            sync_folder(os.path.dirname(where))
    return os.path.join(folder, owner, kind, f"{name}-{alias.rpartition('/')[2] or 0}-{number:016x}")


def files(folder: str, trash: Trash) -> list[SpoolFile]:
    """All whole files, the oldest first; what a crash has left of others goes to the trash."""
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
