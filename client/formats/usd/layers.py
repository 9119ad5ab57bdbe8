"""Opens USD stages of unknown origin: no implausible counts, no layer outside the file's folder, no URL."""

from __future__ import annotations

import struct
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from lumigrad.client.base.extras import MissingPackage, require
from lumigrad.client.formats.source import check_growth, malformed

SUFFIXES = (".usd", ".usda", ".usdc", ".usdz")
_MOST_LAYERS = 1000
# The oldest Python that usd-core has wheels for.
_OLDEST_PYTHON = (3, 11)
_MAGIC = b"PXR-USDC"
_MARKS = (b"#usda ", _MAGIC)
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


def _check_crates(path: Path, layer: Path) -> None:
    """Checks the crate in a layer's file, or the crates in a package; text passes.

    Args:
        path: the scene file, for the error.
        layer: the file to check: the scene file, or one that it refers to.
    """
    with open(layer, "rb") as file:
        start = file.read(len(_MAGIC))
        if start == _MAGIC:
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
        if file.read(len(_MAGIC)) == _MAGIC:
            yield _Crate(path, file, start, member.file_size)


def looks_like_usd(start: bytes, path: Path) -> bool:
    """Whether a file that starts with these bytes is a text, binary or zipped USD file."""
    return start.startswith(_MARKS) or (path.suffix.lower() == ".usdz" and start.startswith(b"PK"))


def pxr(module: str, purpose: str) -> ModuleType:
    """Imports a module of OpenUSD; raises MissingPackage where the extra `usd` is not installed."""
    if tuple(sys.version_info) < _OLDEST_PYTHON:
        raise MissingPackage(f'{purpose} needs the package "usd-core", which needs Python 3.11 or later')
    return require(f"pxr.{module}", "usd", purpose)


def open_stage(path: Path) -> tuple[Any, int]:
    """Returns a stage, and the size of all its layers' files, bytes.

    Raises:
        InvalidArgument: the file or one of its layers is damaged, absent, or lies outside the file's folder.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise malformed(path, f"expected a USD file to end in {', '.join(SUFFIXES)}, got {path.name!r}; rename it")
    layers, size = _layers(path)
    return pxr("Usd", "reading USD files").Stage.Open(layers[0]), size


@contextmanager
def checked(path: Path) -> Iterator[None]:
    """Turns OpenUSD's errors inside the block into InvalidArgument."""
    try:
        yield
    except pxr("Tf", "reading USD files").ErrorException as error:
        raise malformed(path, f"expected a USD file, but it is damaged: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Returns OpenUSD's first message without the source location: Error in F at line N in file S : 'TEXT'."""
    try:
        first = str(error).strip().splitlines()[0]
        return first.partition(" : ")[2].strip().strip("'") or first
    except UnicodeDecodeError:
        # OpenUSD quotes the file, whose text need not be UTF-8.
        return "it has text that is not UTF-8"


def _layers(path: Path) -> tuple[list[Any], int]:
    """Returns all layers that the stage will compose, the root first, and the size of their files, bytes.

    They are checked before the stage opens, because opening follows every reference.
    """
    sdf, ar = (pxr(name, "reading USD files") for name in ("Sdf", "Ar"))
    folder = path.parent.resolve()
    _check_crates(path, path)
    root = sdf.Layer.FindOrOpen(str(folder / path.name))
    if root is None:
        raise malformed(path, "expected a USD file, but it does not open")
    layers, waiting, names, files = [root], [root], {root.identifier}, {folder / path.name}
    while waiting:
        layer = waiting.pop()
        for name in layer.GetCompositionAssetDependencies():
            anchored = sdf.ComputeAssetPathRelativeToLayer(layer, name)
            if anchored in names:
                continue
            names.add(anchored)
            file = Path(ar.SplitPackageRelativePathOuter(anchored)[0])
            # "://" would be a URL, ":SDF_FORMAT_ARGS:" a generated layer, "`" an expression.
            if ":" in anchored or "`" in name or folder not in file.resolve().parents:
                raise malformed(path, f"expected layers in its own folder only, but it refers to {name!r}")
            found = None
            if file.is_file():
                _check_crates(path, file)
                found = sdf.Layer.FindOrOpen(anchored)
            if found is None:
                raise malformed(path, f"expected the layer {name!r}, which {layer.GetDisplayName()} refers to")
            if len(layers) == _MOST_LAYERS:
                raise malformed(path, f"expected at most {_MOST_LAYERS:,} layers")
            files.add(file)
            layers.append(found)
            waiting.append(found)
    return layers, sum(file.stat().st_size for file in files)
