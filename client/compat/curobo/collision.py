"""`WorldMeshCollision`: cuRobo's collision checker of meshes, cuboids and voxel grids, on a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from lumigrad.client.compat.curobo.buffers import CollisionBuffer, CollisionQueryBuffer
from lumigrad.client.compat.curobo.errors import CuroboArgumentError, curobo_refusals
from lumigrad.client.compat.curobo.geometry import Cuboid, VoxelGrid
from lumigrad.client.compat.curobo.obstacles import Obstacles
from lumigrad.client.compat.curobo.sphere_cost import SphereCost, SphereFunction, first, settings_of
from lumigrad.client.compat.curobo.values import CollisionCheckerType, TensorDeviceType, pose_numbers
from lumigrad.client.compat.curobo.world_config import WorldConfig
from lumigrad.client.default import default_client
from lumigrad.client.settings.distances import DistanceSettings
from lumigrad.client.torch.remote import outside_graphs


@dataclass
class WorldCollisionConfig:
    """The configuration of a new checker.

    Attributes:
        tensor_args: device and type of the tensors that it returns.
        world_model: the obstacles of environment 0, or a list with a model for each environment; None: no obstacles.
        cache: accepted, without effect; any number of obstacles fits.
        n_envs: the number of environments.
        checker_type: accepted, without effect.
        max_distance: search radius of queries, metres.
        max_esdf_distance: accepted, without effect.
    """

    tensor_args: Any = field(default_factory=TensorDeviceType)
    world_model: Any = None
    cache: Mapping[str, Any] | None = None
    n_envs: int = 1
    checker_type: Any = CollisionCheckerType.MESH
    max_distance: Any = 0.1
    max_esdf_distance: Any = 100.0

    @staticmethod
    def load_from_dict(
        world_coll_checker_dict: Mapping[str, Any], world_model_dict: Any = None, tensor_args: Any = None
    ) -> WorldCollisionConfig:
        """Creates the configuration from a dictionary of its attributes.

        Args:
            world_coll_checker_dict: attributes by name; unknown ones have no effect.
            world_model_dict: a WorldConfig, the content of a world file, or a list of these.
            tensor_args: device and type of tensors.
        """
        models = world_model_dict if isinstance(world_model_dict, list) else [world_model_dict]
        made = [WorldConfig.from_dict(model) if isinstance(model, Mapping) else model for model in models]
        known = {field.name for field in fields(WorldCollisionConfig)} - {"tensor_args", "world_model"}
        given = {name: value for name, value in world_coll_checker_dict.items() if name in known}
        if isinstance(given.get("checker_type"), str):
            given["checker_type"] = CollisionCheckerType(given["checker_type"])
        model = made if isinstance(world_model_dict, list) else made[0]
        return WorldCollisionConfig(tensor_args or TensorDeviceType(), model, **given)


class WorldMeshCollision(Obstacles):
    """Obstacles by name and environment, and the costs of spheres near them.

    Meshes are stored by their content, so new geometry under a name that was used before replaces the old one.
    """

    def __init__(self, config: WorldCollisionConfig, *, target: str | None = None) -> None:
        """Stores the obstacles; only queries call the worker.

        Args:
            config: a WorldCollisionConfig, or any object with its attributes.
            target: the worker's address; None: LUMIGRAD_TARGET, else localhost:50051.
        """
        super().__init__(max(int(config.n_envs), 1))
        self.tensor_args = config.tensor_args
        self.max_distance = first("max_distance", config.max_distance)
        self.collision_types = {"primitive": True, "mesh": True, "voxel": True}
        self._target = target
        if isinstance(config.world_model, Sequence):
            self.load_batch_collision_model(config.world_model)
        else:
            self.load_collision_model(config.world_model)

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
        """Returns the collision costs of spheres, summed over all obstacles; see `SdfMeshWarpPy`.

        Args:
            query_sphere: (b, h, n, 4) centre and radius, metres; a negative radius disables the sphere.
            collision_query_buffer: the buffers to write; the distance buffer is returned.
            weight: factor on costs.
            activation_distance: the distance at which costs begin, metres.
            env_query_idx: (b,) the environment of each batch row; None: 0.
            return_loss: multiply the gradient by that of the output; otherwise that is taken to be 1.
            sum_collisions: must be True; obstacles are always summed.
            compute_esdf: return the signed distance, positive inside, the largest over the obstacles.
        """
        _check_sum(sum_collisions)
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
        **others: Any,
    ) -> torch.Tensor:
        """Returns the same cost as `get_sphere_distance`: more than 0 in collision."""
        _check_sum(others.get("sum_collisions", True))
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
        """Returns the collision costs of spheres that move from time step to time step; see `SweptSdfMeshWarpPy`.

        The other arguments are those of `get_sphere_distance`. `speed_dt` is the time between time steps, seconds, and
        `sweep_steps` the most samples to take on each half of the way, 0 to 255. With `enable_speed_metric` costs are
        multiplied by the speed of the sphere.
        """
        _check_sum(sum_collisions)
        settings = settings_of(
            weight, activation_distance, self.max_distance,
            sweep_steps=sweep_steps, speed_dt=speed_dt if enable_speed_metric else None,
        )  # fmt: skip
        return self._cost(query_sphere, collision_query_buffer, settings, env_query_idx, return_loss)

    # In the original, both are the same function for meshes.
    get_swept_sphere_collision = get_swept_sphere_distance

    @outside_graphs
    def get_esdf_in_bounding_box(
        self, cuboid: Any = None, voxel_size: float = 0.02, dtype: torch.dtype = torch.float32
    ) -> VoxelGrid:
        """Computes signed distances at the voxels of a box in environment 0, positive inside.

        They are at least -max_distance, or -2 max_distance if the environment has only cuboids, as in the original.
        """
        box = _box(cuboid)
        pose = pose_numbers("cuboid.pose", box.pose)
        client = default_client(self._target)
        with curobo_refusals():
            found = client.field(
                self._surroundings(client),
                pose,
                size=box.dims,
                voxel_size=voxel_size,
                max_distance=self.max_distance,
                semantics="curobo_field",
            )
        values = torch.from_numpy(-found.distances).reshape(-1).to(self._device, dtype)
        return self._grid(box, voxel_size, values)

    @outside_graphs
    def get_occupancy_in_bounding_box(self, cuboid: Any = None, voxel_size: float = 0.02) -> VoxelGrid:
        """Computes the depths of a box's voxel centres in obstacles of environment 0; 0 where a centre is free."""
        grid = self._grid(_box(cuboid), voxel_size)
        assert grid.xyzr_tensor is not None
        points = grid.xyzr_tensor.cpu().clone()
        points[:, 3] = 0.0
        client = default_client(self._target)
        with curobo_refusals():
            found = client.query(
                self._surroundings(client),
                points,
                outputs=("cost",),
                semantics="curobo",
                max_distance=self.max_distance,
            )
        grid.feature_tensor = torch.from_numpy(found.cost).to(self._device)
        return grid

    def get_voxels_in_bounding_box(self, cuboid: Any = None, voxel_size: float = 0.02) -> torch.Tensor:
        """Returns [N, 4], world centres and depths of those voxels of a box that are in obstacles of environment 0."""
        grid = self.get_occupancy_in_bounding_box(cuboid, voxel_size)
        assert grid.feature_tensor is not None and grid.xyzr_tensor is not None
        voxels = torch.cat([grid.xyzr_tensor[:, :3], grid.feature_tensor[:, None]], dim=1)
        return voxels[grid.feature_tensor > 0]

    @property
    def _device(self) -> torch.device:
        return torch.device(getattr(self.tensor_args, "device", "cpu"))

    def _grid(self, box: Any, voxel_size: float, values: torch.Tensor | None = None) -> VoxelGrid:
        """Returns the grid of a box, with its voxels' centres and half edges."""
        name, size = getattr(box, "name", "grid"), float(voxel_size)
        grid = VoxelGrid(name, box.pose, dims=box.dims, voxel_size=size, feature_tensor=values)
        grid.xyzr_tensor = grid.create_xyzr_tensor(True, TensorDeviceType(self._device))
        return grid

    def _cost(
        self,
        spheres: torch.Tensor,
        buffer: CollisionQueryBuffer,
        settings: DistanceSettings,
        environments: torch.Tensor | None,
        return_loss: bool,
    ) -> torch.Tensor:
        client = default_client(self._target)
        cost = SphereCost(client, self._surroundings(client), settings, environments, return_loss)
        result: torch.Tensor = CheckedSpheres.apply(spheres, cost, buffer.buffers_for(spheres))  # type: ignore[no-untyped-call]
        return result


