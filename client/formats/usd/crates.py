"""Checks the counts in binary USD files (crates) before OpenUSD allocates memory for them."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from lumigrad.client.formats.source import check_growth, malformed

MAGIC = b"PXR-USDC"
_MOST_SECTIONS = 64
# Offsets in each section of its uint64 counts of entries or bytes, and the least memory that each counted item takes.
_COUNTS = {
    b"TOKENS": ((0, 8), (8, 1)),
    b"STRINGS": ((0, 4),),
    b"FIELDS": ((0, 16),),
    b"FIELDSETS": ((0, 4),),
    b"PATHS": ((0, 16), (8, 16)),
    b"SPECS": ((0, 12),),
}
_CRATES = (".usd", ".usdc")
_ZIP_MAGIC = b"PK"
# Size of the fixed part of a zip member's header, and the offset in it of the lengths of name and padding.
_LOCAL_BYTES, _LOCAL_LENGTHS = 30, 26


@dataclass(frozen=True)
class _Crate:
    """A crate in an open file, from byte `start`."""

    path: Path
    file: BinaryIO
    start: int
    size: int

    def unpack(self, layout: str, offset: int) -> tuple[Any, ...]:
        """Returns little-endian numbers by a `struct` layout without its "<"."""
        length = struct.calcsize("<" + layout)
        if offset + length > self.size:
            raise malformed(
                self.path, f"expected {length} bytes at byte {offset:,} of {self.size:,} of a binary USD file"
            )
        self.file.seek(self.start + offset)
        content = self.file.read(length)
        return struct.unpack("<" + layout, content.ljust(length, b"\0"))

    def check(self) -> None:
        """Raises InvalidArgument for a table of contents that does not fit, or an implausible count."""
        (contents,) = self.unpack("Q", 16)
        (sections,) = self.unpack("Q", contents)
        if sections > _MOST_SECTIONS:
            raise malformed(self.path, f"expected at most {_MOST_SECTIONS} sections in USD's table, got {sections:,}")
        for number in range(sections):
            name, start, _ = self.unpack("16sQQ", contents + 8 + 32 * number)
            for place, entry_bytes in _COUNTS.get(name.rstrip(b"\0"), ()):
                (count,) = self.unpack("Q", start + place)
                check_growth(self.path, self.size, count * entry_bytes)


def check_crates(path: Path, layer: Path) -> None:
    """Checks the crate in a layer's file, or the crates in a package; text passes.

    Args:
        path: the scene file, for the error.
        layer: the file to check: the scene file, or one that it refers to.
    """
    with open(layer, "rb") as file:
        start = file.read(len(MAGIC))
        if start == MAGIC:
            _Crate(path, file, 0, layer.stat().st_size).check()
        elif start.startswith(_ZIP_MAGIC):
            for crate in _members(path, file):
                crate.check()


def _members(path: Path, file: BinaryIO) -> Iterator[_Crate]:
    """Yields the crates in a package, whose members are not compressed."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, UnicodeError, struct.error) as error:
        raise malformed(path, f"expected a zip file: {error}") from error
    for member in members:
        if not member.filename.lower().endswith(_CRATES):
            continue
        file.seek(member.header_offset + _LOCAL_LENGTHS)
        lengths = struct.unpack("<HH", file.read(4).ljust(4, b"\0"))
        start = member.header_offset + _LOCAL_BYTES + sum(lengths)
        file.seek(start)
        if file.read(len(MAGIC)) == MAGIC:
            yield _Crate(path, file, start, member.file_size)
