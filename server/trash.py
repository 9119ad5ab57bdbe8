"""Files that are not wanted any more, on their way out."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque

GONE = ".gone"


class Trash:
    """Takes files at once, renames them when it settles, and removes them, which may take long, when it is swept."""

    def __init__(self) -> None:
        self._named: deque[str] = deque()
        self._renamed: deque[str] = deque()
        # Held while files get other names: who waits for it may rely on what somebody else has begun.
        self.renaming = threading.Lock()

    def put(self, path: str) -> None:
        """Take a file. It is there under its name until `settle` returns."""
        self._named.append(path)

    def settle(self) -> None:
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
