"""Initial points of a reconstruction: positions and colours."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Float32, Float64, float32_array, to_numpy
from lumigrad.client.base.cautions import warn_of, warn_of_levels
from lumigrad.client.base.precision import lost_by
from lumigrad.client.formats.ply_header import PlyHeader
from lumigrad.client.formats.points_ply import colors_of

_DEFAULT_COLOR = 0.5
# The range of float32, in which scenes are rendered.
LARGEST_POSITION = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False, init=False)
class Points:
    """N points in the world frame, read-only.

    Attributes:
        positions: [N, 3] float64, scene units: float32 could not tell neighbours apart far from 0.
        colors: [N, 3] float32, 0 to 1.
    """

    positions: Float64
    colors: Float32

    def __init__(self, positions: Any, colors: Any) -> None:
        places = to_numpy("positions", positions)
        # Checks kind and shape; the copy in float32 is dropped.
        float32_array("positions", places, ("N", 3))
        positions = places.astype(np.float64)
        positions.flags.writeable = False
        object.__setattr__(self, "positions", positions)
        object.__setattr__(self, "colors", float32_array("colors", colors, (len(positions), 3)))
        warn_of_levels("colors", self.colors)

    def __len__(self) -> int:
        return len(self.positions)

    def __repr__(self) -> str:
        return f"Points({len(self)} points)"

    @staticmethod
    def load(path: str | PathLike[str]) -> Points:
        """Reads the vertices of a PLY file with x, y, z and colours as `Spheres.load` reads them, else grey.

        Args:
            path: the file.

        Raises:
            InvalidArgument: another kind of file, or a damaged one; names the file.

        Example:
            points = Points.load(folder / "points.ply")
        """
        header = PlyHeader.read(path)
        vertices = header.points()
        columns = [np.asarray(vertices[axis]) for axis in "xyz"]
        positions = np.stack([column.astype(np.float64) for column in columns], axis=1)
        lost = np.flatnonzero(~np.isfinite(positions).all(axis=1))
        if len(lost):
            text = f"expected finite positions, but {len(lost):,} of {len(positions):,} are not"
            raise header.fail(f"{text}, the first is number {lost[0]}")
        if any(column.dtype == np.float32 for column in columns):
            # Doubles lose nothing here.
            warn_of(fspath(path), lost_by(positions))
        colors = colors_of(vertices, header.vertex_properties)
        has_three = colors is not None and colors.shape == positions.shape
        return Points(positions, colors if has_three else np.full(positions.shape, _DEFAULT_COLOR))
