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
        """See to it that whatever was put here is under its name no more."""
        with self.renaming:
            while self._named:
                path = self._named.popleft()
                try:
                    os.rename(path, path + GONE)
                except OSError:
                    remove(path)
                else:
                    self._renamed.append(path + GONE)

    def sweep(self) -> None:
        """Remove what was renamed."""
        with contextlib.suppress(IndexError):
            while True:
                remove(self._renamed.popleft())


def remove(path: str) -> None:
    """Remove a file if it is there and the system lets us."""
    with contextlib.suppress(OSError):
        os.unlink(path)
