"""Signed distances on a grid: an obstacle, and what `Client.field` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lumigrad.client.arguments import number
from lumigrad.client.arrays import Float32, Float64, float32_array
from lumigrad.client.errors import InvalidArgument


@dataclass(frozen=True, eq=False, init=False)
class VoxelGrid:
    """Signed distances at the centres of voxels, in a box around the origin of its frame.

    In between, distances are interpolated linearly; outside, that to the box is added to the closest value in it.

    Attributes:
        distances: [X, Y, Z] float32, metres, positive outside, finite; of an obstacle at least 2 each way.
        voxel_size: edge of a voxel, metres.
    """

    distances: Float32
    voxel_size: float

    def __init__(self, distances: Any, voxel_size: float) -> None:
        values = float32_array("distances", distances, ("X", "Y", "Z"))
        if not values.size:
            raise InvalidArgument.of("distances", f"expected at least one voxel, got shape {list(values.shape)}")
        if not np.isfinite(values).all():
            raise InvalidArgument.of(
                "distances", "expected finite values, got nan or infinity; write a large distance where nothing is near"
            )
        edge = number("voxel_size", voxel_size)
        if not 0.0 < edge < np.inf:
            raise InvalidArgument.of("voxel_size", f"expected metres > 0, got {edge}")
        object.__setattr__(self, "distances", values)
        object.__setattr__(self, "voxel_size", edge)

    def __repr__(self) -> str:
        return f"VoxelGrid({' x '.join(map(str, self.distances.shape))} voxels of {self.voxel_size:g} m)"

    @property
    def size(self) -> Float64:
        """[3] edges of the box, metres."""
        return np.array(self.distances.shape) * self.voxel_size

    @property
    def centers(self) -> Float64:
        """[X, Y, Z, 3] centres of the voxels in the frame of the grid, metres."""
        axes = [(np.arange(count) - (count - 1) / 2) * self.voxel_size for count in self.distances.shape]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
