"""An obstacle of cuRobo's -> a shape that the client places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from lumigrad.client.arrays import float64_array, to_numpy
from lumigrad.client.compat.curobo.errors import CuroboArgumentError, curobo_refusals
from lumigrad.client.compat.curobo.values import VoxelGrid as Voxels
from lumigrad.client.compat.curobo.values import pose_numbers
from lumigrad.client.cuboid import Cuboid
from lumigrad.client.mesh import Mesh
from lumigrad.client.voxel_grid import VoxelGrid

Kind = Literal["mesh", "cuboid", "voxel"]


@dataclass(frozen=True)
class Slot:
    """One obstacle of one environment.

    Attributes:
        kind: what list of a world model it comes from.
        name: by which it is found.
        shape: what is there.
        pose: x y z qw qx qy qz, object to world.
        enabled: whether queries see it.
    """

    kind: Kind
    name: str
    shape: Mesh | Cuboid | VoxelGrid
    pose: tuple[float, ...]
    enabled: bool = True

    @staticmethod
    def of_mesh(obstacle: Any) -> Slot:
        """From an object with vertices and faces, or file_path; and name, pose, scale."""
        with curobo_refusals():
            vertices, faces = getattr(obstacle, "vertices", None), getattr(obstacle, "faces", None)
            mesh = _loaded(obstacle) if vertices is None or faces is None else Mesh(vertices, faces)
            scale = getattr(obstacle, "scale", None)
            if scale is not None:
                factors = np.broadcast_to(to_numpy("scale", scale), (3,))
                mesh = Mesh(mesh.vertices * float64_array("scale", factors, (3,)), mesh.faces)
        return Slot("mesh", obstacle.name, mesh, _pose(obstacle))

    @staticmethod
    def of_cuboid(obstacle: Any) -> Slot:
        """From an object with name, pose and dims."""
        with curobo_refusals():
            return Slot("cuboid", obstacle.name, Cuboid(obstacle.dims), _pose(obstacle))

    @staticmethod
    def of_grid(obstacle: Any) -> Slot:
        """From an object with name, pose, dims, voxel_size and feature_tensor, positive inside."""
        features = obstacle.feature_tensor
        if features is None:
            raise CuroboArgumentError.of("feature_tensor", f"expected the distances of {obstacle.name!r}, got None")
        shape = Voxels(obstacle.name, dims=obstacle.dims, voxel_size=obstacle.voxel_size).shape
        values = features.detach().to("cpu", torch.float32)
        if values.numel() != np.prod(shape):
            raise CuroboArgumentError.of(
                "feature_tensor", f"expected {' x '.join(map(str, shape))} values, got shape {list(values.shape)}"
            )
        with curobo_refusals():
            grid = VoxelGrid(-values.reshape(shape), obstacle.voxel_size)
        return Slot("voxel", obstacle.name, grid, _pose(obstacle))


def _loaded(obstacle: Any) -> Mesh:
    path = getattr(obstacle, "file_path", None)
    if path is None:
        raise CuroboArgumentError.of("vertices", f"expected vertices and faces, or file_path, of {obstacle.name!r}")
    return Mesh.load(path)


def _pose(obstacle: Any) -> tuple[float, ...]:
    return tuple(pose_numbers("pose", getattr(obstacle, "pose", None)))