class CheckedSpheres(SphereFunction):
    """The autograd node of a checker's query."""

    @staticmethod
    def forward(ctx: Any, query_sphere: torch.Tensor, cost: SphereCost, buffers: CollisionBuffer) -> torch.Tensor:
        """Fills the buffers and returns the costs."""
        return cost.forward(ctx, query_sphere, buffers)


def _check_sum(sum_collisions: Any) -> None:
    """Raises CuroboArgumentError if the largest cost of all obstacles is wanted, because costs are summed here."""
    if not sum_collisions:
        raise CuroboArgumentError.of(
            "sum_collisions",
            f"expected True, got {sum_collisions!r}; costs of obstacles are summed here, as those of meshes are in "
            'cuRobo; for the largest call lumigrad.client.torch.mesh_distance(…, reduction="max")',
        )


def _box(cuboid: Any) -> Any:
    return Cuboid("bounding_box", dims=(1.0, 1.0, 1.0)) if cuboid is None else cuboid


# cuRobo's checkers of single kinds of obstacles; this one supports all kinds.
WorldPrimitiveCollision = WorldVoxelCollision = WorldMeshCollision


def create_collision_checker(config: WorldCollisionConfig) -> WorldMeshCollision:
    """Creates the checker of a configuration."""
    return WorldMeshCollision(config)
