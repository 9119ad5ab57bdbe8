"""A city of any number of Gaussians to try scenes larger than memory with, written block by block.

Streets form a grid with 24 units between them; each block has a house with windows, and the vase of the package, larger
than life, in front of it. World frame: z up. The city grows outwards, so that it looks the same from its middle.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from os import PathLike

import numpy as np

from lumigrad.client.base.arrays import Float64
from lumigrad.client.formats.beside import SceneView
from lumigrad.client.formats.inria_ply import write_inria_parts
from lumigrad.client.formats.load import read_scene
from lumigrad.client.formats.scene import StoredScene, joined, sh_from_colors

# Sides of a block and of a house, scene units.
_PITCH, _HOUSE = 24.0, 12.0
_LOWEST, _HIGHEST = 6.0, 40.0
# Gaussians of the streets and of the walls of a block, each in two layers.
_STREET_ROWS, _WALL_ROWS = 6_000, 36_000
# The scale of the vase, and its place in a block.
_VASE_SCALE, _VASE_PLACE = 2.0, (0.0, -9.0, 1.0)
# Gaussians of the vase farther from its middle are left out, because fits place some far behind it.
_VASE_RADIUS = 1.6
_STREET = np.array([0.32, 0.32, 0.34])
_WALLS = np.array([[0.72, 0.45, 0.35], [0.85, 0.80, 0.70], [0.55, 0.60, 0.66], [0.80, 0.68, 0.45]])
_GLASS = np.array([0.12, 0.17, 0.25])
_DEGREE = 1


def write_city(path: str | PathLike[str], count: int) -> Iterator[int]:
    """Writes a .ply with `count` Gaussians of degree 1, and beside it a view from above the street.

    Args:
        path: the file.
        count: the number of Gaussians, at least 1.

    Yields:
        How many Gaussians have been written so far.
    """
    vase = _vase()
    rows = _STREET_ROWS + _WALL_ROWS + len(vase)

    def parts() -> Iterator[StoredScene]:
        for block in range(-(-count // rows)):
            scene = joined([_ground_and_house(block), _moved(vase, _centre(block))])
            left = count - block * rows
            # Indices are spread over the block, so that a part of it has a part of everything.
            yield scene if left >= rows else scene.reordered(np.arange(left) * rows // left)

    yield from write_inria_parts(path, parts(), count, _DEGREE)
    side = _PITCH / 2
    SceneView(eye=(side, -side, 12.0), target=(side, 4 * side, 6.0), up=(0.0, 0.0, 1.0), fov_degrees=60.0).save(path)


def _centre(block: int) -> Float64:
    """Returns the middle [3] of a block; blocks lie on a square spiral around the first."""
    if not block:
        return np.zeros(3)
    ring = math.ceil((math.sqrt(block + 1) - 1) / 2)
    side, step = divmod(block - (2 * ring - 1) ** 2, 2 * ring)
    x, y = ((ring, step - ring + 1), (ring - 1 - step, ring), (-ring, ring - 1 - step), (step - ring + 1, -ring))[side]
    return np.array([_PITCH * x, _PITCH * y, 0.0])


def _vase() -> StoredScene:
    """Returns the vase of the package, standing in the middle of a block."""
    scene = read_scene("sample:vase").of_degree(_DEGREE)
    place = scene.means - np.median(scene.means, axis=0)
    scene = scene.reordered((np.linalg.norm(place, axis=1) < _VASE_RADIUS) & (scene.scales.max(axis=1) < 0.2))
    means = scene.means * _VASE_SCALE + np.array(_VASE_PLACE, np.float32)
    return StoredScene(
        means.astype(np.float32), scene.quats, scene.scales * np.float32(_VASE_SCALE), scene.opacities, scene.sh
    )


def _ground_and_house(block: int) -> StoredScene:
    random = np.random.Generator(np.random.PCG64(block))
    height = random.uniform(_LOWEST, _HIGHEST) * random.uniform(0.4, 1.0)
    street, walls = _street(random), _house(random, height)
    places, normals, colors, sizes = (np.concatenate(pair) for pair in zip(street, walls, strict=True))
    places += normals * random.normal(0.0, 0.01, (len(places), 1))
    sh = np.zeros((len(places), (_DEGREE + 1) ** 2, 3), np.float32)
    sh[:, :1] = sh_from_colors(np.clip(colors + random.normal(0.0, 0.03, colors.shape), 0.0, 1.0))
    sh[:, 1:] = random.normal(0.0, 0.02, sh[:, 1:].shape)
    discs = sizes[:, None] * random.uniform(0.7, 1.3, (len(places), 2))
    return StoredScene(
        (places + _centre(block)).astype(np.float32),
        _facing(normals).astype(np.float32),
        np.column_stack([discs, np.full(len(places), 0.01)]).astype(np.float32),
        random.uniform(0.7, 0.99, len(places)).astype(np.float32),
        sh,
    )


_Surface = tuple[Float64, Float64, Float64, Float64]


def _street(random: np.random.Generator) -> _Surface:
    """Returns places, normals, colours and sizes of the ground of a block."""
    places = np.zeros((_STREET_ROWS, 3))
    places[:, :2] = random.uniform(-_PITCH / 2, _PITCH / 2, (_STREET_ROWS, 2))
    # A line in the middle of each street.
    line = (np.abs(np.abs(places[:, :2]).max(axis=1) - _PITCH / 2) < 0.2) & (places.sum(axis=1) % 4 < 2)
    colors = np.where(line[:, None], 0.85, _STREET)
    normals = np.tile([0.0, 0.0, 1.0], (_STREET_ROWS, 1))
    return places, normals, colors, np.full(_STREET_ROWS, _size(_PITCH**2, _STREET_ROWS))


def _house(random: np.random.Generator, height: float) -> _Surface:
    """Returns places, normals, colours and sizes of the four walls and the roof of a house."""
    areas = np.array([_HOUSE * height] * 4 + [_HOUSE**2])
    sides = random.choice(5, _WALL_ROWS, p=areas / areas.sum())
    along, up = random.uniform(-0.5, 0.5, _WALL_ROWS) * _HOUSE, random.uniform(0.0, 1.0, _WALL_ROWS) * height
    half = np.full(_WALL_ROWS, _HOUSE / 2)
    across = random.uniform(-0.5, 0.5, _WALL_ROWS) * _HOUSE
    x = np.choose(sides, [half, -half, along, along, along])
    y = np.choose(sides, [along, along, half, -half, across])
    z = np.where(sides == 4, height, up)
    normals = np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1]], float)[sides]
    window = (sides < 4) & ((along % 3.0) > 1.2) & ((up % 3.0) > 1.3) & (up < height - 0.8)
    color = _WALLS[random.integers(len(_WALLS))] * random.uniform(0.8, 1.1)
    colors = np.where(window[:, None], _GLASS, color)
    return np.column_stack([x, y, z]), normals, colors, np.full(_WALL_ROWS, _size(float(areas.sum()), _WALL_ROWS))


def _size(area: float, rows: int) -> float:
    """Returns the standard deviation of discs that close a surface: their mean distance."""
    return math.sqrt(area / rows)


def _facing(normals: Float64) -> Float64:
    """Returns quaternions [N, 4] that turn z into the normals, which are along an axis."""
    half = math.sqrt(0.5)
    quats = np.tile([1.0, 0.0, 0.0, 0.0], (len(normals), 1))
    quats[np.abs(normals[:, 0]) > 0.5] = (half, 0.0, half, 0.0)
    quats[np.abs(normals[:, 1]) > 0.5] = (half, half, 0.0, 0.0)
    return quats


def _moved(scene: StoredScene, by: Float64) -> StoredScene:
    means = (scene.means + by).astype(np.float32)
    return StoredScene(means, scene.quats, scene.scales, scene.opacities, scene.sh)
