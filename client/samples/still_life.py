"""The sample's subject as a signed distance field: flowers in a painted vase, and fruit, on a wooden table.

World frame: z up, the table's top is z = 0, about 2 units high. All shapes and colours are formulas, so that every
machine makes the same pictures.
"""

from __future__ import annotations

import math

import numpy as np

from lumigrad.client.base.arrays import Array, Float64

UP = (0.0, 0.0, 1.0)
FOCUS = (0.0, 0.0, 0.9)
# A ball around everything.
RADIUS = 1.6

TABLE, VASE, FRUIT, STEMS, PETALS, HEARTS = range(6)
_TABLE_RADIUS, _TABLE_THICKNESS = 1.15, 0.08
_VASE_HEIGHT, _VASE_WALL = 1.2, 0.018
# Centres, radii along x, y, z, and colours.
_FRUIT = np.array([[0.62, 0.40, 0.21], [0.38, -0.66, 0.15], [-0.72, 0.22, 0.19]])
_FRUIT_RADII = np.array([[0.21, 0.21, 0.21], [0.23, 0.16, 0.15], [0.2, 0.2, 0.19]])
_FRUIT_COLORS = np.array([[0.95, 0.47, 0.07], [0.95, 0.80, 0.13], [0.50, 0.66, 0.16]])
# One flower for each sector of the circle: the height of its blossom and its colour.
_FLOWERS = 5
_BLOSSOM_HEIGHTS = np.array([1.82, 1.58, 1.90, 1.66, 1.74])
_BLOSSOM_COLORS = np.array(
    [[0.86, 0.13, 0.16], [0.93, 0.50, 0.66], [0.96, 0.72, 0.12], [0.55, 0.30, 0.72], [0.95, 0.93, 0.90]]
)
_PETAL_RADIUS, _PETALS = 0.24, 6
_GREEN, _HEART = np.array([0.18, 0.42, 0.14]), np.array([0.45, 0.26, 0.06])
_CREAM, _COBALT = np.array([0.93, 0.91, 0.86]), np.array([0.10, 0.20, 0.55])
_WOOD = np.array([[0.62, 0.40, 0.22], [0.44, 0.27, 0.14]])


def distances(points: Float64) -> tuple[Float64, Array]:
    """Returns bounds [N] of the signed distances of points [N, 3] to the nearest surface, and its kind [N]."""
    x, y, z = points.T
    across = np.hypot(x, y)
    table = np.maximum(across - _TABLE_RADIUS, np.abs(z + _TABLE_THICKNESS / 2) - _TABLE_THICKNESS / 2)
    # The slope of the profile is at most 0.7.
    wall = 0.82 * np.abs(across - _profile(z)) - _VASE_WALL
    vase = np.maximum(wall, np.abs(z - _VASE_HEIGHT / 2) - _VASE_HEIGHT / 2)
    floor = np.maximum(across - 0.22, np.abs(z - 0.03) - 0.03)
    every = np.stack([table, np.minimum(vase, floor), _to_fruit(points).min(axis=0), *_to_flowers(points)])
    return every.min(axis=0), every.argmin(axis=0)


def colors(points: Float64, kinds: Array) -> Float64:
    """Returns the colours [N, 3], 0 to 1, of points [N, 3] on surfaces of these kinds [N]."""
    found = np.empty((len(points), 3))
    for kind, paint in ((TABLE, _wood), (VASE, _glaze), (FRUIT, _peel), (PETALS, _petals)):
        chosen = kinds == kind
        found[chosen] = paint(points[chosen])
    found[kinds == STEMS] = _GREEN
    found[kinds == HEARTS] = _HEART
    return found


def gloss(kinds: Array) -> Float64:
    """Returns [N], how strongly surfaces of these kinds reflect the lamp."""
    return np.array([0.05, 0.45, 0.22, 0.05, 0.02, 0.0])[kinds]


def _profile(z: Float64) -> Float64:
    """Returns the radius of the vase at a height."""
    return 0.27 + 0.14 * np.sin(2 * math.pi * 0.95 * z / _VASE_HEIGHT - 0.25)


def _to_fruit(points: Float64) -> Float64:
    """Returns [3, N], distances to ellipsoids, scaled down to be bounds."""
    offsets = points - _FRUIT[:, None]
    stretched = np.linalg.norm(offsets / _FRUIT_RADII[:, None], axis=-1)
    return np.asarray((stretched - 1) * _FRUIT_RADII.min(axis=1)[:, None])


