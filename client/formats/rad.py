"""RAD, the files of Spark 2: compressed columns of up to 65,536 Gaussians at a time, often with a tree of merged ones.

A file is a JSON header and chunks, or the header alone, with each chunk in a .radc file beside it. A chunk is a JSON
header and its columns. Merged Gaussians have children, and are left out: a scene with a tree is read as the scene from
which the tree was built.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float32
from lumigrad.client.formats.scene import StoredScene, joined, sh_from_colors
from lumigrad.client.formats.source import Source, shortened

Array = npt.NDArray[Any]

FILE_MAGIC, CHUNK_MAGIC = b"RAD0", b"RADC"
_VERSION = 1
_ALIGNMENT = 8
_HIGHEST_DEGREE = 3
# The largest number of codes to which labels of harmonics may refer.
_MOST_CODES = 1 << 18
# Types of stored numbers by encoding; a quaternion in three bytes counts as three numbers.
_KINDS = {
    **dict.fromkeys(("r8", "r8_delta", "s8", "s8_delta", "ln_0r8", "oct88r8"), "u1"),
    **dict.fromkeys(("f16", "f16_lebytes", "ln_f16"), "<f2"),
    **dict.fromkeys(("f32", "f32_lebytes"), "<f4"),
    "u16": "<u2",
    "u32": "<u4",
}


def read_rad(source: Source) -> StoredScene:
    """Reads the Gaussians without children of a whole file, or of one chunk."""
    chunks = [_Chunk.read(source, 0)] if source.data.startswith(CHUNK_MAGIC) else _chunks(source)
    codes = {degree: found for chunk in chunks for degree, found in chunk.codes.items()}
    scenes = [scene for scene in (chunk.scene(codes) for chunk in chunks) if len(scene)]
    if not scenes:
        raise source.fail("expected at least one Gaussian without children, got none")
    scene = joined(scenes)
    merged = sum(chunk.count for chunk in chunks) - len(scene)
    # Spark copies the numbers of any format, and does not say of which.
    details: dict[str, Any] = {"format": "rad", "axes": "those of the file that it was made from, read as of a .ply"}
    return replace(scene, details=details | ({"merged_left_out": merged} if merged else {}))


def _chunks(source: Source) -> list[_Chunk]:
    header, start = _header(source, 0, FILE_MAGIC)
    if header.get("type") != "gsplat":
        raise source.fail(f'expected "type": "gsplat", got {_quoted(header.get("type"))}')
    ranges, chunks = header.get("chunks"), []
    if not isinstance(ranges, list) or not all(isinstance(each, dict) for each in ranges):
        raise source.fail(f'expected "chunks", a list of objects, got {_quoted(ranges)}')
    for each in ranges:
        if each.get("filename") is None:
            chunks.append(_Chunk.read(source, start + _whole_number(source, each, "offset")))
        else:
            chunks.append(_Chunk.read(_beside(source, each["filename"]), 0))
    count = _whole_number(source, header, "count")
    if (found := sum(chunk.count for chunk in chunks)) != count:
        raise source.fail(f"expected {count:,} Gaussians, got {found:,} in {len(chunks):,} chunks")
    return chunks


def _beside(source: Source, name: Any) -> Source:
    """Opens the file of a chunk in the folder of the header's file."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\\" in name:
        raise source.fail(f"expected the name of a file beside it for each chunk, got {_quoted(name)}")
    path = source.path.parent / name
    if not path.is_file():
        raise source.fail(f"expected its chunk {shortened(name)} beside it, got no such file")
    return Source.open(path)


def _header(source: Source, offset: int, magic: bytes) -> tuple[dict[str, Any], int]:
    """Returns a JSON header, and the offset of what follows it."""
    if bytes(source.take(offset, len(magic), "signature")) != magic:
        raise source.fail(f"expected {magic.decode()} at byte {offset:,}")
    (length,) = source.unpack("I", offset + 4, "length of a header")
    text = bytes(source.take(offset + 8, length, "header"))
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise source.fail(f"expected JSON at byte {offset + 8:,}: {error}") from error
    version = header.get("version") if isinstance(header, dict) else None
    if version != _VERSION:
        raise source.fail(f'expected "version": {_VERSION} at byte {offset + 8:,}, got {_quoted(version)}')
    return header, offset + 8 + math.ceil(length / _ALIGNMENT) * _ALIGNMENT


