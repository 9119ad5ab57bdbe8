"""Writes new files next to those that they replace, so that a failure leaves the old file intact."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path

# How much of a file's name a temporary name keeps, characters, to stay within the limits of file systems.
_LONGEST_STEM = 40
_MOST_LINKS = 40
# Errors of replacing a file that can only be written: one that is mounted by itself, as in a container, or that belongs
# to somebody else in a folder like /tmp.
_KEPT = (errno.EBUSY, errno.EXDEV, errno.EPERM, errno.EACCES)

# NumPy's error for a full disk has neither the system's error code nor the name of the file.
_NOT_WHOLE = re.compile(r"\d+ requested and \d+ written")


@contextmanager
def replaced(path: str | PathLike[str], *, mode: int = 0o666) -> Iterator[Path]:
    """Yields the path of a new file in the same folder, with the same suffix, which replaces a file after the block.

    An error in the block removes the new file and leaves the old file unchanged. A symbolic link stays, and its target
    is replaced. The new file has the permissions and, if possible, the owner of the old file. A path that is not a
    regular file, such as a pipe or a device, is itself yielded and written directly.

    Args:
        path: the file to write.
        mode: permissions of a file that does not exist yet, less the process's umask.

    Raises:
        OSError: the folder does not exist or is not writable, or the old file is not writable; names `path`.
    """
    path = Path(path)
    new = _beside(path, mode)
    if new is None:
        yield path
        return
    old = Path(os.path.realpath(path))
    try:
        try:
            yield new
            _replace(old, new)
        except OSError as error:
            if error.errno is None and _NOT_WHOLE.fullmatch(str(error)):
                text = f"Not written whole ({error}); is the disk full?"
                raise OSError(errno.EIO, text, str(path)) from error
            # The error of a full disk names no file.
            if error.filename in (None, str(new), new) and error.errno is not None:
                error.filename, error.filename2 = str(path), None
            raise
    finally:
        new.unlink(missing_ok=True)


def write_text(path: str | PathLike[str], text: str) -> None:
    """Writes a text file, see `replaced`. Names of files in the text may have bytes that are not UTF-8."""
    with replaced(path) as new:
        new.write_text(text, encoding="utf-8", errors="surrogateescape")


def _beside(path: Path, mode: int) -> Path | None:
    """Creates the empty file that will replace a file; returns None if the file must be written directly."""
    if _is_of_a_process(path):
        return None
    old = Path(os.path.realpath(path))
    try:
        status = old.stat()
    except OSError:
        status = None
    if status is not None and not stat.S_ISREG(status.st_mode):
        return None
    if status is not None and not os.access(old, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    new = old.with_name(f".{old.stem[:_LONGEST_STEM]}.{secrets.token_hex(4)}{old.suffix}")
    try:
        file = os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)
    except OSError as error:
        if status is not None and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            # The folder is read-only, but the file itself may be writable.
            return None
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        if status is not None:
            with suppress(PermissionError):
                os.fchown(file, status.st_uid, status.st_gid)
            os.fchmod(file, stat.S_IMODE(status.st_mode))
    finally:
        os.close(file)
    return new


def _replace(old: Path, new: Path) -> None:
    if old.exists():
        # A crash of the machine must not leave an empty file in place of the old one.
        with open(new, "rb+") as file:
            os.fsync(file.fileno())
    try:
        os.replace(new, old)
    except OSError as error:
        if error.errno not in _KEPT:
            raise
        shutil.copyfile(new, old)


def _is_of_a_process(path: Path) -> bool:
    """Whether a path names an open file of a process, such as /dev/stdout, which must be written, not replaced."""
    for _ in range(_MOST_LINKS):
        if re.fullmatch(r"/proc/.+/fd", os.path.realpath(path.parent)):
            return True
        if not path.is_symlink():
            return False
        path = path.parent / os.readlink(path)
    return False
