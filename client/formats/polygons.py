"""Polygons of mesh files as triangles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lumigrad.client.base.arrays import Float64

Corners = tuple[int, ...]
_Plane = list[tuple[float, float]]
# Rounding errors of areas, as a part of the square of a polygon's size.
_ROUNDING = 1e-12


def triangles_of(corners: Corners, positions: Float64) -> list[Corners]:
    """Returns the triangles of a polygon: a fan if it is convex, else by ear clipping."""
    if len(corners) == 3:
        return [corners]
    plane = _flat(positions[list(corners)])
    left = list(range(len(corners)))
    if all(_turn(plane, left, at) >= 0 for at in left):
        return [(corners[0], corners[at], corners[at + 1]) for at in range(1, len(corners) - 1)]
    rounding = _ROUNDING * max(abs(x) + abs(y) for x, y in plane) ** 2
    triangles = []
    while len(left) > 3:
        # Corners on an edge of a triangle are beside it or inside, as they are rounded. Self-intersecting polygons may
        # have no ear.
        ears = (at for least in (-rounding, rounding) for at in range(len(left)) if _is_ear(plane, left, at, least))
        ear = next(ears, 0)
        triangles.append(tuple(corners[left[(ear + step) % len(left)]] for step in (-1, 0, 1)))
        del left[ear]
    return [*triangles, tuple(corners[at] for at in left)]


def _flat(points: Float64) -> _Plane:
    """Returns a polygon projected along its normal's largest axis, counter-clockwise."""
    centred = points - points[0]
    normal = np.cross(centred, np.roll(centred, -1, 0)).sum(0)
    axis = int(np.abs(normal).argmax())
    first, second = (axis + 1) % 3, (axis + 2) % 3
    if normal[axis] < 0:
        first, second = second, first
    return [(float(point[first]), float(point[second])) for point in centred]


def _turn(plane: _Plane, left: Sequence[int], at: int) -> float:
    """Returns twice the area of the triangle at a corner, negative at a reflex corner."""
    return _area(*(plane[left[(at + step) % len(left)]] for step in (-1, 0, 1)))


def _is_ear(plane: _Plane, left: Sequence[int], at: int, least: float) -> bool:
    """Whether the triangle at a corner is an ear, with no other corner whose areas are all `least` or more.

    Corners at equal places belong to a cut to a hole.
    """
    a, b, c = (plane[left[(at + step) % len(left)]] for step in (-1, 0, 1))
    if _area(a, b, c) <= abs(least):
        return False
    others = (plane[index] for index in left if plane[index] not in (a, b, c))
    return not any(min(_area(a, b, p), _area(b, c, p), _area(c, a, p)) >= least for p in others)


def _area(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
