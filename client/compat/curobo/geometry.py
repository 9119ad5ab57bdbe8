"""Obstacles as code for cuRobo makes them, with its order of arguments, and meshes and boxes in their place."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lumigrad.client.base.arrays import Array, Float64, float64_array, to_numpy
from lumigrad.client.compat.curobo.errors import CuroboArgumentError, curobo_refusals
from lumigrad.client.compat.curobo.tessellation import revolved, voxel_faces
from lumigrad.client.compat.curobo.values import TensorDeviceType, pose_numbers, triangles
from lumigrad.client.values.mesh import Mesh as ClientMesh
from lumigrad.client.values.rotations import pose_array, rotated


@dataclass
class Obstacle:
    """The base class of obstacles.

    Attributes:
        name: its name, by which calls refer to it.
        pose: [7] pose of its frame, for boxes and grids at the centre: x y z, quaternion w x y z; None: the identity.
        scale: factors on x, y, z of a mesh, or one for all; None: 1. Without effect on other obstacles.
        color: accepted, without effect, as are the following.
    """

    name: str
    pose: Any = None
    scale: Any = None
    color: Any = None
    texture_id: Any = None
    texture: Any = None
    material: Any = None
    tensor_args: Any = None

    def get_mesh(self, process: bool = True) -> Mesh:
        """Returns a mesh of the same surface, in the same frame; round surfaces become inscribed facets."""
        raise CuroboArgumentError.of("obstacle", f"expected one with a surface, got {type(self).__name__}")

    def get_cuboid(self) -> Cuboid:
        """Returns its bounding box along the axes of its frame."""
        vertices, _ = self.get_mesh().arrays()
        low, high = vertices.min(axis=0), vertices.max(axis=0)
        pose = pose_array("pose", pose_numbers("pose", self.pose))
        centre = pose[:3] + rotated(pose[3:] / np.linalg.norm(pose[3:]), (low + high)[None] / 2)[0]
        return Cuboid(self.name, [*centre.tolist(), *pose[3:].tolist()], color=self.color, dims=(high - low).tolist())

    def _meshed(self, vertices: Array, faces: Array) -> Mesh:
        return Mesh(self.name, self.pose, color=self.color, vertices=vertices, faces=faces)


@dataclass
class Cuboid(Obstacle):
    """A box.

    Attributes:
        dims: [3] full edges, metres.
    """

    dims: Any = (0.0, 0.0, 0.0)

    def get_mesh(self, process: bool = True) -> Mesh:
        """Returns its 12 triangles."""
        corners, faces = voxel_faces(np.zeros((1, 3), np.int64))
        edges = float64_array("dims", to_numpy("dims", self.dims), (3,))
        return self._meshed((corners - 0.5) * edges, faces)

    def get_cuboid(self) -> Cuboid:
        """Returns a copy."""
        return deepcopy(self)


@dataclass
class Sphere(Obstacle):
    """A ball.

    Attributes:
        radius: metres.
        position: [3] its centre, if there is no pose.
    """

    radius: float = 0.0
    position: Any = None

    def __post_init__(self) -> None:
        if self.pose is None and self.position is not None:
            self.pose = [*to_numpy("position", self.position).tolist(), 1.0, 0.0, 0.0, 0.0]

    def get_mesh(self, process: bool = True) -> Mesh:
        """Returns facets with corners on the sphere."""
        return self._meshed(*revolved(_arc(self.radius, -np.pi / 2, np.pi / 2, 0.0)))


@dataclass
class Capsule(Obstacle):
    """A cylinder with half balls at its ends.

    Attributes:
        radius: metres.
        base: [3] centre of the first half ball, in its frame.
        tip: [3] centre of the other one.
    """

    radius: float = 0.0
    base: Any = (0.0, 0.0, 0.0)
    tip: Any = (0.0, 0.0, 0.0)

    def get_mesh(self, process: bool = True) -> Mesh:
        """Returns facets with corners on the capsule."""
        base, tip = (float64_array(name, to_numpy(name, getattr(self, name)), (3,)) for name in ("base", "tip"))
        height = float(np.linalg.norm(tip - base))
        ends = [_arc(self.radius, -np.pi / 2, 0.0, 0.0), _arc(self.radius, 0.0, np.pi / 2, height)]
        vertices, faces = revolved(np.concatenate(ends))
        return self._meshed(vertices @ _axes_with(tip - base).T + base, faces)


@dataclass
class Cylinder(Obstacle):
    """A cylinder around z, whose middle is the origin of its frame.

    Attributes:
        radius: metres.
        height: metres.
    """

    radius: float = 0.0
    height: float = 0.0

    def get_mesh(self, process: bool = True) -> Mesh:
        """Returns facets with corners on the cylinder."""
        half = self.height / 2
        return self._meshed(*revolved(np.array([[0, -half], [self.radius, -half], [self.radius, half], [0, half]])))


@dataclass
class Mesh(Obstacle):
    """A triangle mesh, from arrays or a file.

    Attributes:
        file_path: STL, OBJ, PLY or GLB, instead of arrays.
        vertices: [V, 3], metres.
        faces: [F, 3], or flat, three numbers a triangle.
        file_string: not supported, like urdf_path; the remaining attributes have no effect.
    """

    file_path: str | None = None
    file_string: Any = None
    urdf_path: Any = None
    vertices: Any = None
    faces: Any = None
    vertex_colors: Any = None
    vertex_normals: Any = None
    face_colors: Any = None

    @staticmethod
    def from_pointcloud(
        pointcloud: Any, pitch: float = 0.02, name: str = "world_pc", pose: Any = None, filter_close_points: float = 0.0
    ) -> Mesh:
        """Creates the surface of the voxels that contain points.

        Args:
            pointcloud: [N, 3] points, metres.
            pitch: edge of a voxel, metres.
            name: name of the mesh.
            pose: pose of its frame.
            filter_close_points: points up to this distance from the origin are left out, metres.
        """
        points = to_numpy("pointcloud", pointcloud).astype(np.float64)
        if points.ndim != 2 or points.shape[1] != 3 or not np.isfinite(points).all():
            raise CuroboArgumentError.of("pointcloud", f"expected finite points [N, 3], got {list(points.shape)}")
        if not pitch > 0.0:
            raise CuroboArgumentError.of("pitch", f"expected an edge above 0, metres, got {pitch}")
        points = points[np.linalg.norm(points, axis=1) > filter_close_points] if filter_close_points > 0.0 else points
        if not len(points):
            raise CuroboArgumentError.of("pointcloud", "expected at least one point, got none")
        cells = np.unique(np.floor(points / pitch).astype(np.int64), axis=0)
        vertices, faces = voxel_faces(cells)
        return Mesh(name, pose, vertices=vertices * pitch, faces=faces)

    def arrays(self) -> tuple[Float64, Array]:
        """Returns vertices [V, 3], scaled, and faces [F, 3]."""
        mesh = mesh_of(self)
        return mesh.vertices.astype(np.float64), mesh.faces

    def get_mesh(self, process: bool = True) -> Mesh:
        """Returns a copy with arrays, scaled."""
        return self._meshed(*self.arrays())


@dataclass
class VoxelGrid(Obstacle):
    """Values at the centres of the voxels of a box.

    Attributes:
        dims: [3] full edges, metres.
        voxel_size: edge of a voxel, metres.
        feature_tensor: a value for each voxel, x slowest; as an obstacle, signed distances, positive inside. Queries
            use its present values, including changes in place by torch. None: nothing is near, until
            `update_voxel_data`.
        xyzr_tensor: [N, 4] centres in the world and radius, if the grid is the result of a query.
        feature_dtype: accepted, without effect.
        positive_inside: False: distances in feature_tensor are positive outside, as in cuRobo 0.8.
    """

    dims: Any = (0.0, 0.0, 0.0)
    voxel_size: float = 0.02
    feature_tensor: torch.Tensor | None = None
    xyzr_tensor: torch.Tensor | None = None
    feature_dtype: torch.dtype = torch.float32
    positive_inside: bool = True

    @property
    def shape(self) -> tuple[int, int, int]:
        """Voxels along x, y and z."""
        x, y, z = (max(1, round(float(edge) / self.voxel_size)) for edge in self.dims)
        return x, y, z

    def create_xyzr_tensor(self, transform_to_origin: bool = False, tensor_args: Any = None) -> torch.Tensor:
        """Returns [N, 4], centres of the voxels, x slowest, in the grid's frame, and half of their edge.

        Args:
            transform_to_origin: give centres in the world.
            tensor_args: device and type.
        """
        centres = self._centres()
        if transform_to_origin:
            pose = pose_array("pose", pose_numbers("pose", self.pose))
            centres = rotated(pose[3:] / np.linalg.norm(pose[3:]), centres) + pose[:3]
        radii = np.full((len(centres), 1), self.voxel_size / 2)
        kind = TensorDeviceType() if tensor_args is None else tensor_args
        return torch.from_numpy(np.concatenate([centres, radii], axis=1)).to(kind.device, kind.dtype)

    def clone(self) -> VoxelGrid:
        """Returns a copy, tensors included."""
        tensors = {name: getattr(self, name) for name in ("feature_tensor", "xyzr_tensor")}
        copies: dict[str, Any] = {name: None if tensor is None else tensor.clone() for name, tensor in tensors.items()}
        return replace(self, pose=deepcopy(self.pose), dims=deepcopy(self.dims), **copies)

    def _centres(self) -> Float64:
        """Returns the voxel centres [N, 3] in its frame; as in the original, half a voxel off for odd counts."""
        edge = self.voxel_size
        axes = [
            (np.arange(1, count + 1) - round(float(length) / (2 * edge))) * edge - edge / 2
            for count, length in zip(self.shape, self.dims, strict=True)
        ]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)


def mesh_of(obstacle: Any) -> ClientMesh:
    """Returns the mesh of an object that has vertices and faces, or file_path; a name; and perhaps scale."""
    with curobo_refusals():
        vertices, faces = getattr(obstacle, "vertices", None), getattr(obstacle, "faces", None)
        path = getattr(obstacle, "file_path", None)
        if vertices is not None and faces is not None:
            mesh = ClientMesh(vertices, triangles(faces))
        elif path is not None:
            mesh = ClientMesh.load(path)
        else:
            raise CuroboArgumentError.of("vertices", f"expected vertices and faces, or file_path, of {obstacle.name!r}")
        scale = getattr(obstacle, "scale", None)
        if scale is None:
            return mesh
        factors = np.broadcast_to(to_numpy("scale", scale), (3,))
        return ClientMesh(mesh.vertices * float64_array("scale", factors, (3,)), mesh.faces)


def _arc(radius: float, start: float, stop: float, height: float) -> Float64:
    """Returns part of a half circle as [n, 2], distances from the axis and heights."""
    angles = np.linspace(start, stop, 13 if stop - start < 2 else 25)
    return np.stack([radius * np.cos(angles).round(15), radius * np.sin(angles) + height], axis=1)


def _axes_with(direction: Float64) -> Float64:
    """Returns a rotation whose last column is along a direction; the identity for a direction of length 0."""
    length = np.linalg.norm(direction)
    if length == 0.0:
        return np.eye(3)
    z = direction / length
    x = np.cross(np.eye(3)[int(np.abs(z).argmin())], z)
    x /= np.linalg.norm(x)
    return np.stack([x, np.cross(z, x), z], axis=1)
