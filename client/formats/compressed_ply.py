"""Gaussians in PlayCanvas' .compressed.ply: 16 bytes each, in blocks of 256 with common bounds."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float32
from lumigrad.client.base.replacing import replaced
from lumigrad.client.formats.clustering import morton_order
from lumigrad.client.formats.ply_header import PlyHeader
from lumigrad.client.formats.scene import (
    StoredScene,
    colors_of_sh,
    from_smallest_three,
    logarithms_of_scales,
    scales_from_logarithms,
    sh_from_colors,
    smallest_three,
)
from lumigrad.client.values.affine import unit_quats

Array = npt.NDArray[Any]

_BLOCK = 256
_PACKED = ("packed_position", "packed_rotation", "packed_scale", "packed_color")
_POSITION_BOUNDS = ("min_x", "min_y", "min_z", "max_x", "max_y", "max_z")
_SCALE_BOUNDS = tuple(f"{end}_scale_{axis}" for end in ("min", "max") for axis in "xyz")
# Absent in the format's first version, whose colours range from 0 to 1.
_COLOR_BOUNDS = ("min_r", "min_g", "min_b", "max_r", "max_g", "max_b")
_REST_COUNTS = (9, 24, 45)
# Harmonics are in [-4, 4].
_HARMONICS_RANGE = 8.0
# Largest logarithm of a scale that readers accept.
_LARGEST_LOGARITHM = 20.0
_VECTOR_BITS, _COLOR_BITS, _ROTATION_BITS = (11, 10, 11), (8, 8, 8, 8), (2, 10, 10, 10)


def holds_packed_gaussians(header: PlyHeader) -> bool:
    """Whether the file has this format."""
    return set(_PACKED) <= header.vertex_properties


def read_compressed_ply(header: PlyHeader) -> StoredScene:
    """Reads and unpacks the vertices."""
    _check(header)
    blocks, vertices = header.table("chunk"), header.table("vertex")
    block_of = np.arange(len(vertices)) // _BLOCK
    packed = {name: np.asarray(vertices[name]).astype(np.uint32) for name in _PACKED}
    color = packed["packed_color"]
    fractions = np.stack([_field(color, shift, 8) for shift in (24, 16, 8)], axis=1)
    if set(_COLOR_BOUNDS) <= set(header.elements["chunk"].types):
        fractions = _between(blocks, _COLOR_BOUNDS, block_of, fractions)
    sh = sh_from_colors(fractions)
    if "sh" in header.elements:
        sh = np.concatenate([sh, _harmonics(header)], axis=1)
    return StoredScene(
        means=_between(blocks, _POSITION_BOUNDS, block_of, _vector(packed["packed_position"])),
        quats=_rotations(packed["packed_rotation"]),
        scales=scales_from_logarithms(_between(blocks, _SCALE_BOUNDS, block_of, _vector(packed["packed_scale"]))),
        opacities=_field(color, 0, 8).astype(np.float32),
        sh=sh,
        details={"format": "compressed PLY"},
    )


def _check(header: PlyHeader) -> None:
    if "chunk" not in header.elements:
        raise header.fail('expected an element "chunk" for the packed vertices')
    chunk, count = header.elements["chunk"], header.elements["vertex"].count
    missing = [name for name in (*_POSITION_BOUNDS, *_SCALE_BOUNDS) if name not in chunk.types]
    if missing:
        raise header.fail(f'expected the properties {", ".join(missing)} in the element "chunk"')
    if chunk.count * _BLOCK < count:
        raise header.fail(f"expected a chunk for each {_BLOCK} of {count:,} vertices, got {chunk.count:,} chunks")
    if any(header.elements["vertex"].types[name] not in ("uint", "uint32") for name in _PACKED):
        raise header.fail("expected the packed vertex properties as uint")
    if "sh" in header.elements:
        harmonics = header.elements["sh"]
        if harmonics.count != count or len(harmonics.types) not in _REST_COUNTS:
            raise header.fail(
                f'expected 9, 24 or 45 properties for each of {count:,} vertices in the element "sh", '
                f"got {len(harmonics.types)} for {harmonics.count:,}"
            )


def _field(words: Array, shift: int, bits: int) -> Array:
    """Returns bits of each word as a fraction of their largest value."""
    mask = (1 << bits) - 1
    return np.asarray(((words >> np.uint32(shift)) & np.uint32(mask)).astype(np.float64) / mask)


def _vector(words: Array) -> Array:
    return np.stack([_field(words, 21, 11), _field(words, 11, 10), _field(words, 0, 11)], axis=1)


def _between(blocks: Any, bounds: tuple[str, ...], block_of: Array, fractions: Array) -> Float32:
    """Interpolates between the lower and upper bounds of each Gaussian's block."""
    low, high = (
        np.stack([np.asarray(blocks[name], np.float64) for name in names], axis=1)[block_of]
        for names in (bounds[:3], bounds[3:])
    )
    return np.asarray(low * (1.0 - fractions) + high * fractions, np.float32)