def _quoted(value: Any) -> str:
    return shortened(json.dumps(value), 60)


def _whole_number(source: Source, of: Mapping[str, Any], name: str) -> int:
    value = of.get(name)
    if type(value) is not int or value < 0:
        raise source.fail(f'expected "{name}", a whole number from 0 on, got {_quoted(value)}')
    return value


@dataclass(frozen=True)
class _Chunk:
    """A chunk: `columns` are the properties of its header by name; the data of the first one begin at `start`."""

    source: Source
    count: int
    columns: Mapping[str, Mapping[str, Any]]
    start: int

    @staticmethod
    def read(source: Source, offset: int) -> _Chunk:
        header, end = _header(source, offset, CHUNK_MAGIC)
        columns = header.get("properties")
        if not isinstance(columns, list) or not all(isinstance(each, dict) for each in columns):
            raise source.fail(f'expected "properties", a list of objects, got {_quoted(columns)}')
        # The size of the data, which the header has, too, lies between.
        named = {str(each.get("property")): each for each in columns}
        return _Chunk(source, _whole_number(source, header, "count"), named, end + 8)

    @cached_property
    def codes(self) -> dict[int, Float32]:
        """The harmonics [C, 2 * degree + 1, 3] of each degree to which labels refer."""
        names = {degree: f"sh{degree}_code" for degree in range(1, _HIGHEST_DEGREE + 1)}
        return {
            degree: self._floats(name, 3 * (2 * degree + 1), None).reshape(-1, 2 * degree + 1, 3)
            for degree, name in names.items()
            if name in self.columns
        }

    def scene(self, codes: Mapping[int, Float32]) -> StoredScene:
        """Returns the Gaussians without children; `codes` are those of all chunks."""
        scene = StoredScene(
            means=self._floats("center", 3, self.count),
            quats=self._quats(),
            scales=self._floats("scales", 3, self.count),
            opacities=self._floats("alpha", 1, self.count)[:, 0],
            sh=np.concatenate([sh_from_colors(self._floats("rgb", 3, self.count)), *self._harmonics(codes)], axis=1),
        )
        if "child_count" not in self.columns:
            return scene
        return scene.reordered(self._whole_numbers("child_count") == 0)

    def _harmonics(self, codes: Mapping[int, Float32]) -> list[Float32]:
        """Returns [count, 2 * degree + 1, 3] for each degree from 1 on."""
        if "sh_label" not in self.columns:
            found = [degree for degree in range(1, _HIGHEST_DEGREE + 1) if f"sh{degree}" in self.columns]
            columns = {degree: self._floats(f"sh{degree}", 3 * (2 * degree + 1), self.count) for degree in found}
            bands = {degree: band.reshape(self.count, 2 * degree + 1, 3) for degree, band in columns.items()}
        else:
            labels = self._whole_numbers("sh_label")
            least = min((len(found) for found in codes.values()), default=0)
            if self.count and int(labels.max()) >= least:
                raise self.source.fail(f"expected labels of {least:,} codes of harmonics, got {int(labels.max()):,}")
            bands = {degree: found[labels] for degree, found in codes.items()}
        if sorted(bands) != list(range(1, len(bands) + 1)):
            raise self.source.fail(f"expected harmonics of all degrees up to the highest, got {sorted(bands)}")
        return [bands[degree] for degree in sorted(bands)]

    def _quats(self) -> Float32:
        """Returns [count, 4] (w, x, y, z)."""
        if self._encoding("orientation") == "oct88r8":
            octets = self._array("orientation", "u1", 3, self.count).reshape(self.count, 3)
            return _quats_from_octahedron(octets / 255.0)
        imaginary = self._floats("orientation", 3, self.count).astype(np.float64)
        real = np.sqrt(np.maximum(0.0, 1.0 - np.square(imaginary).sum(axis=1, keepdims=True)))
        return np.concatenate([real, imaginary], axis=1).astype(np.float32)

    def _floats(self, name: str, width: int, count: int | None) -> Float32:
        """Returns a column as [count, width]; without `count` it has any number of rows."""
        encoding = self._encoding(name)
        numbers = self._numbers(name, width, count)
        values: Array
        match encoding:
            case "r8" | "r8_delta":
                low, high = self._limit(name, "min"), self._limit(name, "max")
                values = low + numbers / 255.0 * (high - low)
            case "s8" | "s8_delta":
                values = numbers.view(np.int8) / 127.0 * self._limit(name, "max")
            case "ln_0r8":
                low, high = self._limit(name, "min"), self._limit(name, "max")
                values = np.where(numbers == 0, 0.0, np.exp(low + (numbers - 1.0) * ((high - low) / 254.0)))
            case "ln_f16":
                values = np.exp(numbers.astype(np.float64))
            case "f16" | "f16_lebytes" | "f32" | "f32_lebytes":
                values = numbers
            case _:
                raise self.source.fail(f"expected {name} as floats or their levels, got {_quoted(encoding)}")
        return np.ascontiguousarray(values, np.float32)

    def _whole_numbers(self, name: str) -> Array:
        """Returns a column as [count]."""
        if self._encoding(name) not in ("u16", "u32"):
            raise self.source.fail(f"expected {name} as u16 or u32, got {_quoted(self._encoding(name))}")
        return self._numbers(name, 1, self.count)[:, 0]

    def _numbers(self, name: str, width: int, count: int | None) -> Array:
        """Returns the stored numbers of a column, [count, width]."""
        encoding = self._encoding(name)
        kind = np.dtype(_KINDS[encoding])
        if encoding.endswith("_lebytes"):
            # The lowest bytes of all numbers come first.
            octets = self._array(name, "u1", width * kind.itemsize, count)
            flat = np.ascontiguousarray(octets.reshape(kind.itemsize, -1).T).view(kind)
        else:
            flat = self._array(name, kind.str, width, count)
        numbers = np.ascontiguousarray(flat.reshape(width, -1).T)
        return np.cumsum(numbers, axis=0, dtype=np.uint8) if encoding.endswith("_delta") else numbers

    def _array(self, name: str, kind: str, width: int, count: int | None) -> Array:
        """Returns the content of a column as it is stored, one component after the other, [width * count]."""
        column, size = self.columns[name], width * np.dtype(kind).itemsize
        most = size * (_MOST_CODES if count is None else count)
        if count is not None:
            self.source.check_growth(most)
        offset, length = (_whole_number(self.source, column, key) for key in ("offset", "bytes"))
        stored = self.source.take(self.start + offset, length, name)
        match column.get("compression"):
            case None:
                content = bytes(stored)
            case "gz":
                content = self._inflated(name, stored, most)
            case other:
                raise self.source.fail(f'expected the compression "gz" of {name}, got {_quoted(other)}')
        if len(content) > most or len(content) % size or (count is not None and len(content) < most):
            raise self.source.fail(f"expected {most:,} bytes of {name}, got {len(content):,}")
        return np.frombuffer(content, kind)

    def _inflated(self, name: str, stored: memoryview, most: int) -> bytes:
        """Returns the content of a column without a header of zlib or gzip, of which more than `most` bytes are cut."""
        try:
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(stored, most + 1)
        except zlib.error as error:
            raise self.source.fail(f"expected deflated bytes of {name}: {error}") from error

    def _encoding(self, name: str) -> str:
        if name not in self.columns:
            raise self.source.fail(f"expected columns with {name}, got {', '.join(self.columns)}")
        encoding = self.columns[name].get("encoding")
        if encoding not in _KINDS:
            raise self.source.fail(f"expected {name} as one of {', '.join(_KINDS)}, got {_quoted(encoding)}")
        return str(encoding)

    def _limit(self, name: str, key: str) -> float:
        value = self.columns[name].get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        raise self.source.fail(f'expected "{key}" of {name}, a number, got {_quoted(value)}')


def _quats_from_octahedron(fractions: Array) -> Float32:
    """Returns quaternions [N, 4] (w, x, y, z) of an axis on an unfolded octahedron, and half a turn's fraction."""
    x, y = 2.0 * fractions[:, 0] - 1.0, 2.0 * fractions[:, 1] - 1.0
    z = 1.0 - np.abs(x) - np.abs(y)
    # Points outside the inner square are those of the lower half, folded outwards.
    folded = np.maximum(-z, 0.0)
    axis = np.stack([x - np.copysign(folded, x), y - np.copysign(folded, y), z], axis=1)
    axis /= np.linalg.norm(axis, axis=1, keepdims=True)
    half_angle = fractions[:, 2:] * (np.pi / 2.0)
    return np.concatenate([np.cos(half_angle), np.sin(half_angle) * axis], axis=1).astype(np.float32)
