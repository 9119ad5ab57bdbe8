"""The tensors that describe a world in cuRobo -> a world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from lumigrad.client.arrays import Float64
from lumigrad.client.client import Client
from lumigrad.client.compat.curobo.errors import CuroboArgumentError
from lumigrad.client.compat.curobo.registry import registered_mesh, sign_of
from lumigrad.client.mesh import Mesh
from lumigrad.client.named_arrays import Array
from lumigrad.client.obstacle import Obstacle
from lumigrad.client.pose import inverse_pose
from lumigrad.client.world import World

_ENABLED = 1
_SHORTEST_QUATERNION = 1e-6


@dataclass(frozen=True)
class MeshSlots:
    """Meshes by environment and slot, E and M.

    Attributes:
        mesh_idx: (E, M) handles of meshes.
        mesh_pose_inverse: (E, M, 8) world to mesh: x y z, quaternion w x y z, padding.
        mesh_enable: (E, M); only 1 counts.
        n_env_mesh: (E,) slots in use.
    """

    mesh_idx: torch.Tensor
    mesh_pose_inverse: torch.Tensor
    mesh_enable: torch.Tensor
    n_env_mesh: torch.Tensor

    def world(self, client: Client) -> World:
        """The world; the same one for tensors of the same content."""
        index, poses = _host("mesh_idx", self.mesh_idx, np.int64), _host("mesh_pose_inverse", self.mesh_pose_inverse)
        enable, used = _host("mesh_enable", self.mesh_enable), _host("n_env_mesh", self.n_env_mesh, np.int64)
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


# Planners ask about the same world again and again.
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
