"""The attributes of an .spz file as bytes: fixed-point positions, logarithms of scales, packed rotations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.arrays import Float32
from lumigrad.client.formats.activation import logarithms_of_scales, scales_from_logarithms, to_bytes
from lumigrad.client.formats.quaternions import from_smallest_three, smallest_three, unit_quats
from lumigrad.client.formats.scene import StoredScene
from lumigrad.client.formats.source import Source

Array = npt.NDArray[Any]

# In the order of the file.
ATTRIBUTES = ("positions", "alphas", "colors", "scales", "rotations", "harmonics")
# Base colours are stored as 0.5 + 0.15 c: more range than a colour's 0 to 1.
_COLOR_SCALE = 0.15
_SCALE_STEPS, _SCALE_OFFSET = 16.0, 10.0
LARGEST_FIXED = (1 << 23) - 1
_LEVELS = 511
_DEFAULT_FRACTION_BITS = 12
# Positions are stored at least this finely, relative to the extent of all but strays.
_FINEST_STEP = 1e-4


def sizes(version: int, count: int, degree: int) -> dict[str, int]:
    """Bytes of each attribute; of the harmonics 0 for degree 0."""
    each = (6 if version == 1 else 9, 1, 3, 3, 3 if version < 3 else 4, 3 * ((degree + 1) ** 2 - 1))
    return {name: size * count for name, size in zip(ATTRIBUTES, each, strict=True)}


def decode(version: int, count: int, degree: int, fraction_bits: int, parts: dict[str, Source]) -> StoredScene:
    """Gaussians in the file's axes from the bytes of its attributes, which have the `sizes` given."""

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
    """The bytes of each attribute in versions 3 and 4.

    Args:
        scene: in the file's axes.
        fraction_bits: of positions, see `fitting_fraction_bits`.
        harmonics_bits: that are kept of the coefficients of degree 1, and of the higher ones; 1 to 8.
    """
    fixed = np.rint(scene.means.astype(np.float64) * 2.0**fraction_bits)
    words = np.clip(fixed, -LARGEST_FIXED, LARGEST_FIXED).astype("<i4")
    logarithms = (logarithms_of_scales(scene.scales).astype(np.float64) + _SCALE_OFFSET) * _SCALE_STEPS
    return {
        # The lower three bytes of each.
        "positions": words[..., None].view(np.uint8)[..., :3].tobytes(),
        "alphas": to_bytes(scene.opacities).tobytes(),
        "colors": to_bytes(scene.sh[:, 0].astype(np.float64) * _COLOR_SCALE + 0.5).tobytes(),
        "scales": np.clip(np.rint(logarithms), 0, 255).astype(np.uint8).tobytes(),
        "rotations": _packed_rotations(scene.quats).tobytes(),
        "harmonics": _levels(scene.sh[:, 1:], harmonics_bits).tobytes(),
    }


def fitting_fraction_bits(means: Float32) -> int:
    """How many bits of positions may be fraction: so many that steps are fine, but that the farthest one fits."""
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
    # Up and down again to extend the sign.
    return (((words << 8) >> 8) / 2.0**fraction_bits).astype(np.float32)


def _rotations(version: int, count: int, part: Source) -> Float32:
    """[N, 4] (w, x, y, z) from the file's order x, y, z, w."""
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
    """128 + 128 c, rounded to multiples of a step per degree, which is what makes them compress."""
    steps = np.full(higher.shape[1], 1 << (8 - harmonics_bits[1]))
    steps[:3] = 1 << (8 - harmonics_bits[0])
    rounded = np.rint(higher.astype(np.float64) * 128.0 / steps[:, None]) * steps[:, None] + 128.0
    return np.asarray(np.clip(rounded, 0, 255), np.uint8)
