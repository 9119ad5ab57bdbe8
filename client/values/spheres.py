"""Coloured spheres as a value, which PLY files can hold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Float32, Float64, Tensors, float32_array, to_numpy
from lumigrad.client.base.cautions import warn_of, warn_of_bytes
from lumigrad.client.base.precision import lost_by, median_of
from lumigrad.client.errors import InvalidArgument


@dataclass(frozen=True, eq=False, init=False)
class Spheres(Tensors):
    """N spheres in the world frame. Anything array-like is accepted and kept as read-only float32.

    Contiguous float32 arrays are not copied, so do not change them afterwards.

    Attributes:
        positions: [N, 3] centres, scene units.
        colors: [N, K] channels, any K >= 1; 0 to 1 for images.
        radii: [N] scene units, > 0.
        opacities: [N] in [0, 1]; None: all 1.

    Example:
        one = Spheres(positions=[[0, 0, 0]], colors=[[1, 0, 0]], radii=[0.5])
    """

    positions: Float32
    colors: Float32
    radii: Float32
    opacities: Float32 | None = None

    def __init__(self, positions: Any, colors: Any, radii: Any, opacities: Any = None) -> None:
        places = to_numpy("positions", positions)
        positions = float32_array("positions", places, ("N", 3))
        count = len(positions)
        shades = to_numpy("colors", colors)
        colors = float32_array("colors", shades, (count, "K"))
        if colors.shape[1] < 1:
            raise InvalidArgument.of("colors", f"expected shape [{count}, K] with K >= 1, got {list(colors.shape)}")
        radii = float32_array("radii", radii, (count,))
        if not (radii > 0).all():
            raise InvalidArgument.of("radii", f"expected radii > 0, the smallest is {radii.min()}")
        if opacities is not None:
            opacities = float32_array("opacities", opacities, (count,))
            if not ((opacities >= 0) & (opacities <= 1)).all():
                raise InvalidArgument.of(
                    "opacities", f"expected values in [0, 1], got {opacities.min()} to {opacities.max()}"
                )
        vars(self).update(positions=positions, colors=colors, radii=radii, opacities=opacities)
        warn_of("positions", lost_by(places, median_of(radii)))
        warn_of_bytes("colors", shades)

    def __len__(self) -> int:
        return len(self.positions)

    def __repr__(self) -> str:
        opacities = "" if self.opacities is None else ", with opacities"
        return f"Spheres({len(self)} spheres, {self.channels} channels{opacities})"

    @cached_property
    def channels(self) -> int:
        """K, the number of colour channels."""
        return int(self.colors.shape[1])

    @cached_property
    def bounds(self) -> tuple[Float64, Float64]:
        """The lower and upper corner, [3] each, of the box around all spheres; scene units."""
        low, high = self.positions - self.radii[:, None], self.positions + self.radii[:, None]
        return low.min(axis=0).astype(np.float64), high.max(axis=0).astype(np.float64)

    @staticmethod
    def load(path: str | PathLike[str], *, radius: float | None = None) -> Spheres:
        """Reads any PLY file with x, y and z; see `lumigrad.client.formats.points_ply`. Needs the extra `io`.

        Args:
            path: the file.
            radius: radius of every sphere, scene units; None: the file's radii, or else a value at which neighbours
                touch.

        Raises:
            InvalidArgument: the file is damaged or of another kind; the text names the file.
            MissingPackage: the extra `io` is not installed.

        Example:
            spheres = Spheres.load(folder / "points.ply", radius=0.02)
        """
        from lumigrad.client.formats.points_ply import load_spheres

        return load_spheres(path, radius)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes a binary PLY file, which `load` reads without loss. Needs the extra `io`.

        Args:
            path: the file.

        Raises:
            MissingPackage: the extra `io` is not installed.

        Example:
            spheres.save(folder / "points.ply")
        """
        from lumigrad.client.formats.points_ply import save_spheres

        save_spheres(self, path)
