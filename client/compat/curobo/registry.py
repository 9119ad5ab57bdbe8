"""Registered meshes by their handles, and the slots of meshes, cuboids and voxel grids in a world."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch

from lumigrad.client.base.arrays import Array, Float64
from lumigrad.client.client import Client
from lumigrad.client.compat.curobo.errors import CuroboArgumentError, curobo_refusals
from lumigrad.client.compat.curobo.geometry import VoxelGrid as Voxels
from lumigrad.client.compat.curobo.geometry import mesh_of
from lumigrad.client.compat.curobo.values import pose_numbers, triangles
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.rotations import inverse_pose
from lumigrad.client.values.world import Cuboid, Obstacle, Sign, VoxelGrid, World

_lock = threading.Lock()
_meshes: dict[int, Mesh] = {}
_signs: WeakKeyDictionary[Mesh, Sign] = WeakKeyDictionary()


def register_mesh(vertices: Any, faces: Any) -> int:
    """Registers a mesh, and returns its handle for `mesh_idx`. The same mesh gets the same handle in every process.

    Args:
        vertices: [V, 3] in the frame of the mesh, metres.
        faces: [F, 3] indices of vertices, or flat; counter-clockwise seen from outside.

    Returns:
        A number above 0 that an int64 holds. The mesh is kept until `unregister_mesh`.
    """
    mesh = Mesh(vertices, triangles(faces))
    digest = hashlib.sha256()
    for array in mesh.tensors.values():
        digest.update(str(array.shape).encode())
        digest.update(array.tobytes())
    handle = int.from_bytes(digest.digest()[:8], "little") >> 2 | 1
    with _lock:
        _meshes.setdefault(handle, mesh)
    return handle


def unregister_mesh(handle: int) -> None:
    """Removes a mesh from this process; workers evict unused meshes."""
    with _lock:
        _meshes.pop(int(handle), None)


def registered_mesh(handle: int, argument: str) -> Mesh:
    """Returns the mesh of a handle; errors name `argument`."""
    with _lock:
        mesh = _meshes.get(handle)
    if mesh is None:
        raise CuroboArgumentError.of(argument, f"expected a handle from register_mesh, got {handle}")
    return mesh


def sign_of(mesh: Mesh, client: Client) -> Sign:
    """Returns the fastest sign policy that gives cuRobo's results.

    cuRobo casts three rays, which see only their first hits. They agree with the normals if the worker uses normals and
    no component is inside out.
    """
    with _lock:
        sign = _signs.get(mesh)
    if sign is None:
        report = client.put(mesh).report
        agree = report is not None and report.sign == "normals" and report.turned_components == 0
        sign = "auto" if agree else "rays"
        with _lock:
            _signs[mesh] = sign
    return sign


Kind = Literal["mesh", "cuboid", "voxel"]


@dataclass(frozen=True)
class Slot:
    """One obstacle of one environment.

    Attributes:
        kind: the list of the world model that it comes from.
        name: its name.
        shape: its geometry; None: a grid without features, near which there is nothing.
        pose: x y z qw qx qy qz, object to world.
        enabled: whether queries include it.
        grid: the object that a grid comes from, whose features may change.
        features: the tensor that the shape was made from, and its version at that time.
    """

    kind: Kind
    name: str
    shape: Mesh | Cuboid | VoxelGrid | None
    pose: tuple[float, ...]
    enabled: bool = True
    grid: Any = None
    features: tuple[torch.Tensor, int] | None = None

    def renewed(self) -> Slot:
        """Returns the slot with the present features of its grid, or itself if they have not changed."""
        if self.grid is None:
            return self
        present = self.grid.feature_tensor
        if present is None or self.features is None:
            is_same = present is None and self.features is None
        else:
            is_same = present is self.features[0] and _version(present) == self.features[1]
        if is_same:
            return self
        return replace(Slot.of_grid(self.grid), pose=self.pose, enabled=self.enabled)

    @staticmethod
    def of_mesh(obstacle: Any) -> Slot:
        """Creates a slot from an object with vertices and faces, or file_path; and name, pose, scale."""
        return Slot("mesh", obstacle.name, mesh_of(obstacle), _pose(obstacle))

    @staticmethod
    def of_cuboid(obstacle: Any) -> Slot:
        """Creates a slot from an object with name, pose and dims."""
        with curobo_refusals():
            return Slot("cuboid", obstacle.name, Cuboid(obstacle.dims), _pose(obstacle))

    @staticmethod
    def of_grid(obstacle: Any) -> Slot:
        """Creates a slot from an object with name, pose, dims, voxel_size, feature_tensor, maybe positive_inside."""
        features = obstacle.feature_tensor
        if features is None:
            return Slot("voxel", obstacle.name, None, _pose(obstacle), grid=obstacle)
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
    """Returns torch's count of changes in place; 0 for tensors of inference mode, which have none."""
    return 0 if features.is_inference() else features._version


