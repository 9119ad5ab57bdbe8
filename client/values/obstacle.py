"""Obstacles of a world: meshes, cuboids and voxel grids with a pose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from lumigrad.client.base.arguments import instance, number, one_of, optional_name, truth, whole_number
from lumigrad.client.base.arrays import Float32, Float64, float32_array, float64_array
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.pose import IDENTITY, pose_array


@dataclass(frozen=True, eq=False, init=False)
class Cuboid:
    """A box around the origin of its frame, its edges along the axes.

    Attributes:
        size: [3] lengths of the edges, metres, > 0.
    """

    size: Float64

    def __init__(self, size: Any) -> None:
        edges = float64_array("size", size, (3,))
        if not (edges > 0).all():
            raise InvalidArgument.of("size", f"expected three lengths > 0, got {edges.tolist()}")
        vars(self).update(size=edges)

    def __repr__(self) -> str:
        return f"Cuboid({' x '.join(f'{edge:g}' for edge in self.size)} m)"


@dataclass(frozen=True, eq=False, init=False)
class VoxelGrid:
    """Signed distances at the centres of voxels, in a box around the origin of its frame.

    Distances are interpolated linearly between centres; outside, the distance to the box is added to the closest value.

    Attributes:
        distances: [X, Y, Z] float32, metres, positive outside, finite; for an obstacle at least 2 along each axis.
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
        vars(self).update(distances=values, voxel_size=edge)

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


Sign = Literal["auto", "normals", "rays", "winding", "unsigned"]
Shape: TypeAlias = Mesh | SceneHandle | Cuboid | VoxelGrid

MAX_ENVIRONMENTS = 1 << 20


@dataclass(frozen=True, eq=False, init=False)
class Obstacle:
    """A mesh, a box or a grid of distances, placed in a world.

    Attributes:
        shape: the mesh, its handle from `Client.put`, the cuboid or the grid.
        pose: [7] object to world: x y z (metres) and the quaternion w x y z, which is normalised when used. [3] x y z
            alone or a matrix [4, 4] are accepted too.
        name: identifies it in `Client.update`; None: the world chooses one.
        enabled: whether queries see it.
        environment: the number of its environment.
        sign: how the inside of a mesh is determined: "auto": "normals" if the mesh is closed and oriented (inverted if
            its volume is negative), else "winding"; "normals": by the closest surface; "rays": by votes of three rays
            along the axes of the mesh; "winding": by the generalised winding number; "unsigned": there is no inside.
    """

    shape: Shape
    pose: Float64
    name: str | None
    enabled: bool
    environment: int
    sign: Sign

    def __init__(
        self,
        shape: Shape,
        pose: Any = IDENTITY,
        name: str | None = None,
        enabled: bool = True,
        environment: int = 0,
        sign: Sign = "auto",
    ) -> None:
        advice = "make one with Mesh(vertices, faces), Cuboid(size) or VoxelGrid(distances, voxel_size)"
        instance("shape", shape, (Mesh, SceneHandle, Cuboid, VoxelGrid), advice)
        if isinstance(shape, SceneHandle) and shape.kind != "mesh":
            raise InvalidArgument.of("shape", f"expected a handle of a mesh, got one of {shape.kind}")
        if isinstance(shape, VoxelGrid) and min(shape.distances.shape) < 2:
            raise InvalidArgument.of("shape", f"expected 2 voxels or more each way, got {shape!r}")
        one_of("sign", sign, get_args(Sign), quote='"')
        vars(self).update(
            shape=shape,
            pose=pose_array("pose", pose),
            name=optional_name("name", name),
            enabled=truth("enabled", enabled),
            environment=whole_number("environment", environment, 0, MAX_ENVIRONMENTS - 1),
            sign=sign,
        )

    @property
    def mesh(self) -> Mesh | None:
        """The mesh, if the obstacle is one and the client has a copy; else None."""
        shape = self.shape.scene if isinstance(self.shape, SceneHandle) else self.shape
        return shape if isinstance(shape, Mesh) else None
