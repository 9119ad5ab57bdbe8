"""Errors of files that say which file it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike


@contextmanager
def naming(path: str | PathLike[str]) -> Iterator[None]:
    """Gives an error of the system this name if it has none: writing to a full disk tells no file."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
