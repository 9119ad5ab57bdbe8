"""Plain values as cuRobo defines them; any objects with the same attributes work, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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
        collision_geometry_dtype: accepted, without effect, as are the following.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cuda", 0) if torch.cuda.is_available() else _CPU)
    dtype: torch.dtype = torch.float32
    collision_geometry_dtype: torch.dtype = torch.float32
    collision_gradient_dtype: torch.dtype = torch.float32
    collision_distance_dtype: torch.dtype = torch.float32

    def to_device(self, value: Any) -> torch.Tensor:
        """Returns `value` as a tensor of this device and type."""
        return torch.as_tensor(value, device=self.device, dtype=self.dtype)

    def as_torch_dict(self) -> dict[str, Any]:
        """Returns device and type as arguments of torch's functions."""
        return {"device": self.device, "dtype": self.dtype}

    def cpu(self) -> TensorDeviceType:
        """Returns a copy for the CPU."""
        return replace(self, device=_CPU)


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
