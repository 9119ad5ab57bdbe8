"""SPZ: Gaussians in a gzip or zstandard stream of quantised columns."""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float32
from lumigrad.client.base.extras import require
from lumigrad.client.base.replacing import replaced
from lumigrad.client.formats.scene import (
    StoredScene,
    flipped,
    from_smallest_three,
    logarithms_of_scales,
    scales_from_logarithms,
    smallest_three,
    to_bytes,
)
from lumigrad.client.formats.source import Source, malformed
from lumigrad.client.values.affine import unit_quats

Array = npt.NDArray[Any]

# The attributes in the order of the file.
ATTRIBUTES = ("positions", "alphas", "colors", "scales", "rotations", "harmonics")
# Base colours are stored as 0.5 + 0.15 c, which covers more than the range 0 to 1.
_COLOR_SCALE = 0.15
_SCALE_STEPS, _SCALE_OFFSET = 16.0, 10.0
LARGEST_FIXED = (1 << 23) - 1
_LEVELS = 511
_DEFAULT_FRACTION_BITS = 12
# The coarsest step of positions, relative to the scene's extent without outliers.
_FINEST_STEP = 1e-4


def sizes(version: int, count: int, degree: int) -> dict[str, int]:
    """Returns the bytes of each attribute; 0 for harmonics of degree 0."""
    each = (6 if version == 1 else 9, 1, 3, 3, 3 if version < 3 else 4, 3 * ((degree + 1) ** 2 - 1))
    return {name: size * count for name, size in zip(ATTRIBUTES, each, strict=True)}


def decode(version: int, count: int, degree: int, fraction_bits: int, parts: dict[str, Source]) -> StoredScene:
    """Decodes Gaussians, in the file's axes, from attributes of the given `sizes`."""

    def rows(name: str, width: int) -> Array:
        return parts[name].array(np.uint8, (count, width), 0, name)

    base = (rows("colors", 3) / 255.0 - 0.5) / _COLOR_SCALE
    levels = parts["harmonics"].array(np.uint8, (count, (degree + 1) ** 2 - 1, 3), 0, "harmonics")
    higher = (levels.astype(np.float32) - 128.0) / 128.0
    return StoredScene(
        means=_positions(version, count, fraction_bits, parts["positions"]),
        quats=_rotations(version, count, parts["rotations"]),
        scales=scales_from_logarithms(rows("scales", 3) / _SCALE_STEPS - _SCALE_OFFSET),
        opacities=(rows("alphas", 1)[:, 0] / 255.0).astype(np.float32),
        sh=np.concatenate([base[:, None], higher], axis=1).astype(np.float32),
    )


def encode(scene: StoredScene, fraction_bits: int, harmonics_bits: tuple[int, int]) -> dict[str, bytes]:
    """Encodes each attribute for versions 3 and 4.

    Args:
        scene: the scene, in the file's axes.
        fraction_bits: fraction bits of positions, see `fitting_fraction_bits`.
        harmonics_bits: bits kept of the coefficients of degree 1, and of higher degrees; 1 to 8.
    """
    fixed = np.rint(scene.means.astype(np.float64) * 2.0**fraction_bits)
    words = np.clip(fixed, -LARGEST_FIXED, LARGEST_FIXED).astype("<i4")
    logarithms = (logarithms_of_scales(scene.scales).astype(np.float64) + _SCALE_OFFSET) * _SCALE_STEPS
    return {
        # Only the lower three bytes of each number are stored.
        "positions": words[..., None].view(np.uint8)[..., :3].tobytes(),
        "alphas": to_bytes(scene.opacities).tobytes(),
        "colors": to_bytes(scene.sh[:, 0].astype(np.float64) * _COLOR_SCALE + 0.5).tobytes(),
        "scales": np.clip(np.rint(logarithms), 0, 255).astype(np.uint8).tobytes(),
        "rotations": _packed_rotations(scene.quats).tobytes(),
        "harmonics": _levels(scene.sh[:, 1:], harmonics_bits).tobytes(),
    }


def fitting_fraction_bits(means: Float32) -> int:
    """Returns the number of fraction bits that makes steps fine enough, unless the farthest position needs fewer."""
    if not len(means):
        return _DEFAULT_FRACTION_BITS
    low, high = np.percentile(means.astype(np.float64), [2, 98], axis=0)
    extent, farthest = float((high - low).max()), float(np.abs(means).max())
    wanted = math.ceil(-math.log2(_FINEST_STEP * extent)) if extent > 0 else _DEFAULT_FRACTION_BITS
    fitting = math.floor(math.log2(LARGEST_FIXED / farthest)) if farthest > 0 else 23
    return max(0, min(max(_DEFAULT_FRACTION_BITS, wanted), fitting, 23))


