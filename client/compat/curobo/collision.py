"""`WorldMeshCollision`: cuRobo's collision checker of meshes, cuboids and voxel grids, on a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from lumigrad.client.compat.curobo import boxes
from lumigrad.client.compat.curobo.buffers import Buffers, CollisionQueryBuffer
from lumigrad.client.compat.curobo.errors import CuroboArgumentError
from lumigrad.client.compat.curobo.obstacles import Obstacles
from lumigrad.client.compat.curobo.registry import Slot
from lumigrad.client.compat.curobo.sphere_cost import SphereCost, backward, first, settings_of
from lumigrad.client.compat.curobo.values import (
    CollisionCheckerType,
    Cuboid,
    TensorDeviceType,
    VoxelGrid,
    inverse_numbers,
    pose_numbers,
)
from lumigrad.client.default import default_client
from lumigrad.client.settings.distances import DistanceSettings
from lumigrad.client.torch.graphs import outside_graphs


@dataclass
class WorldCollisionConfig:
    """How a checker begins.

    Attributes:
        tensor_args: where its own results are.
        world_model: the obstacles of environment 0, or a list with a model for each environment; None: none.
        cache: accepted; any number of obstacles fits.
        n_envs: environments.
        checker_type: accepted.
        max_distance: search radius of queries, metres.
        max_esdf_distance: accepted.
    """

    tensor_args: Any = field(default_factory=TensorDeviceType)
    world_model: Any = None
    cache: Mapping[str, Any] | None = None
    n_envs: int = 1
    checker_type: Any = CollisionCheckerType.MESH
    max_distance: Any = 0.1
    max_esdf_distance: Any = 100.0


class WorldMeshCollision:
    """Obstacles by name and environment, and the costs of spheres near them.

    Meshes are stored by their content: other geometry under a name that was used before is taken, as anyone expects.
    """

    def __init__(self, config: WorldCollisionConfig, *, target: str | None = None) -> None:
        """Takes the obstacles; the worker is called by queries only.

        Args:
            config: ours, or any object with its attributes.
            target: the worker's address; None: LUMIGRAD_TARGET, else localhost:50051.
        """
        self.tensor_args = config.tensor_args
        self.max_distance = first("max_distance", config.max_distance)
        self.collision_types = {"primitive": True, "mesh": True, "voxel": True}
        self._target = target
        self._obstacles = Obstacles(max(int(config.n_envs), 1))
        if isinstance(config.world_model, Sequence):
            self.load_batch_collision_model(config.world_model)
        else:
            self.load_collision_model(config.world_model)

    @property
    def n_envs(self) -> int:
        """The number of environments."""
        return self._obstacles.environments

    def load_collision_model(self, world_model: Any, env_idx: int = 0, fix_cache_reference: bool = False) -> None:
        """Replaces the obstacles of an environment by those of a model with lists `cuboid`, `mesh` and `voxel`."""
        self._obstacles.load(world_model, env_idx)

    def load_batch_collision_model(self, world_config_list: Sequence[Any]) -> None:
        """Replaces all obstacles: a model for each environment, of which there are as many then, or more."""
        self._obstacles.resize(max(len(world_config_list), self.n_envs))
        self._obstacles.clear()
        for index, model in enumerate(world_config_list):
            self.load_collision_model(model, index)

    def create_collision_cache(
        self, mesh_cache: int | None = None, obb_cache: int | None = None, n_envs: int | None = None
    ) -> None:
        """Sets the number of environments, if it is given; any number of obstacles fits."""
        if n_envs is not None:
            self._obstacles.resize(n_envs)

    def add_mesh(self, new_mesh: Any, env_idx: int = 0) -> None:
        """Adds a mesh, or takes new geometry for the one of this name."""
        self._obstacles.add(Slot.of_mesh(new_mesh), env_idx)

    def update_obstacle_pose(
        self, name: str, w_obj_pose: Any, env_idx: int = 0, update_cpu_reference: bool = False
    ) -> None:
        """Moves an obstacle; its pose is object to world."""
        self._obstacles.change(name, env_idx, pose=tuple(pose_numbers("w_obj_pose", w_obj_pose)))

    def update_mesh_pose(
        self,
        w_obj_pose: Any = None,
        obj_w_pose: Any = None,
        name: str | None = None,
        env_obj_idx: int | None = None,
        env_idx: int = 0,
    ) -> None:
        """Moves a mesh, given by its name or its number among the meshes; by its pose or the inverse of that."""
        if (w_obj_pose is None) == (obj_w_pose is None):
            raise CuroboArgumentError.of("w_obj_pose", "expected either w_obj_pose or obj_w_pose, got both or neither")
        if name is None:
            meshes = self._obstacles.names(env_idx, "mesh")
            number = -1 if env_obj_idx is None else int(env_obj_idx)
            if not 0 <= number < len(meshes):
                raise CuroboArgumentError.of(
                    "env_obj_idx", f"expected a name, or the number of one of {len(meshes)} meshes, got {env_obj_idx}"
                )
            name = meshes[number]
        pose = w_obj_pose if obj_w_pose is None else inverse_numbers("obj_w_pose", obj_w_pose)
        self.update_obstacle_pose(name, pose, env_idx)

    def enable_obstacle(self, name: str, enable: bool = True, env_idx: int = 0) -> None:
        """Lets queries see an obstacle, or not."""
        self._obstacles.change(name, env_idx, enabled=bool(enable))

    def get_obstacle_names(self, env_idx: int = 0) -> list[str]:
        """Names in an environment."""
        return self._obstacles.names(env_idx)

    def check_obstacle_exists(self, name: str, env_idx: int = 0) -> bool:
        """Whether there is an obstacle of this name."""
        return name in self._obstacles.names(env_idx)

    def get_mesh_idx(self, name: str, env_idx: int = 0) -> int:
        """The number of a mesh among the meshes of an environment."""
        meshes = self._obstacles.names(env_idx, "mesh")
        if name not in meshes:
            raise CuroboArgumentError.of("name", f"expected one of {', '.join(meshes) or 'no meshes'}, got {name!r}")
        return meshes.index(name)

    def clear_cache(self) -> None:
        """Removes all obstacles."""
        self._obstacles.clear()

    @outside_graphs
    def get_sphere_distance(
        self,
        query_sphere: torch.Tensor,
        collision_query_buffer: CollisionQueryBuffer,
        weight: Any,
        activation_distance: Any,
        env_query_idx: torch.Tensor | None = None,
        return_loss: bool = False,
        sum_collisions: bool = True,
        compute_esdf: bool = False,
    ) -> torch.Tensor:
        """Collision costs of spheres, summed over all obstacles; see `SdfMeshWarpPy`.

        Args:
            query_sphere: (b, h, n, 4) centre and radius, metres; a negative radius switches off.
            collision_query_buffer: is written; its distance buffer is returned.
            weight: factor on costs.
            activation_distance: where costs begin, metres.
            env_query_idx: (b,) the environment of each batch row; None: 0.
            return_loss: multiply the gradient by that of the output; otherwise that is taken to be 1.
            sum_collisions: accepted; obstacles are always summed.
            compute_esdf: signed distance, positive inside, the largest over the obstacles.
        """
        settings = settings_of(weight, activation_distance, self.max_distance, compute_esdf=compute_esdf)
        return self._cost(query_sphere, collision_query_buffer, settings, env_query_idx, return_loss)

    def get_sphere_collision(
        self,
        query_sphere: torch.Tensor,
        collision_query_buffer: CollisionQueryBuffer,
        weight: Any,
        activation_distance: Any,
        env_query_idx: torch.Tensor | None = None,
        return_loss: bool = False,
        **_: Any,
    ) -> torch.Tensor:
        """The same cost as `get_sphere_distance`: more than 0 in collision."""
        arguments = query_sphere, collision_query_buffer, weight, activation_distance, env_query_idx, return_loss
        return self.get_sphere_distance(*arguments)

    @outside_graphs
    def get_swept_sphere_distance(
        self,
        query_sphere: torch.Tensor,
        collision_query_buffer: CollisionQueryBuffer,
        weight: Any,
        activation_distance: Any,
        speed_dt: Any,
        sweep_steps: int,
        enable_speed_metric: bool = False,
        env_query_idx: torch.Tensor | None = None,
        return_loss: bool = False,
        sum_collisions: bool = True,
    ) -> torch.Tensor:
        """Collision costs of spheres that move from time step to time step; see `SweptSdfMeshWarpPy`.

        Args:
            query_sphere: as for `get_sphere_distance`, like all that is not described here.
            collision_query_buffer: as there.
            weight: as there.
            activation_distance: as there.
            speed_dt: seconds between time steps.
            sweep_steps: places to look at on each half way, at the most, 0 to 255.
            enable_speed_metric: multiply costs by the speed of the sphere.
            env_query_idx: as there.
            return_loss: as there.
            sum_collisions: as there.
        """
        settings = settings_of(
            weight, activation_distance, self.max_distance,
            sweep_steps=int(first("sweep_steps", sweep_steps)), speed_dt=speed_dt if enable_speed_metric else None,
        )  # fmt: skip
        return self._cost(query_sphere, collision_query_buffer, settings, env_query_idx, return_loss)

    # As for meshes in the original.
    get_swept_sphere_collision = get_swept_sphere_distance

    @outside_graphs
    def get_esdf_in_bounding_box(
        self, cuboid: Any = None, voxel_size: float = 0.02, dtype: torch.dtype = torch.float32
    ) -> VoxelGrid:
        """Signed distances at the voxels of a box in environment 0, positive inside.

        At least -max_distance; where it holds nothing but cuboids, -2 max_distance, as in the original.
        """
        return boxes.field(self._query(), _box(cuboid), voxel_size, dtype)

    @outside_graphs
    def get_occupancy_in_bounding_box(self, cuboid: Any = None, voxel_size: float = 0.02) -> VoxelGrid:
        """How deep voxel centres are in obstacles of environment 0; 0: they are free."""
        return boxes.occupancy(self._query(), _box(cuboid), voxel_size)

    def get_voxels_in_bounding_box(self, cuboid: Any = None, voxel_size: float = 0.02) -> torch.Tensor:
        """[N, 4] centres in the world, and depths, of the voxels of a box that are in obstacles of environment 0."""
        grid = self.get_occupancy_in_bounding_box(cuboid, voxel_size)
        assert grid.feature_tensor is not None and grid.xyzr_tensor is not None
        voxels = torch.cat([grid.xyzr_tensor[:, :3], grid.feature_tensor[:, None]], dim=1)
        return voxels[grid.feature_tensor > 0]

    def _query(self) -> boxes.BoxQuery:
        client = default_client(self._target)
        device = torch.device(getattr(self.tensor_args, "device", "cpu"))
        return boxes.BoxQuery(client, self._obstacles.world(client), self.max_distance, device)

    def _cost(
        self,
        spheres: torch.Tensor,
        buffer: CollisionQueryBuffer,
        settings: DistanceSettings,
        environments: torch.Tensor | None,
        return_loss: bool,
    ) -> torch.Tensor:
        client = default_client(self._target)
        cost = SphereCost(client, self._obstacles.world(client), settings, environments, return_loss)
        result: torch.Tensor = CheckedSpheres.apply(spheres, cost, buffer.buffers_for(spheres))  # type: ignore[no-untyped-call]
        return result


class CheckedSpheres(torch.autograd.Function):
    """The autograd node of a checker's query."""

    @staticmethod
    def forward(ctx: Any, query_sphere: torch.Tensor, cost: SphereCost, buffers: Buffers) -> torch.Tensor:
        """Fills the buffers and returns that of costs."""
        return cost.forward(ctx, query_sphere, buffers)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradient of the spheres."""
        return backward(ctx, upstream), None, None


def _box(cuboid: Any) -> Any:
    return Cuboid("bounding_box", None, (1.0, 1.0, 1.0)) if cuboid is None else cuboid
