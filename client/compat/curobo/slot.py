"""An obstacle of cuRobo's -> a shape that the client places."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from lumigrad.client.arrays import float64_array, to_numpy
from lumigrad.client.compat.curobo.errors import CuroboArgumentError, curobo_refusals
from lumigrad.client.compat.curobo.values import VoxelGrid as Voxels
from lumigrad.client.compat.curobo.values import pose_numbers, triangles
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
        grid: the object that a grid comes from, whose features may change.
        features: of that object, when the shape was made of them: the tensor and its version.
    """

    kind: Kind
    name: str
    shape: Mesh | Cuboid | VoxelGrid
    pose: tuple[float, ...]
    enabled: bool = True
    grid: Any = None
    features: tuple[torch.Tensor, int] | None = None

    def renewed(self) -> Slot:
        """With the features that its grid has now; itself if they are those of before."""
        if self.features is None:
            return self
        tensor, version = self.features
        if self.grid.feature_tensor is tensor and _version(tensor) == version:
            return self
        return replace(Slot.of_grid(self.grid), pose=self.pose, enabled=self.enabled)

    @staticmethod
    def of_mesh(obstacle: Any) -> Slot:
        """From an object with vertices and faces, or file_path; and name, pose, scale."""
        with curobo_refusals():
            vertices, faces = getattr(obstacle, "vertices", None), getattr(obstacle, "faces", None)
            mesh = _loaded(obstacle) if vertices is None or faces is None else Mesh(vertices, triangles(faces))
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
        """From an object with name, pose, dims, voxel_size, feature_tensor, and maybe positive_inside."""
        features = obstacle.feature_tensor
        if features is None:
            raise CuroboArgumentError.of("feature_tensor", f"expected the distances of {obstacle.name!r}, got None")
        inward = _positive_inside(obstacle)
        shape = Voxels(obstacle.name, dims=obstacle.dims, voxel_size=obstacle.voxel_size).shape
        version = _version(features)
        values = features.detach().to("cpu", torch.float32)
        if values.numel() != np.prod(shape):
            raise CuroboArgumentError.of(
                "feature_tensor", f"expected {' x '.join(map(str, shape))} values, got shape {list(values.shape)}"
            )
        with curobo_refusals():
            grid = VoxelGrid((-values if inward else values.clone()).reshape(shape), obstacle.voxel_size)
        return Slot("voxel", obstacle.name, grid, _pose(obstacle), grid=obstacle, features=(features, version))


def _version(features: torch.Tensor) -> int:
    """Counts changes in place; tensors of inference mode, which have no such count, are taken to be fixed."""
    return 0 if features.is_inference() else features._version


def _positive_inside(obstacle: Any) -> bool:
    """Whether distances are positive inside, as in cuRobo 0.7; in 0.8 it is the other way round."""
    stated = getattr(obstacle, "positive_inside", None)
    # Where 0.8 keeps its classes, and 0.7 has nothing.
    if stated is None and any(kind.__module__.startswith("curobo._src.") for kind in type(obstacle).__mro__):
        raise CuroboArgumentError.of(
            "positive_inside",
            f"expected True or False for the grid {obstacle.name!r} of cuRobo 0.8, whose distances are positive "
            "outside where those of 0.7 are positive inside; set its attribute positive_inside = False, or True if "
            "yours are not",
        )
    return True if stated is None else bool(stated)


def _loaded(obstacle: Any) -> Mesh:
    path = getattr(obstacle, "file_path", None)
    if path is None:
        raise CuroboArgumentError.of("vertices", f"expected vertices and faces, or file_path, of {obstacle.name!r}")
    return Mesh.load(path)


def _pose(obstacle: Any) -> tuple[float, ...]:
    return tuple(pose_numbers("pose", getattr(obstacle, "pose", None)))