def _positions(version: int, count: int, fraction_bits: int, part: Source) -> Float32:
    if version == 1:
        return part.array("<f2", (count, 3), 0, "positions").astype(np.float32)
    octets = part.array(np.uint8, (count, 3, 3), 0, "positions").astype(np.int32)
    words = octets[..., 0] | octets[..., 1] << 8 | octets[..., 2] << 16
    # Shifting up and down again extends the sign.
    return (((words << 8) >> 8) / 2.0**fraction_bits).astype(np.float32)


def _rotations(version: int, count: int, part: Source) -> Float32:
    """Returns quaternions [N, 4] (w, x, y, z) from the file's order x, y, z, w."""
    if version < 3:
        others = part.array(np.uint8, (count, 3), 0, "rotations") / 127.5 - 1.0
        return from_smallest_three(np.zeros(count, np.intp), others)
    words = part.array("<u4", (count,), 0, "rotations")
    fields = np.stack([words >> np.uint32(shift) for shift in (20, 10, 0)], axis=1)
    magnitudes = (fields & np.uint32(_LEVELS)) * (math.sqrt(0.5) / _LEVELS)
    others = np.where(fields & np.uint32(512), -magnitudes, magnitudes)
    return from_smallest_three(words >> np.uint32(30), others)[:, [3, 0, 1, 2]]


def _packed_rotations(quats: Float32) -> Array:
    largest, others = smallest_three(unit_quats(quats)[:, [1, 2, 3, 0]])
    magnitudes = np.minimum(np.rint(np.abs(others) * (_LEVELS / math.sqrt(0.5))), _LEVELS).astype(np.uint32)
    fields = magnitudes | np.where(others < 0, np.uint32(512), np.uint32(0))
    words = fields[:, 0] << np.uint32(20) | fields[:, 1] << np.uint32(10) | fields[:, 2]
    return np.asarray(words | largest.astype(np.uint32) << np.uint32(30), "<u4")


def _levels(higher: Float32, harmonics_bits: tuple[int, int]) -> Array:
    """Returns 128 + 128 c for coefficients c, rounded to multiples of a step per degree to compress better."""
    steps = np.full(higher.shape[1], 1 << (8 - harmonics_bits[1]))
    steps[:3] = 1 << (8 - harmonics_bits[0])
    rounded = np.rint(higher.astype(np.float64) * 128.0 / steps[:, None]) * steps[:, None] + 128.0
    return np.asarray(np.clip(rounded, 0, 255), np.uint8)


MAGIC = b"NGSP"
GZIP_MAGIC = b"\x1f\x8b"
_HEADER, _LEGACY_BYTES, _BYTES = "4sIIBBBB", 16, 32
_ANTIALIASED, _EXTENDED = 1, 2
_LARGEST_DEGREE = 4
_LONGEST_EXTENSIONS = 1 << 20
_COORDINATES = 0xADBE0003
# Bits of that extension's value minus 1: right, up, front, and y and z exchanged.
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
        return sizes(self.version, self.count, self.degree)


def read_spz(source: Source, default_signs: tuple[int, int, int] = _RUB_TO_RDF) -> StoredScene:
    """Reads any version.

    Args:
        source: the file.
        default_signs: signs that convert the file's axes, unless it names others; by default from right, up, back to
            right, down, forward.
    """
    if source.data[:2] == GZIP_MAGIC:
        header, parts, extensions = _read_gzip(source)
    else:
        header = _Header.read(source)
        if header.version < 4:
            parts, extensions = _split(header, source, _LEGACY_BYTES)
        else:
            parts, extensions = _read_streams(header, source)
    scene = decode(header.version, header.count, header.degree, header.fraction_bits, parts)
    signs = _signs(extensions, default_signs) if header.flags & _EXTENDED else default_signs
    details = {"format": "SPZ", "version": header.version}
    return replace(flipped(scene, signs), antialiased=bool(header.flags & _ANTIALIASED), details=details)