def _positive_inside(obstacle: Any) -> bool:
    """Whether distances are positive inside, as in cuRobo 0.7; in 0.8 they are negative there."""
    stated = getattr(obstacle, "positive_inside", None)
    # Only cuRobo 0.8 has classes in this package.
    if stated is None and any(kind.__module__.startswith("curobo._src.") for kind in type(obstacle).__mro__):
        raise CuroboArgumentError.of(
            "positive_inside",
            f"expected True or False for the grid {obstacle.name!r} of cuRobo 0.8, whose distances are positive "
            "outside where those of 0.7 are positive inside; set its attribute positive_inside = False, or True if "
            "yours are not",
        )
    return True if stated is None else bool(stated)


def _pose(obstacle: Any) -> tuple[float, ...]:
    return tuple(pose_numbers("pose", getattr(obstacle, "pose", None)))


_ENABLED = 1
_SHORTEST_QUATERNION = 1e-6


def registered_world(client: Client, mesh_idx: Any, mesh_pose_inverse: Any, mesh_enable: Any, n_env_mesh: Any) -> World:
    """Returns the world of registered meshes, by environment and slot; the same object for tensors of equal content."""
    index, poses = _host("mesh_idx", mesh_idx, np.int64), _host("mesh_pose_inverse", mesh_pose_inverse)
    enable, used = _host("mesh_enable", mesh_enable), _host("n_env_mesh", n_env_mesh, np.int64)
    if index.ndim != 2:
        raise CuroboArgumentError.of("mesh_idx", f"expected shape [E, M], got {list(index.shape)}")
    expected = {"mesh_pose_inverse": (poses, (*index.shape, 8)), "mesh_enable": (enable, index.shape)}
    for name, (array, shape) in {**expected, "n_env_mesh": (used, index.shape[:1])}.items():
        if array.shape != shape:
            raise CuroboArgumentError.of(name, f"expected shape {list(shape)}, got {list(array.shape)}")
    seen = (enable == _ENABLED) & (np.arange(index.shape[1]) < used[:, None])
    places = np.argwhere(seen).tolist()
    handles = zip(places, index[seen].tolist(), strict=True)
    meshes = tuple(registered_mesh(handle, f"mesh_idx[{row}, {slot}]") for (row, slot), handle in handles)
    return _world(client, len(index), tuple(map(tuple, places)), meshes, poses[seen].tobytes())


# Planners query the same world repeatedly.
@lru_cache(maxsize=64)
def _world(
    client: Client, environments: int, slots: tuple[tuple[int, ...], ...], meshes: tuple[Mesh, ...], poses: bytes
) -> World:
    placed = _object_to_world(np.frombuffer(poses, np.float64).reshape(-1, 8)[:, :7], slots)
    obstacles = []
    for (environment, slot), mesh, pose in zip(slots, meshes, placed, strict=True):
        name = f"{environment}/{slot}"
        obstacles.append(Obstacle(mesh, pose, name, environment=environment, sign=sign_of(mesh, client)))
    return World(obstacles, max(environments, 1))


def _object_to_world(poses: Float64, slots: Sequence[Sequence[int]]) -> Float64:
    good = np.isfinite(poses).all(axis=1) & (np.linalg.norm(poses[:, 3:], axis=1) > _SHORTEST_QUATERNION)
    if not good.all():
        row = int(good.argmin())
        raise CuroboArgumentError.of(
            f"mesh_pose_inverse[{', '.join(map(str, slots[row]))}]",
            f"expected x y z and a unit quaternion w x y z, got {poses[row].tolist()}",
        )
    return inverse_pose(poses)


def _host(name: str, value: Any, kind: type[np.generic] = np.float64) -> Array:
    if not isinstance(value, torch.Tensor):
        raise CuroboArgumentError.of(name, f"expected a tensor, got {type(value).__name__}")
    return np.ascontiguousarray(value.detach().cpu().numpy(), kind)