def _rotations(words: Array) -> Float32:
    others = np.stack([_field(words, shift, 10) for shift in (20, 10, 0)], axis=1)
    return from_smallest_three(words >> np.uint32(30), (others - 0.5) * np.sqrt(2.0))


def _harmonics(header: PlyHeader) -> Float32:
    table, names = header.table("sh"), header.elements["sh"].types
    if set(names) != {f"f_rest_{k}" for k in range(len(names))} or set(names.values()) - {"uchar", "uint8"}:
        raise header.fail('expected the properties f_rest_0, f_rest_1, … as uchar in the element "sh"')
    levels = np.stack([np.asarray(table[f"f_rest_{k}"]) for k in range(len(names))], axis=1)
    # A level stands for the middle of its interval; the first and the last stand for the ends of the range.
    fractions = np.select([levels == 0, levels == 255], [0.0, 1.0], (levels + 0.5) / 256.0)
    higher = (fractions - 0.5) * _HARMONICS_RANGE
    return np.asarray(higher.reshape(len(levels), 3, len(names) // 3).transpose(0, 2, 1), np.float32)


def write_compressed_ply(scene: StoredScene, path: str | PathLike[str]) -> None:
    """Writes the Gaussians in Morton order, so that those of a block lie close together."""
    scene = scene.reordered(morton_order(scene.means))
    logarithms = np.clip(logarithms_of_scales(scene.scales), -_LARGEST_LOGARITHM, _LARGEST_LOGARITHM)
    bounded = [_in_blocks(values) for values in (scene.means, logarithms, colors_of_sh(scene.sh))]
    (positions, scales, colors), bounds = zip(*bounded, strict=True)
    largest, others = smallest_three(unit_quats(scene.quats))
    rotations = np.concatenate([largest[:, None] / 3.0, others / np.sqrt(2.0) + 0.5], axis=1)
    colors = np.concatenate([colors, scene.opacities[:, None]], axis=1)
    words = [
        _packed(positions, _VECTOR_BITS),
        _packed(rotations, _ROTATION_BITS),
        _packed(scales, _VECTOR_BITS),
        _packed(colors, _COLOR_BITS),
    ]
    rest = scene.sh[:, 1:].transpose(0, 2, 1).reshape(len(scene), -1)
    # A level is the number of its interval; readers decode its middle.
    levels = np.clip(np.floor((rest.astype(np.float64) / _HARMONICS_RANGE + 0.5) * 256.0), 0, 255).astype(np.uint8)
    header = ["ply", "format binary_little_endian 1.0", "comment Lumigrad", f"element chunk {len(bounds[0])}"]
    header += [f"property float {name}" for name in (*_POSITION_BOUNDS, *_SCALE_BOUNDS, *_COLOR_BOUNDS)]
    header += [f"element vertex {len(scene)}", *(f"property uint {name}" for name in _PACKED)]
    if scene.degree:
        header += [f"element sh {len(scene)}", *(f"property uchar f_rest_{k}" for k in range(levels.shape[1]))]
    with replaced(path) as new, open(new, "wb") as file:
        file.write("\n".join([*header, "end_header", ""]).encode())
        file.write(np.concatenate(bounds, axis=1).astype("<f4").tobytes())
        file.write(np.stack(words, axis=1).astype("<u4").tobytes())
        file.write(levels.tobytes())


def _in_blocks(values: Float32) -> tuple[Array, Array]:
    """Returns values [N, 3] as fractions between the bounds of their blocks, and the bounds [blocks, 6]."""
    starts = np.arange(0, len(values), _BLOCK)
    low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    block_of = np.arange(len(values)) // _BLOCK
    width = np.where(high > low, high.astype(np.float64) - low, 1.0)
    return (values - low[block_of].astype(np.float64)) / width[block_of], np.concatenate([low, high], axis=1)


def _packed(fractions: Array, bits: tuple[int, ...]) -> Array:
    """Returns words [N] of fractions [N, D], the first one in the highest bits."""
    words = np.zeros(len(fractions), np.uint32)
    for column, width in zip(fractions.T, bits, strict=True):
        level = np.rint(np.clip(column, 0.0, 1.0) * ((1 << width) - 1)).astype(np.uint32)
        words = words << np.uint32(width) | level
    return words
