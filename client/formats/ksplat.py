"""Gaussians in .ksplat files (GaussianSplats3D): sections of buckets, at three levels of compression."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.replacing import replaced
from lumigrad.client.formats.scene import StoredScene, colors_of_sh, joined, sh_from_colors, to_bytes
from lumigrad.client.formats.source import Source
from lumigrad.client.values.affine import unit_quats

Array = npt.NDArray[Any]

_HEADER_BYTES, _SECTION_BYTES = 4096, 1024
# The default range of harmonics in 8 bits.
_HARMONICS_RANGE = (-1.5, 1.5)
_DEFAULT_RANGE = 32767


@dataclass(frozen=True)
class _Level:
    """Types of one compression level; above level 0, positions are steps around a bucket's centre."""

    mean: str
    number: str
    harmonics: str

    def record(self, degree: int) -> np.dtype[Any]:
        count = 3 * ((degree + 1) ** 2 - 1)
        fields = [("mean", self.mean, 3), ("scale", self.number, 3), ("quat", self.number, 4), ("rgba", "u1", 4)]
        return np.dtype([*fields, ("harmonics", self.harmonics, (count,))])


_LEVELS = (_Level("<f4", "<f4", "<f4"), _Level("<u2", "<f2", "<f2"), _Level("<u2", "<f2", "u1"))


@dataclass(frozen=True)
class _Section:
    """The header of one section, and the offset of its data."""

    start: int
    level: int
    count: int
    room: int
    bucket_capacity: int
    buckets: int
    block_size: float
    bucket_bytes: int
    steps: int
    full_buckets: int
    partial_buckets: int
    degree: int

    @staticmethod
    def read(source: Source, offset: int, start: int, level: int) -> _Section:
        return _Section(start, level, *source.unpack("4IfH2xI4xIIH", offset, "section header"))

    @property
    def record(self) -> np.dtype[Any]:
        return _LEVELS[self.level].record(self.degree)

    @property
    def centers_start(self) -> int:
        return self.start + 4 * self.partial_buckets

    @property
    def records_start(self) -> int:
        return self.centers_start + self.bucket_bytes * self.buckets

    @property
    def end(self) -> int:
        return self.records_start + self.room * self.record.itemsize


def looks_like_ksplat(source: Source) -> bool:
    """Whether the header is plausible; the format has no magic number."""
    if len(source) < _HEADER_BYTES:
        return False
    major, minor, sections, used, room, count, level = source.unpack("BB2x4IH", 0, "header")
    return bool(
        major == 0
        and minor >= 1
        and 1 <= sections <= len(source) // _SECTION_BYTES
        and used <= sections
        and count <= room
        and level < len(_LEVELS)
    )


def read_ksplat(source: Source) -> StoredScene:
    """Reads all sections; sections of a lower degree are padded with harmonics of 0."""
    major, minor = source.unpack("BB", 0, "header")
    if major != 0 or minor < 1:
        raise source.fail(f"expected .ksplat version 0.1 or a later 0.x at byte 0, got {major}.{minor}")
    (level,) = source.unpack("H", 20, "header")
    if level >= len(_LEVELS):
        raise source.fail(f"expected compression level 0, 1 or 2 at byte 20, got {level}")
    sections = _sections(source, level)
    low, high = source.unpack("2f", 36, "header")
    harmonics_range = (low or _HARMONICS_RANGE[0], high or _HARMONICS_RANGE[1])
    scenes = [_read_section(source, section, harmonics_range) for section in sections if section.count]
    if not scenes:
        raise source.fail("expected at least one Gaussian, got none")
    return replace(joined(scenes), details={"format": "ksplat", "compression_level": level})


def _sections(source: Source, level: int) -> list[_Section]:
    (room,) = source.unpack("I", 4, "header")
    # Checked before the loop, because a header may announce billions.
    source.take(_HEADER_BYTES, room * _SECTION_BYTES, "section headers")
    start = _HEADER_BYTES + room * _SECTION_BYTES
    sections = []
    for index in range(room):
        offset = _HEADER_BYTES + index * _SECTION_BYTES
        section = _Section.read(source, offset, start, level)
        if section.degree > 3:
            raise source.fail(f"expected harmonics of degree 0 to 3 at byte {offset + 40:,}, got {section.degree}")
        if section.count > section.room:
            raise source.fail(
                f"expected at most {section.room:,} Gaussians, the room of the section, at byte {offset:,}, "
                f"got {section.count:,}"
            )
        if section.count:
            sections.append(section)
        start = section.end
    return sections


