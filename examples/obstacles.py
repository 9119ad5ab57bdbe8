"""The planner's world: a bumpy ring, a knot, posts and a floor, all made here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from arm import FOOT
from lumigrad.client import Cuboid, Mesh, Obstacle, World

Array = npt.NDArray[np.float64]


def world() -> World:
    """Returns obstacles around an arm that stands at the origin, z up, metres."""
    half = float(np.sqrt(0.5))
    return World(
        [
            Obstacle(Cuboid((3.0, 3.0, 0.1)), pose=(0, 0, -0.05, 1, 0, 0, 0), name="floor"),
            # The arm may touch what it stands on.
            Obstacle(Cuboid((0.14, 0.14, FOOT)), pose=(0, 0, FOOT / 2, 1, 0, 0, 0), name="stand", enabled=False),
            *_bench(-0.72),
            Obstacle(trefoil(0.13, 0.045), pose=(0.62, 0.12, 0.4, 1, 0, 0, 0), name="knot"),
            # Upright, its hole to the side.
            Obstacle(ring(0.2, 0.06, 0.012), pose=(0.35, 0.62, 0.3, half, half, 0, 0), name="ring"),
        ]
    )


def _bench(azimuth: float) -> list[Obstacle]:
    """Returns a bar on two posts, across the reach of the arm."""
    turn = (float(np.cos(azimuth / 2)), 0.0, 0.0, float(np.sin(azimuth / 2)))
    out, along = np.array([np.cos(azimuth), np.sin(azimuth)]), np.array([-np.sin(azimuth), np.cos(azimuth)])
    parts = {"bar": (0.0, 0.46, (0.08, 0.44, 0.06)), "left post": (0.17, 0.215, (0.06, 0.06, 0.43))}
    parts["right post"] = (-parts["left post"][0], *parts["left post"][1:])
    return [
        Obstacle(Cuboid(size), pose=(*(0.62 * out + offset * along).tolist(), height, *turn), name=name)
        for name, (offset, height, size) in parts.items()
    ]


def ring(radius: float, tube: float, bumps: float, around: int = 96, across: int = 32) -> Mesh:
    """Returns a torus around z whose tube is thicker and thinner in turns; metres."""
    along, angle = _grid(around, across)
    thickness = tube + bumps * np.cos(9 * along) * np.cos(4 * angle)
    reach = radius + thickness * np.cos(angle)
    points = np.stack([reach * np.cos(along), reach * np.sin(along), thickness * np.sin(angle)], -1)
    return Mesh(points.reshape(-1, 3), _faces(around, across))


def trefoil(size: float, tube: float, around: int = 240, across: int = 24) -> Mesh:
    """Returns a tube along a trefoil knot around z; about six times `size` wide, metres."""
    along, angle = _grid(around, across)
    tangent = _curve(along + 1e-4) - _curve(along - 1e-4)
    side = _unit(np.cross(tangent, [0.0, 0.0, 1.0]))
    up = _unit(np.cross(side, tangent))
    offset = tube * (np.cos(angle)[..., None] * side + np.sin(angle)[..., None] * up)
    return Mesh((size * _curve(along) + offset).reshape(-1, 3), _faces(around, across))


def _grid(around: int, across: int) -> tuple[Array, Array]:
    along, angle = np.meshgrid(*(2 * np.pi * np.arange(count) / count for count in (around, across)), indexing="ij")
    return along, angle


def _faces(around: int, across: int) -> npt.NDArray[np.int32]:
    """Returns two triangles for each cell of a grid that closes on itself both ways."""
    i, j = np.meshgrid(np.arange(around), np.arange(across), indexing="ij")
    a, b = i * across + j, (i + 1) % around * across + j
    c, d = (i + 1) % around * across + (j + 1) % across, i * across + (j + 1) % across
    return np.concatenate([np.stack([a, b, c], -1), np.stack([a, c, d], -1)]).reshape(-1, 3).astype(np.int32)


def _curve(along: Array) -> Array:
    x, y = np.sin(along) + 2 * np.sin(2 * along), np.cos(along) - 2 * np.cos(2 * along)
    return np.stack([x, y, -np.sin(3 * along)], -1)


def _unit(vectors: Array) -> Array:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))
