"""The demo's scene: a striped, lit trefoil knot made of small spheres, and cameras all around it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lumigrad.client import Camera, Spheres

Array = npt.NDArray[np.float64]

BACKGROUND = (0.05, 0.06, 0.09)
# Depth range for every picture, scene units: the knot has a radius of 1.7, the cameras a distance of 5.2.
NEAREST, FARTHEST = 2.5, 8.0
EXTENT = 1.7
_DISTANCE = 5.2
_FOV_DEGREES = 40.0
_TUBE_RADIUS = 0.26
# The additive recurrence of the plastic number.
_STEPS = 1 / 1.32471795724474602596 ** np.array([1, 2])
_LIGHT = np.array([0.4, 0.8, 0.6]) / np.linalg.norm([0.4, 0.8, 0.6])


def knot(count: int = 30_000, radius: float = 0.035) -> Spheres:
    """Returns the scene, y up, about 3.4 units wide.

    Args:
        count: number of spheres.
        radius: radius of each sphere, scene units.
    """
    # A sequence that spreads evenly over the square, where random places would leave gaps between the spheres.
    along, around = 2 * np.pi * (np.outer(_STEPS, np.arange(count)) % 1)
    tangent = _curve(along + 1e-4) - _curve(along - 1e-4)
    side = _unit(np.cross(tangent, [0.0, 0.0, 1.0]))
    normal = np.cos(around)[:, None] * side + np.sin(around)[:, None] * _unit(np.cross(tangent, side))
    positions = _curve(along) + _TUBE_RADIUS * normal
    return Spheres(positions, _colors(along, around, normal), np.full(count, radius))


def camera(azimuth_degrees: float, elevation_degrees: float, width: int, height: int) -> Camera:
    """Returns a camera on the orbit."""
    return Camera.orbit(
        (0, 0, 0), _DISTANCE, azimuth_degrees, elevation_degrees, fov_degrees=_FOV_DEGREES, width=width, height=height
    )


def cameras(count: int, width: int, height: int) -> list[Camera]:
    """Returns cameras that go once around while they rise and sink several times."""
    return [camera(360.0 * index / count, 60.0 * float(np.sin(2.4 * index)), width, height) for index in range(count)]


def _curve(along: Array) -> Array:
    x = np.sin(along) + 2 * np.sin(2 * along)
    y = np.cos(along) - 2 * np.cos(2 * along)
    return np.stack([x, y, -np.sin(3 * along)], axis=1) / 2.2


def _colors(along: Array, around: Array, normal: Array) -> Array:
    """Returns colours: hue along the knot, stripes that wind around it, and the light of one lamp."""
    hue = along / np.pi
    base = 0.5 + 0.5 * np.cos(2 * np.pi * (hue[:, None] + [0.0, 0.33, 0.67]))
    stripes = 0.75 + 0.25 * np.cos(6 * around + 12 * along)
    facing = np.clip(normal @ _LIGHT, 0, 1)
    shade = stripes * (0.35 + 0.65 * facing)
    gloss = 0.5 * facing**20
    return np.asarray(np.clip(base * shade[:, None] + gloss[:, None], 0, 1))


def _unit(vectors: Array) -> Array:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