def _read_section(source: Source, section: _Section, harmonics_range: tuple[float, float]) -> StoredScene:
    records = source.array(section.record, (section.count,), section.records_start, "records")
    means = records["mean"].astype(np.float64)
    if section.level:
        steps = section.steps or _DEFAULT_RANGE
        means = (means - steps) * (section.block_size / 2.0 / steps) + _centers(source, section)
    levels = records["rgba"] / 255.0
    return StoredScene(
        means=means.astype(np.float32),
        quats=records["quat"].astype(np.float32),
        scales=records["scale"].astype(np.float32),
        opacities=levels[:, 3].astype(np.float32),
        sh=np.concatenate([sh_from_colors(levels[:, :3]), _higher(section, records, harmonics_range)], axis=1),
    )


def _centers(source: Source, section: _Section) -> Array:
    """Returns [count, 3], the centre of each Gaussian's bucket: full buckets first, then those with listed sizes."""
    sizes = source.array("<u4", (section.partial_buckets,), section.start, "sizes of buckets").astype(np.int64)
    left = section.count - min(section.count, section.full_buckets * section.bucket_capacity)
    if left > sizes.sum() or section.full_buckets + section.partial_buckets > section.buckets:
        raise source.fail(
            f"expected buckets for {section.count:,} Gaussians at byte {section.start:,}, got {section.full_buckets:,} "
            f"of {section.bucket_capacity:,} and {section.partial_buckets:,} with {int(sizes.sum()):,} in all"
        )
    if section.bucket_bytes < 12:
        raise source.fail(f"expected 12 bytes or more for each bucket's centre, got {section.bucket_bytes}")
    width = section.bucket_bytes // 4
    table = source.array("<f4", (section.buckets, width), section.centers_start, "centres of buckets")
    whole = np.arange(section.count - left) // max(section.bucket_capacity, 1)
    ends = np.cumsum(sizes)
    partial = section.full_buckets + np.searchsorted(ends, np.arange(left), side="right")
    return table[np.concatenate([whole, partial]), :3].astype(np.float64)


def _higher(section: _Section, records: Array, harmonics_range: tuple[float, float]) -> Array:
    """Returns harmonics [count, K - 1, 3]; the file groups them by degree, then by channel."""
    result = np.empty((section.count, (section.degree + 1) ** 2 - 1, 3), np.float32)
    stored = records["harmonics"].astype(np.float32)
    if section.level == 2:
        low, high = harmonics_range
        stored = np.float32(low) + stored / np.float32(255.0) * np.float32(high - low)
    for band in range(1, section.degree + 1):
        first, width = band**2 - 1, 2 * band + 1
        block = stored[:, 3 * first : 3 * (first + width)].reshape(section.count, 3, width)
        result[:, first : first + width] = block.transpose(0, 2, 1)
    return result


def write_ksplat(scene: StoredScene, path: str | PathLike[str]) -> None:
    """Writes one section of compression level 0: float32 but for base colours and opacities, which have 8 bits."""
    records = np.empty(len(scene), _LEVELS[0].record(scene.degree))
    records["mean"], records["scale"] = scene.means, scene.scales
    records["quat"] = unit_quats(scene.quats)
    records["rgba"] = to_bytes(np.concatenate([colors_of_sh(scene.sh), scene.opacities[:, None]], axis=1))
    for band in range(1, scene.degree + 1):
        first, width = band**2 - 1, 2 * band + 1
        block = scene.sh[:, first + 1 : first + 1 + width].transpose(0, 2, 1)
        records["harmonics"][:, 3 * first : 3 * (first + width)] = block.reshape(len(scene), 3 * width)
    header, section, count = bytearray(_HEADER_BYTES), bytearray(_SECTION_BYTES), len(scene)
    struct.pack_into("<BB2x4IH", header, 0, 0, 1, 1, 1, count, count, 0)
    struct.pack_into("<2f", header, 36, *_HARMONICS_RANGE)
    # Counts; no buckets, which only positions in 16 bits need; bytes of the section; degree.
    struct.pack_into("<2I", section, 0, count, count)
    struct.pack_into("<I", section, 28, records.nbytes)
    struct.pack_into("<H", section, 40, scene.degree)
    with replaced(path) as new, open(new, "wb") as file:
        file.write(header + section)
        file.write(records.tobytes())
