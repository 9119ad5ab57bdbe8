"""Triangles of Wavefront OBJ files: relative indices, and polygons that need not be convex."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float64
from lumigrad.client.formats.polygons import Corners, triangles_of
from lumigrad.client.formats.source import malformed, shortened


def read_obj(path: str | PathLike[str]) -> tuple[Float64, npt.NDArray[np.int64]]:
    """Reads vertices [V, 3] and triangles [F, 3] of all groups, in the order of the file.

    Raises:
        InvalidArgument: a damaged file, or one with free-form surfaces; names the line.
    """
    vertices: list[list[float]] = []
    polygons: list[Corners] = []
    text = Path(path).read_text("utf-8-sig", errors="replace").replace("\\\n", " ")
    for number, line in enumerate(text.split("\n"), 1):
        if not line.lstrip().startswith(("v", "f", "surf")):
            continue
        kind, *values = line.partition("#")[0].split() or [""]
        if kind == "surf":
            text = f"expected polygons, got a free-form surface at line {number}"
            raise malformed(path, f"{text}, which is not supported; export triangles")
        try:
            if kind == "v":
                x, y, z = values[:3]
                vertices.append([float(x), float(y), float(z)])
            # Older files have "fo".
            elif kind in ("f", "fo"):
                polygons.append(_corners(values, len(vertices)))
        except ValueError as error:
            expected = "expected a mesh as OBJ, with lines `v x y z` and `f` of at least three vertices, counted from 1"
            raise malformed(path, f"{expected}, got {shortened(line.strip(), 60)!r} at line {number}") from error
    positions = np.array(vertices, np.float64).reshape(-1, 3)
    highest = max((max(corners) for corners in polygons), default=-1)
    if highest >= len(positions):
        raise malformed(path, f"expected vertices that the file has, {len(positions)}, got the index {highest + 1}")
    triangles = [each for corners in polygons for each in triangles_of(corners, positions)]
    return positions, np.array(triangles, np.int64).reshape(-1, 3)


def _corners(values: Sequence[str], before: int) -> Corners:
    """Returns the indices of a face; negative ones count back from the last vertex before the face."""
    named = [int(value.partition("/")[0]) for value in values]
    corners = tuple(index - 1 if index > 0 else before + index for index in named)
    if len(corners) < 3 or 0 in named or min(corners) < 0:
        raise ValueError("not a face")
    return corners
