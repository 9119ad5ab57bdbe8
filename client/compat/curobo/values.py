"""The plain values of code for cuRobo. Any objects with the same attributes work too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from lumigrad.client.base.arrays import Array, to_numpy
from lumigrad.client.compat.curobo.errors import CuroboArgumentError

_CPU = torch.device("cpu")
_IDENTITY = (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class TensorDeviceType:
    """The device and type of new tensors.

    Attributes:
        device: their device; by default the first GPU if torch has one.
        dtype: their type.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cuda", 0) if torch.cuda.is_available() else _CPU)
    dtype: torch.dtype = torch.float32

    def to_device(self, value: Any) -> torch.Tensor:
        """Returns `value` as a tensor of this device and type."""
        return torch.as_tensor(value, device=self.device, dtype=self.dtype)


class CollisionCheckerType(Enum):
    """Accepted for compatibility of signatures: every checker here supports meshes, cuboids and grids."""

    PRIMITIVE = "PRIMITIVE"
    BLOX = "BLOX"
    MESH = "MESH"
    VOXEL = "VOXEL"


@dataclass
class Pose:
    """A rigid motion.

    Attributes:
        position: [3] or [1, 3] metres.
        quaternion: [4] or [1, 4], w x y z; None: no rotation.
    """

    position: Any
    quaternion: Any = None

    @staticmethod
    def from_list(pose: Sequence[float], tensor_args: Any = None) -> Pose:
        """Creates a pose from x y z qw qx qy qz."""
        device = getattr(tensor_args, "device", None)
        values = torch.as_tensor(pose, dtype=torch.float32, device=device)[None]
        return Pose(values[:, :3], values[:, 3:])

    def tolist(self) -> list[float]:
        """Returns x y z qw qx qy qz."""
        return pose_numbers("pose", self)


@dataclass
class Obstacle:
    """The base class of obstacles.

    Attributes:
        name: its name, by which calls refer to it.
        pose: [7] pose of its frame, for boxes and grids at the centre: x y z, quaternion w x y z; None: the identity.
    """

    name: str
    pose: Any = None


@dataclass
class Cuboid(Obstacle):
    """A box.

    Attributes:
        dims: [3] full edges, metres.
    """

    dims: Any = (0.0, 0.0, 0.0)


@dataclass
class Mesh(Obstacle):
    """A triangle mesh, from arrays or a file.

    Attributes:
        vertices: [V, 3], metres.
        faces: [F, 3], or flat, three numbers a triangle.
        file_path: STL, OBJ, PLY or GLB, instead of arrays.
        scale: factors on x, y, z, or one for all; None: 1.
    """

    vertices: Any = None
    faces: Any = None
    file_path: str | None = None
    scale: Any = None


@dataclass
class VoxelGrid(Obstacle):
    """Values at the centres of the voxels of a box.

    Attributes:
        dims: [3] full edges, metres.
        voxel_size: edge of a voxel, metres.
        feature_tensor: a value for each voxel, x slowest; as an obstacle, signed distances, positive inside. Queries
            use its present values, after changes in place by torch too.
        xyzr_tensor: [N, 4] centres in the world and radius, if the grid is the result of a query.
        positive_inside: False: distances in feature_tensor are positive outside, as in cuRobo 0.8.
    """

    dims: Any = (0.0, 0.0, 0.0)
    voxel_size: float = 0.02
    feature_tensor: torch.Tensor | None = None
    xyzr_tensor: torch.Tensor | None = None
    positive_inside: bool = True

    @property
    def shape(self) -> tuple[int, int, int]:
        """Voxels along x, y and z."""
        x, y, z = (max(1, round(float(edge) / self.voxel_size)) for edge in self.dims)
        return x, y, z


@dataclass
class WorldConfig:
    """Obstacles by kind; a checker that loads it refuses all but cuboids, meshes and voxel grids."""

    sphere: Sequence[Any] = field(default_factory=list)
    cuboid: Sequence[Any] = field(default_factory=list)
    capsule: Sequence[Any] = field(default_factory=list)
    cylinder: Sequence[Any] = field(default_factory=list)
    mesh: Sequence[Any] = field(default_factory=list)
    blox: Sequence[Any] = field(default_factory=list)
    voxel: Sequence[Any] = field(default_factory=list)

    @staticmethod
    def from_dict(data: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> WorldConfig:
        """Creates a world from the content of a world file of cuRobo: for each kind, attributes by name."""
        kinds = {"cuboid": Cuboid, "mesh": Mesh, "voxel": VoxelGrid}
        unknown = sorted(set(data) - set(kinds))
        if unknown:
            raise CuroboArgumentError.of("data", f"expected some of {', '.join(kinds)}, got {', '.join(unknown)}")
        return WorldConfig(
            **{
                kind: [kinds[kind](name=name, **_known(kinds[kind], name, values)) for name, values in entries.items()]
                for kind, entries in data.items()
            }
        )


def pose_numbers(argument: str, pose: Any) -> list[float]:
    """Returns x y z qw qx qy qz of a pose or of a list of these numbers; None is the identity."""
    if pose is None:
        return list(_IDENTITY)
    if hasattr(pose, "position"):
        position, quaternion = _numbers(pose.position), _numbers(getattr(pose, "quaternion", None))
        values = position + (quaternion or list(_IDENTITY[3:]))
    else:
        values = _numbers(pose)
    if len(values) != 7:
        raise CuroboArgumentError.of(
            argument, f"expected one pose: x y z and the quaternion w x y z, got {len(values)} numbers"
        )
    return values


def triangles(faces: Any) -> Array:
    """Returns faces [F, 3], given as such or as a flat list of three numbers for each triangle."""
    array = to_numpy("faces", faces)
    if array.ndim != 1:
        return array
    if len(array) % 3:
        raise CuroboArgumentError.of("faces", f"expected [F, 3], or three numbers a triangle, got {len(array)} numbers")
    return array.reshape(-1, 3)


def _numbers(values: Any) -> list[float]:
    if values is None:
        return []
    return torch.as_tensor(values).detach().to("cpu", torch.float64).reshape(-1).tolist()


def _known(kind: type, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    names = set(kind.__dataclass_fields__)  # type: ignore[attr-defined]
    unknown = sorted(set(values) - names - {"color", "material", "texture"})
    if unknown:
        raise CuroboArgumentError.of(f"data[{name!r}]", f"expected some of {', '.join(sorted(names))}, got {unknown}")
    return {key: value for key, value in values.items() if key in names}