def _in_sector(points: Float64) -> tuple[Array, Float64]:
    """Returns the number of each point's flower [N], and the points turned so that the flower leans towards x."""
    x, y, z = points.T
    sector = np.round(np.arctan2(y, x) * _FLOWERS / (2 * math.pi)) % _FLOWERS
    angle = -2 * math.pi / _FLOWERS * sector
    cos, sin = np.cos(angle), np.sin(angle)
    return sector.astype(int), np.stack([cos * x - sin * y, sin * x + cos * y, z], axis=1)


def _lean(z: Float64) -> Float64:
    """Returns how far a stem is from the axis at a height."""
    return 0.03 + 0.42 * np.square(np.maximum(z - 0.7, 0.0) / 1.1)


def _to_flowers(points: Float64) -> tuple[Float64, Float64, Float64]:
    """Returns the distances [N] to stems, petals and hearts."""
    sector, local = _in_sector(points)
    x, y, z = local.T
    top = _BLOSSOM_HEIGHTS[sector]
    aside = np.hypot(x - _lean(z), y)
    stems = np.maximum(0.78 * aside - 0.014, np.maximum(z - top, 0.3 - z))
    height, radius, angle = _blossom(sector, local)
    edge = _PETAL_RADIUS * (0.78 + 0.22 * np.cos(_PETALS * angle))
    cup = np.abs(height - 0.9 * np.square(radius) / _PETAL_RADIUS) - 0.016
    petals = 0.45 * np.maximum((radius - edge) / (1 + 0.1 / np.maximum(radius, 0.05)), cup)
    # The blossom beyond the sector's border may be closer than the sector's own.
    border = math.sin(math.pi / _FLOWERS) * x - math.cos(math.pi / _FLOWERS) * np.abs(y)
    petals = np.where(np.abs(z - 1.7) < 0.6, np.minimum(petals, border + 0.02), petals)
    hearts = np.hypot(radius, height - 0.02) - 0.055
    return stems, petals, hearts


def _blossom(sector: Array, local: Float64) -> tuple[Float64, Float64, Float64]:
    """Returns cylindrical coordinates [N] around the axis of each point's blossom: height, radius and angle."""
    top = _BLOSSOM_HEIGHTS[sector]
    offset = local - np.stack([_lean(top), np.zeros_like(top), top], axis=1)
    axis = np.array([0.6, 0.0, 0.8])
    height, level = offset @ axis, offset @ np.array([0.8, 0.0, -0.6])
    return height, np.hypot(level, offset[:, 1]), np.arctan2(offset[:, 1], level)


def _wood(points: Float64) -> Float64:
    x, y, _ = points.T
    plank = np.floor(y / 0.28)
    grain = np.sin(60 * (y + 0.02 * np.sin(4 * x + 3 * plank)) + 6 * np.sin(1.7 * x + 5 * plank))
    tint = 0.5 + 0.35 * np.sin(12.9 * plank) + 0.18 * grain
    seam = np.abs(y / 0.28 - plank - 0.5) > 0.48
    return np.asarray((_WOOD[0] + tint[:, None] * (_WOOD[1] - _WOOD[0])) * np.where(seam, 0.55, 1.0)[:, None])


def _glaze(points: Float64) -> Float64:
    x, y, z = points.T
    angle = np.arctan2(y, x)
    bands = np.min([np.abs(z - height) for height in (0.07, 0.76, 0.84, 1.16)], axis=0) < 0.014
    # Leaves around the belly, with a dot between them, and a garland above.
    leaf = np.abs(z - 0.42) / 0.24 - np.abs(np.cos(5 * angle)) ** 1.5
    dots = np.hypot(0.09 * (np.mod(10 * angle / math.pi, 2) - 1) * math.pi / 2, z - 0.42) < 0.035
    garland = np.abs(z - 0.70 - 0.03 * np.sin(16 * angle)) < 0.009
    painted = bands | ((leaf > -0.16) & (leaf < 0)) | (leaf < -0.62) | dots | garland
    outside = np.hypot(x, y) > _profile(z)
    return np.where((painted & outside)[:, None], _COBALT, _CREAM)


def _peel(points: Float64) -> Float64:
    x, y, z = (points * 95).T
    speckles = 1 - 0.14 * (np.sin(x) * np.sin(y + 2) * np.sin(z + 1) > 0.35)
    return np.asarray(_FRUIT_COLORS[_to_fruit(points).argmin(axis=0)] * speckles[:, None])


def _petals(points: Float64) -> Float64:
    sector, local = _in_sector(points)
    _, radius, angle = _blossom(sector, local)
    veins = 1 - 0.08 * (np.cos(4 * _PETALS * angle) > 0.6) * (radius > 0.08)
    share = np.clip(radius / _PETAL_RADIUS, 0, 1)
    return _BLOSSOM_COLORS[sector] * (veins * (0.62 + 0.38 * share))[:, None]