def write_spz(
    scene: StoredScene, path: str | PathLike[str], *, version: int = 4, harmonics_bits: tuple[int, int] = (5, 4)
) -> None:
    """Writes version 3 or 4.

    Args:
        scene: the scene to write.
        path: the file.
        version: 3 for readers from before 2026, which do not support 4.
        harmonics_bits: bits kept of the coefficients of degree 1, and of higher degrees; 8 is the format's maximum.
    """
    if version not in (3, 4):
        raise malformed(path, f"expected version 3 or 4 to write, got {version}")
    stored = flipped(scene, _RUB_TO_RDF)
    farthest = float(np.abs(stored.means).max(initial=0.0))
    if not farthest <= LARGEST_FIXED:
        raise malformed(
            path,
            f"expected positions within {LARGEST_FIXED:,} scene units of 0 along each axis, got "
            f"{farthest:.9g}; scale the scene or remove its outliers, or save a .ply",
        )
    fraction_bits = fitting_fraction_bits(stored.means)
    parts = encode(stored, fraction_bits, harmonics_bits)
    flags = _ANTIALIASED if scene.antialiased else 0
    start = (MAGIC, version, len(scene), scene.degree, fraction_bits, flags)
    if version == 3:
        content = struct.pack("<" + _HEADER, *start, 0) + b"".join(parts.values())
        # A fixed time stamp makes files of equal scenes identical.
        with replaced(path) as new:
            new.write_bytes(gzip.compress(content, mtime=0))
        return
    compressor = require("zstandard", "io", "writing .spz files of version 4").ZstdCompressor(level=6)
    contents = list(parts.values())[: 6 if scene.degree else 5]
    streams = [compressor.compress(content) for content in contents]
    table = b"".join(struct.pack("<QQ", len(s), len(c)) for s, c in zip(streams, contents, strict=True))
    header = struct.pack("<" + _HEADER + "I12x", *start, len(streams), _BYTES)
    with replaced(path) as new:
        new.write_bytes(header + table + b"".join(streams))


def _split(header: _Header, source: Source, start: int) -> tuple[dict[str, Source], Source]:
    """Returns the attributes, which are stored one after the other, and the data after them."""
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
            path = source.path
            text = f"expected an unpacked file: `gunzip < {path} > NEW` unpacks it; .spz of version {header.version}"
            raise source.fail(f"{text} is not in a gzip stream")
        total = sum(header.sizes.values())
        source.check_growth(total)
        content = stream.decompress(stream.unconsumed_tail, total + _LONGEST_EXTENSIONS)
        # Reads the checksum, which reveals damage.
        stream.decompress(stream.unconsumed_tail, 1)
    except zlib.error as error:
        raise source.fail(f"expected a gzip stream, but it is damaged: {error}") from error
    if not stream.eof:
        raise source.fail("expected a whole gzip stream, but it ends too early or continues after the last attribute")
    return header, *_split(header, Source(source.path, content, "gzip stream"), 0)


def _read_streams(header: _Header, source: Source) -> tuple[dict[str, Source], Source]:
    (table,) = source.unpack("I", 16, "header")
    sizes = header.sizes
    wanted = [name for name in sizes if name != "harmonics" or header.degree]
    if table < _BYTES or header.streams < len(wanted):
        raise source.fail(
            f"expected a table after byte {_BYTES} of at least {len(wanted)} streams, "
            f"got one at byte {table} of {header.streams}"
        )
    source.check_growth(sum(sizes.values()))
    entries = source.array("<u8", (header.streams, 2), table, "table of streams").tolist()
    offset = table + 16 * header.streams
    parts = {"harmonics": Source(source.path, b"", "harmonics")}
    for name, (stored, content) in zip(wanted, entries, strict=False):
        if content != sizes[name]:
            raise source.fail(f"expected {sizes[name]:,} bytes of {name}, the table of streams has {content:,}")
        stream = bytes(source.take(offset, stored, f"compressed {name}"))
        parts[name] = Source(source.path, _inflate(source, stream, content, name), name)
        offset += stored
    return parts, Source(source.path, bytes(source.take(_BYTES, table - _BYTES, "extensions")), "extensions")


def _inflate(source: Source, stream: bytes, size: int, name: str) -> bytes:
    zstandard = require("zstandard", "io", "reading .spz files of version 4")
    try:
        # Reading one more byte reveals a stream that is too long, without decoding the rest.
        content: bytes = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(stream)).read(size + 1)
    except zstandard.ZstdError as error:
        raise source.fail(f"expected a zstd stream of {name}, but it is damaged: {error}") from error
    if len(content) != size:
        raise source.fail(f"expected {size:,} bytes of {name}, the zstd stream holds {len(content):,} or more")
    return content


def _signs(extensions: Source, default: tuple[int, int, int]) -> tuple[int, int, int]:
    """Returns the signs that convert the axes that an extension names to right, down, forward; else the default."""
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
    return default
