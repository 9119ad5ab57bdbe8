"""Shapes other than meshes: cuboids and grids of signed distances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lumigrad.kernels import _native
from lumigrad.kernels.checks import check, check_tensor, finite_range, is_number
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.meshes.engine import Engine
from lumigrad.kernels.meshes.mesh import Mesh
from lumigrad.kernels.meshes.pose import MAX_COORDINATE, Array


@dataclass(frozen=True)
class Cuboid:
    """A solid box, centred at the origin of its frame.

    Attributes:
        size: Edges along x, y and z, metres.

    Raises:
        ArgumentError: An edge is not above 0, or not finite.
    """

    size: tuple[float, float, float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", checked_size(self.size, "size"))

    @property
    def bytes(self) -> int:
        """Memory in use, bytes."""
        return 0

    def solid(self, engine: Engine, sign: str) -> Any:
        """The box as an obstacle without a pose, for an engine."""
        return _native.mesh_cuboid_solid([0.5 * edge for edge in self.size])


def are_sizes(sizes: Array) -> Array:
    """Mark the rows [N, 3] float64 that are valid edges of boxes, [N] bool."""
    return np.asarray(((sizes > 0.0) & (sizes <= MAX_COORDINATE)).all(axis=1))


def cuboids_of(sizes: Array) -> list[Cuboid]:
    """Solid boxes with edges [N, 3] float64, metres, which are checked together.

    Raises:
        ArgumentError: As for `Cuboid`; names the row, as in "sizes[3]".
    """
    for index in np.flatnonzero(~are_sizes(sizes)).tolist():
        checked_size(sizes[index].tolist(), f"sizes[{index}]")
    cuboids = []
    for edges in map(tuple, sizes.tolist()):
        cuboid = object.__new__(Cuboid)
        cuboid.__dict__["size"] = edges
        cuboids.append(cuboid)
    return cuboids


@dataclass(frozen=True, eq=False)
class Grid:
    """Signed distances at the centres of voxels, on a grid that is centred at the origin of its frame.

    Values between centres are interpolated linearly. Outside the grid the value is that at the nearest point of the
    grid plus the distance to that point.

    Attributes:
        distances: f32 [nx, ny, nz] metres, positive outside, at least 2 along each axis. The centre of voxel (i, j, k)
            is at ((i, j, k) - (n - 1) / 2) * voxel_size.
        voxel_size: Edge of a voxel, metres.

    Raises:
        ArgumentError: The tensor has a wrong shape or type or a value that is not finite, or the edge is not above 0.
    """

    distances: torch.Tensor
    voxel_size: float

    def __post_init__(self) -> None:
        device = getattr(self.distances, "device", torch.device("cpu"))
        check_tensor("distances", self.distances, (None, None, None), device, "distances")
        if min(self.distances.shape) < 2:
            raise ArgumentError("distances", "at least 2 voxels along each axis", f"shape {list(self.distances.shape)}")
        if self.distances.numel() >= 2**31:
            raise ArgumentError("distances", "fewer than 2**31 voxels", f"shape {list(self.distances.shape)}")
        tensor = self.distances.detach().contiguous()
        finite_range("distances", tensor)
        size = self.voxel_size
        extent = max(tensor.shape) * float(size) if is_number(size) else math.nan
        expected = f"a value above 0, metres, the grid's edges at most {MAX_COORDINATE:g}"
        check(is_number(size) and float(size) > 0.0 and extent <= MAX_COORDINATE, "voxel_size", expected, size)
        object.__setattr__(self, "distances", tensor)
        object.__setattr__(self, "voxel_size", float(size))

    @property
    def device(self) -> torch.device:
        """The device of the tensor."""
        return self.distances.device

    @property
    def bytes(self) -> int:
        """Memory in use, bytes."""
        return self.distances.numel() * self.distances.element_size()

    def solid(self, engine: Engine, sign: str) -> Any:
        """The grid as an obstacle without a pose, for an engine."""
        return _native.mesh_grid_solid(self.distances, self.voxel_size)


Shape = Mesh | Cuboid | Grid


def checked_size(size: Sequence[float], argument: str) -> tuple[float, float, float]:
    """Checks the three edges of a box, metres.

    Raises:
        ArgumentError: The edges are not 3 finite values above 0.
    """
    expected = f"3 edges above 0, at most {MAX_COORDINATE:g} m"
    try:
        edges = tuple(float(edge) for edge in size)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(argument, expected, f"{size!r}") from None
    check(len(edges) == 3 and all(0.0 < edge <= MAX_COORDINATE for edge in edges), argument, expected, size)
    return edges[0], edges[1], edges[2]
