"""Triangles of Wavefront OBJ files: relative indices, and polygons that need not be convex."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float64
from lumigrad.client.formats.source import malformed, shortened

_Corners = tuple[int, ...]
_Plane = list[tuple[float, float]]


def read_obj(path: str | PathLike[str]) -> tuple[Float64, npt.NDArray[np.int64]]:
    """Reads vertices [V, 3] and triangles [F, 3] of all groups, in the order of the file.

    Raises:
        InvalidArgument: a damaged file; names the line.
    """
    vertices: list[list[float]] = []
    polygons: list[_Corners] = []
    text = Path(path).read_text("utf-8", errors="replace").replace("\\\n", " ")
    for number, line in enumerate(text.split("\n"), 1):
        if not line.lstrip().startswith(("v", "f")):
            continue
        kind, *values = line.partition("#")[0].split() or [""]
        try:
            if kind == "v":
                x, y, z = values[:3]
                vertices.append([float(x), float(y), float(z)])
            elif kind == "f":
                polygons.append(_corners(values, len(vertices)))
        except ValueError as error:
            expected = "expected a mesh as OBJ, with lines `v x y z` and `f` of at least three vertices, counted from 1"
            raise malformed(path, f"{expected}, got {shortened(line.strip(), 60)!r} at line {number}") from error
    positions = np.array(vertices, np.float64).reshape(-1, 3)
    highest = max((max(corners) for corners in polygons), default=-1)
    if highest >= len(positions):
        raise malformed(path, f"expected vertices that the file has, {len(positions)}, got the index {highest + 1}")
    triangles = [each for corners in polygons for each in _triangles(corners, positions)]
    return positions, np.array(triangles, np.int64).reshape(-1, 3)


def _corners(values: Sequence[str], before: int) -> _Corners:
    """The indices of a face; negative ones count back from the last vertex before the face."""
    named = [int(value.partition("/")[0]) for value in values]
    corners = tuple(index - 1 if index > 0 else before + index for index in named)
    if len(corners) < 3 or 0 in named or min(corners) < 0:
        raise ValueError("not a face")
    return corners


def _triangles(corners: _Corners, positions: Float64) -> list[_Corners]:
    """The triangles of a polygon: a fan if it is convex, else ears that are cut off one after the other."""
    if len(corners) == 3:
        return [corners]
    plane = _flat(positions[list(corners)])
    left = list(range(len(corners)))
    if all(_turn(plane, left, at) >= 0 for at in left):
        return [(corners[0], corners[at], corners[at + 1]) for at in range(1, len(corners) - 1)]
    triangles = []
    while len(left) > 3:
        # Polygons that cross themselves may have no ear.
        ear = next((at for at in range(len(left)) if _is_ear(plane, left, at)), 0)
        triangles.append(tuple(corners[left[(ear + step) % len(left)]] for step in (-1, 0, 1)))
        del left[ear]
    return [*triangles, tuple(corners[at] for at in left)]


def _flat(points: Float64) -> _Plane:
    """A polygon seen along its normal's largest axis, counter-clockwise."""
    centred = points - points[0]
    normal = np.cross(centred, np.roll(centred, -1, 0)).sum(0)
    axis = int(np.abs(normal).argmax())
    first, second = (axis + 1) % 3, (axis + 2) % 3
    if normal[axis] < 0:
        first, second = second, first
    return [(float(point[first]), float(point[second])) for point in centred]


def _turn(plane: _Plane, left: Sequence[int], at: int) -> float:
    """Twice the area of the triangle at a corner; negative where the polygon is not convex."""
    return _area(*(plane[left[(at + step) % len(left)]] for step in (-1, 0, 1)))


def _is_ear(plane: _Plane, left: Sequence[int], at: int) -> bool:
    """Whether the triangle at a corner is in the polygon; corners at equal places are those of a cut to a hole."""
    a, b, c = (plane[left[(at + step) % len(left)]] for step in (-1, 0, 1))
    if _area(a, b, c) <= 0:
        return False
    others = (plane[index] for index in left if plane[index] not in (a, b, c))
    return not any(min(_area(a, b, p), _area(b, c, p), _area(c, a, p)) >= 0 for p in others)


def _area(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
