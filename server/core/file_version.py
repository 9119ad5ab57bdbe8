"""Detects that a file has changed since it was read."""

from __future__ import annotations

import os

# Modification time, size and inode; None: there is no such file.
FileVersion = tuple[int, int, int] | None


def file_version(path: str) -> FileVersion:
    """A value that changes whenever the file, or the target of a link, is written or replaced."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
