"""Gaussians in Niantic's .spz files: versions 1 to 3 are one gzip stream, version 4 is one zstd stream per attribute.

The format's own axes are right, up, back (RUB); scenes are turned to right, down, forward (RDF), as in PLY files.
Versions 1 to 3 without the gzip around them are read as well.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np

from lumigrad.client.extras import require
from lumigrad.client.formats import spz_codes
from lumigrad.client.formats.axes import flipped
from lumigrad.client.formats.scene import StoredScene
from lumigrad.client.formats.source import Source, malformed

MAGIC = b"NGSP"
GZIP_MAGIC = b"\x1f\x8b"
_HEADER, _LEGACY_BYTES, _BYTES = "4sIIBBBB", 16, 32
_ANTIALIASED, _EXTENDED = 1, 2
_LARGEST_DEGREE = 4
_LONGEST_EXTENSIONS = 1 << 20
_COORDINATES = 0xADBE0003
# Numbers of axes in that extension, less 1: a bit each for right, up, front, and a fourth one for y and z exchanged.
_RIGHT, _UP, _FRONT, _EXCHANGED = 1, 2, 4, 8
_RUB_TO_RDF = (1, -1, -1)


@dataclass(frozen=True)
class _Header:
    version: int
    count: int
    degree: int
    fraction_bits: int
    flags: int
    streams: int

    @staticmethod
    def read(source: Source) -> _Header:
        magic, version, count, degree, fraction_bits, flags, streams = source.unpack(_HEADER, 0, "header")
        if magic != MAGIC:
            raise source.fail(f"expected an .spz header, {MAGIC!r} at byte 0, got {magic!r}")
        if not 1 <= version <= 4:
            raise source.fail(f"expected .spz version 1 to 4 at byte 4, got {version}")
        if degree > _LARGEST_DEGREE:
            raise source.fail(f"expected harmonics of degree 0 to {_LARGEST_DEGREE} at byte 12, got {degree}")
        if fraction_bits > 31:
            raise source.fail(f"expected at most 31 fractional bits at byte 13, got {fraction_bits}")
        return _Header(version, count, degree, fraction_bits, flags, streams)

    @property
    def sizes(self) -> dict[str, int]:
        return spz_codes.sizes(self.version, self.count, self.degree)


def read_spz(source: Source) -> StoredScene:
    """Reads any version."""
    if source.data[:2] == GZIP_MAGIC:
        header, parts, extensions = _read_gzip(source)
    else:
        header = _Header.read(source)
        if header.version < 4:
            parts, extensions = _split(header, source, _LEGACY_BYTES)
        else:
            parts, extensions = _read_streams(header, source)
    scene = spz_codes.decode(header.version, header.count, header.degree, header.fraction_bits, parts)
    signs = _signs(extensions) if header.flags & _EXTENDED else _RUB_TO_RDF
    return replace(flipped(scene, signs), antialiased=bool(header.flags & _ANTIALIASED))


def write_spz(
    scene: StoredScene, path: str | PathLike[str], *, version: int = 4, harmonics_bits: tuple[int, int] = (5, 4)
) -> None:
    """Writes version 3 or 4.

    Args:
        scene: what to write.
        path: the file.
        version: 3 for readers of before 2026, which do not know 4.
        harmonics_bits: kept of the coefficients of degree 1, and of higher degrees; 8 keeps all that the format can.
    """
    if version not in (3, 4):
        raise malformed(path, f"expected version 3 or 4 to write, got {version}")
    stored = flipped(scene, _RUB_TO_RDF)
    farthest = float(np.abs(stored.means).max(initial=0.0))
    if not farthest <= spz_codes.LARGEST_FIXED:
        raise malformed(
            path,
            f"expected positions within {spz_codes.LARGEST_FIXED:,} scene units of 0 along each axis, got "
            f"{farthest:.9g}; scale the scene or leave out its strays, or save a .ply",
        )
    fraction_bits = spz_codes.fitting_fraction_bits(stored.means)
    parts = spz_codes.encode(stored, fraction_bits, harmonics_bits)
    flags = _ANTIALIASED if scene.antialiased else 0
    start = (MAGIC, version, len(scene), scene.degree, fraction_bits, flags)
    if version == 3:
        content = struct.pack("<" + _HEADER, *start, 0) + b"".join(parts.values())
        # A fixed time stamp: the same scene gives the same bytes.
        Path(path).write_bytes(gzip.compress(content, mtime=0))
        return
    compressor = require("zstandard", "io", "writing .spz files of version 4").ZstdCompressor(level=6)
    contents = list(parts.values())[: 6 if scene.degree else 5]
    streams = [compressor.compress(content) for content in contents]
    table = b"".join(struct.pack("<QQ", len(s), len(c)) for s, c in zip(streams, contents, strict=True))
    header = struct.pack("<" + _HEADER + "I12x", *start, len(streams), _BYTES)
    Path(path).write_bytes(header + table + b"".join(streams))


def _split(header: _Header, source: Source, start: int) -> tuple[dict[str, Source], Source]:
    """The attributes one after the other, and what comes behind them."""
    parts = {}
    for name, size in header.sizes.items():
        parts[name] = Source(source.path, bytes(source.take(start, size, name)), name)
        start += size
    return parts, Source(source.path, source.data[start:], "extensions")


def _read_gzip(source: Source) -> tuple[_Header, dict[str, Source], Source]:
    stream = zlib.decompressobj(wbits=31)
    try:
        start = stream.decompress(source.data, _LEGACY_BYTES)
        header = _Header.read(Source(source.path, start, "gzip stream"))
        if header.version > 3:
            raise source.fail(f"expected .spz version 1 to 3 in a gzip stream, got {header.version}")
        total = sum(header.sizes.values())
        source.check_growth(total)
        content = stream.decompress(stream.unconsumed_tail, total + _LONGEST_EXTENSIONS)
        # Reads on to the check sum; a flaw in what was read already shows there.
        stream.decompress(stream.unconsumed_tail, 1)
    except zlib.error as error:
        raise source.fail(f"expected a gzip stream, but it is damaged: {error}") from error
    if not stream.eof:
        raise source.fail("expected a whole gzip stream, but it goes on behind the last attribute or ends too early")
    return header, *_split(header, Source(source.path, content, "gzip stream"), 0)


def _read_streams(header: _Header, source: Source) -> tuple[dict[str, Source], Source]:
    (table,) = source.unpack("I", 16, "header")
    sizes = header.sizes
    wanted = [name for name in sizes if name != "harmonics" or header.degree]
    if table < _BYTES or header.streams < len(wanted):
        raise source.fail(
            f"expected a table behind byte {_BYTES} of at least {len(wanted)} streams, "
            f"got one at byte {table} of {header.streams}"
        )
    source.check_growth(sum(sizes.values()))
    entries = source.array("<u8", (header.streams, 2), table, "table of streams").tolist()
    offset = table + 16 * header.streams
    parts = {"harmonics": Source(source.path, b"", "harmonics")}
    for name, (stored, content) in zip(wanted, entries, strict=False):
        if content != sizes[name]:
            raise source.fail(f"expected {sizes[name]:,} bytes of {name}, the table of streams says {content:,}")
        stream = bytes(source.take(offset, stored, f"compressed {name}"))
        parts[name] = Source(source.path, _inflate(source, stream, content, name), name)
        offset += stored
    return parts, Source(source.path, bytes(source.take(_BYTES, table - _BYTES, "extensions")), "extensions")


def _inflate(source: Source, stream: bytes, size: int, name: str) -> bytes:
    zstandard = require("zstandard", "io", "reading .spz files of version 4")
    try:
        # One byte more shows a stream that is too long; however long it claims to be, no more is ever decoded.
        content: bytes = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(stream)).read(size + 1)
    except zstandard.ZstdError as error:
        raise source.fail(f"expected a zstd stream of {name}, but it is damaged: {error}") from error
    if len(content) != size:
        raise source.fail(f"expected {size:,} bytes of {name}, the zstd stream holds {len(content):,} or more")
    return content


def _signs(extensions: Source) -> tuple[int, int, int]:
    """What takes the file's axes to right, down, forward; RUB unless an extension says otherwise."""
    offset = 0
    while offset < len(extensions):
        kind, size = extensions.unpack("II", offset, "extension header")
        content = extensions.take(offset + 8, size, "extension")
        if kind == _COORDINATES and size >= 4:
            axes = int.from_bytes(content[:4], "little") - 1
            if not 0 <= axes < _EXCHANGED:
                raise extensions.fail(
                    f"expected axes numbered 1 (left, down, back) to 8 (right, up, front), got {axes + 1}; "
                    "convert the file to its default axes, right, up, back"
                )
            return 1 if axes & _RIGHT else -1, -1 if axes & _UP else 1, 1 if axes & _FRONT else -1
        offset += 8 + size
    return _RUB_TO_RDF
