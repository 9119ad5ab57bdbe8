"""Whether a file is still the one that was read."""

from __future__ import annotations

import os

# Of a file that is not there.
Stamp = tuple[int, int, int] | None


def stamp_of(path: str) -> Stamp:
    """Changes whenever the file, or what a link points at, is written or replaced."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
