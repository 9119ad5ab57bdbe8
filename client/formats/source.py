"""The bytes of a scene file, with every offset and count checked against its size."""

from __future__ import annotations

import struct
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.errors import InvalidArgument

# Decoding may always take this many bytes, and more than that only up to this multiple of the file's size. Real scenes
# need far less.
_FREE_BYTES = 64 << 20
_LARGEST_GROWTH = 512
_LONGEST_DESCRIPTION = 500


def malformed(path: str | PathLike[str], description: str) -> InvalidArgument:
    """Returns the error for an invalid file."""
    # Shortened, because descriptions quote the file and libraries' messages.
    return InvalidArgument.of("path", f"{fspath(path)}: {shortened(description, _LONGEST_DESCRIPTION)}")


def shortened(text: str, longest: int = 200) -> str:
    """Returns the text, cut off after `longest` characters."""
    return text if len(text) <= longest else text[:longest] + "…"


def check_growth(path: str | PathLike[str], stored_bytes: int, decoded_bytes: int) -> None:
    """Raises InvalidArgument if decoding would take implausibly much memory."""
    if decoded_bytes > _FREE_BYTES and decoded_bytes > _LARGEST_GROWTH * stored_bytes:
        raise malformed(
            path,
            f"expected at most {_LARGEST_GROWTH} bytes of content per byte of file, but its header announces "
            f"{decoded_bytes:,} bytes in {stored_bytes:,}",
        )


class Source:
    """A file in memory, and errors that name it.

    Attributes:
        path: its path.
        data: its bytes, or those of one part of it.
        part: the name of the part; empty for the whole file.
    """

    def __init__(self, path: str | PathLike[str], data: bytes, part: str = "") -> None:
        self.path = Path(path)
        self.data = data
        self.part = part

    @staticmethod
    def open(path: str | PathLike[str]) -> Source:
        """Reads a whole file."""
        return Source(path, Path(path).read_bytes())

    def __len__(self) -> int:
        return len(self.data)

    def fail(self, description: str) -> InvalidArgument:
        """Returns an error that names the file, the part and the problem."""
        return malformed(self.path, f"{self.part}: {description}" if self.part else description)

    def take(self, offset: int, count: int, what: str) -> memoryview:
        """Returns `count` bytes from `offset`; raises InvalidArgument if the file ends earlier."""
        if count > len(self.data) - offset:
            raise self.fail(
                f"expected {count:,} bytes of {what} at byte {offset:,}, but there are only "
                f"{max(len(self.data) - offset, 0):,} left"
            )
        return memoryview(self.data)[offset : offset + count]

    def unpack(self, layout: str, offset: int, what: str) -> tuple[Any, ...]:
        """Returns little-endian numbers by a `struct` layout without its "<"."""
        layout = "<" + layout
        return struct.unpack(layout, self.take(offset, struct.calcsize(layout), what))

    def array(self, dtype: Any, shape: tuple[int, ...], offset: int, what: str) -> npt.NDArray[Any]:
        """Returns a view of an array in C order."""
        kind = np.dtype(dtype)
        count = kind.itemsize
        for size in shape:
            count *= size
        return np.frombuffer(self.take(offset, count, what), kind).reshape(shape)

    def check_growth(self, decoded_bytes: int) -> None:
        """Raises InvalidArgument if decoding this file would take implausibly much memory."""
        check_growth(self.path, len(self.data), decoded_bytes)
