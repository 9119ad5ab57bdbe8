"""Writes folders atomically: a folder appears once it is complete."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

from lumigrad.client.formats.sog import STREAM_NAME
from lumigrad.client.formats.source import malformed

_LOCK = "lock"
_SUFFIX = ".partial"


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yields a new folder beside `path`, which replaces `path` after the block.

    If the block raises, the new folder is removed and the old one is unchanged. What a killed process left behind is
    removed when the same folder is written again.

    Args:
        path: the folder to write; an existing one must be empty or hold streamed SOG, and is replaced.

    Raises:
        InvalidArgument: the folder has other content, or is a file.
        OSError: the folder cannot be written; names `path`.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_dir():
        raise malformed(path, "expected a folder, got a file; name another folder, or remove the file")
    if path.is_dir() and any(path.iterdir()) and not (path / STREAM_NAME).is_file():
        raise malformed(path, f"expected a new folder, an empty one or one with a {STREAM_NAME}, got other files")
    _remove_abandoned(path)
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_SUFFIX}")
    try:
        new.mkdir()
        with open(new / _LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield new
            (new / _LOCK).unlink()
            _swap(new, path)
    except OSError as error:
        # A full disk's error names no file, and other errors name temporary files.
        if error.errno is not None and str(error.filename or new).startswith(str(new)):
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def check_room(path: Path, needed: int) -> None:
    """Raises OSError if the disk of a folder has fewer than `needed` bytes left."""
    free = shutil.disk_usage(path).free
    if free < needed:
        raise OSError(
            errno.ENOSPC, f"expected about {needed / 1e6:,.0f} MB of free disk, there are {free / 1e6:,.0f}", str(path)
        )


def _swap(new: Path, path: Path) -> None:
    """Replaces the folder `path` by the folder `new`."""
    old = new.with_name(f"{new.name}.old{_SUFFIX}")
    if path.exists():
        os.rename(path, old)
    try:
        os.rename(new, path)
    except OSError:
        if old.exists():
            os.rename(old, path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _remove_abandoned(path: Path) -> None:
    """Removes what killed processes left of the same folder; a running process holds a lock."""
    for other in path.parent.glob(f".{escape(path.name)}.*{_SUFFIX}"):
        with suppress(OSError), open(other / _LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(other, ignore_errors=True)
