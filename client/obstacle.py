"""A shape placed in a world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from lumigrad.client.arguments import instance, optional_name, truth, whole_number
from lumigrad.client.arrays import Float64
from lumigrad.client.cuboid import Cuboid
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.mesh import Mesh
from lumigrad.client.pose import IDENTITY, pose_array
from lumigrad.client.scene import SceneHandle
from lumigrad.client.voxel_grid import VoxelGrid

Sign = Literal["auto", "normals", "rays", "winding", "unsigned"]
Shape: TypeAlias = Mesh | SceneHandle | Cuboid | VoxelGrid

MAX_ENVIRONMENTS = 1 << 20


@dataclass(frozen=True, eq=False, init=False)
class Obstacle:
    """A mesh, a box or a grid of distances somewhere in a world.

    Attributes:
        shape: what is there; of a mesh also the handle, as `Client.put` returned it.
        pose: [7] object to world: x y z (metres) and the quaternion w x y z, which is normalised where it is used. It
            may be given as [3] x y z alone, or as a matrix [4, 4].
        name: by which `Client.update` finds it; None: the world chooses one.
        enabled: whether queries see it.
        environment: the one in which it is.
        sign: how inside is told from outside of a mesh: "auto": "normals" where the mesh is closed and oriented
            (turned inside out if its volume is negative), else "winding"; "normals": by the surface that is closest;
            "rays": by votes of three rays along the axes of the mesh; "winding": by the generalised winding number;
            "unsigned": there is no inside.
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
        if sign not in get_args(Sign):
            expected = ", ".join(f'"{known}"' for known in get_args(Sign))
            raise InvalidArgument.of("sign", f"expected one of {expected}, got {sign!r}")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "pose", pose_array("pose", pose))
        object.__setattr__(self, "name", optional_name("name", name))
        object.__setattr__(self, "enabled", truth("enabled", enabled))
        object.__setattr__(self, "environment", whole_number("environment", environment, 0, MAX_ENVIRONMENTS - 1))
        object.__setattr__(self, "sign", sign)

    @property
    def mesh(self) -> Mesh | None:
        """The mesh, where it is one and the client has a copy."""
        shape = self.shape.scene if isinstance(self.shape, SceneHandle) else self.shape
        return shape if isinstance(shape, Mesh) else None
