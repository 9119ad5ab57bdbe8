"""The obstacles of a collision checker, by environment and name, and the world made of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from lumigrad.client.base.arrays import to_numpy
from lumigrad.client.calls.scenes import stored
from lumigrad.client.client import Client
from lumigrad.client.compat.curobo.errors import CuroboArgumentError, curobo_refusals
from lumigrad.client.compat.curobo.geometry import Cuboid, VoxelGrid
from lumigrad.client.compat.curobo.registry import Kind, Slot, sign_of
from lumigrad.client.compat.curobo.values import pose_numbers
from lumigrad.client.distances.query import Surroundings
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.rotations import inverse_pose, pose_array
from lumigrad.client.values.world import Cuboid as ClientCuboid
from lumigrad.client.values.world import Obstacle, World

# Kinds of obstacles that a world model may contain but no checker here supports.
_FOREIGN = ("sphere", "capsule", "cylinder", "blox")
_PLURALS: dict[Kind, str] = {"mesh": "meshes", "cuboid": "cuboids", "voxel": "voxel grids"}


class Obstacles:
    """The obstacles of a checker; the world is rebuilt when something changed."""

    # The model or list of models that was loaded last, as given.
    world_model: Any = None

    def __init__(self, environments: int) -> None:
        self._slots: list[list[Slot]] = [[] for _ in range(environments)]
        self._world: Surroundings | None = None
        # Releases the stored world.
        self._keeping = ExitStack()

    @property
    def n_envs(self) -> int:
        """The number of environments."""
        return len(self._slots)

    def load_collision_model(self, world_model: Any, env_idx: int = 0, fix_cache_reference: bool = False) -> None:
        """Replaces the obstacles of an environment by those of a model with lists `cuboid`, `mesh` and `voxel`."""
        slots = [] if world_model is None else list(_slots_of(world_model))
        self._of(env_idx)[:] = slots
        self.world_model = world_model
        self._world = None

    def load_batch_collision_model(self, world_config_list: Sequence[Any]) -> None:
        """Replaces all obstacles by a model for each environment; adds environments if there are too few."""
        self.create_collision_cache(n_envs=max(len(world_config_list), self.n_envs))
        self.clear_cache()
        for index, model in enumerate(world_config_list):
            self.load_collision_model(model, index)
        self.world_model = world_config_list

    def create_collision_cache(
        self, mesh_cache: int | None = None, obb_cache: int | None = None, n_envs: int | None = None
    ) -> None:
        """Sets the number of environments, if given; those that remain keep their obstacles. Caches have no effect."""
        if n_envs is None:
            return
        if n_envs < 1:
            raise CuroboArgumentError.of("n_envs", f"expected at least 1, got {n_envs}")
        self._slots = [*self._slots[:n_envs], *([] for _ in range(n_envs - len(self._slots)))]
        self._world = None

    def add_mesh(self, new_mesh: Any, env_idx: int = 0) -> None:
        """Adds a mesh, or replaces the mesh of the same name."""
        self._add(Slot.of_mesh(new_mesh), env_idx)

    def add_obb(self, cuboid: Any, env_idx: int = 0) -> None:
        """Adds a cuboid, or replaces the cuboid of the same name."""
        self._add(Slot.of_cuboid(cuboid), env_idx)

    def add_obb_from_raw(
        self, name: str, dims: Any, env_idx: int, w_obj_pose: Any = None, obj_w_pose: Any = None
    ) -> None:
        """Adds a cuboid of these full edges, metres, at a pose or at the inverse of one."""
        self.add_obb(Cuboid(name, _pose_of(w_obj_pose, obj_w_pose), dims=to_numpy("dims", dims).reshape(-1)), env_idx)

    def _add(self, slot: Slot, environment: int) -> None:
        slots = self._of(environment)
        same = [index for index, other in enumerate(slots) if (other.name, other.kind) == (slot.name, slot.kind)]
        index = same[0] if same else len(slots)
        slots[index : index + 1] = [slot]
        self._world = None

    def update_obstacle_pose(
        self, name: str, w_obj_pose: Any, env_idx: int = 0, update_cpu_reference: bool = False
    ) -> None:
        """Moves an obstacle; its pose is object to world."""
        self._move(self._find(name, env_idx), w_obj_pose, env_idx)

    def update_mesh_pose(
        self,
        w_obj_pose: Any = None,
        obj_w_pose: Any = None,
        name: str | None = None,
        env_obj_idx: int | None = None,
        env_idx: int = 0,
    ) -> None:
        """Moves a mesh, given by its name or its number among the meshes, to a pose or to the inverse of one."""
        self._move(self._numbered("mesh", name, env_obj_idx, env_idx), _pose_of(w_obj_pose, obj_w_pose), env_idx)

    def update_obb_pose(
        self,
        w_obj_pose: Any = None,
        obj_w_pose: Any = None,
        name: str | None = None,
        env_obj_idx: int | None = None,
        env_idx: int = 0,
    ) -> None:
        """Moves a cuboid, as `update_mesh_pose` moves a mesh."""
        self._move(self._numbered("cuboid", name, env_obj_idx, env_idx), _pose_of(w_obj_pose, obj_w_pose), env_idx)

    def update_obb_dims(
        self, obj_dims: Any, name: str | None = None, env_obj_idx: int | None = None, env_idx: int = 0
    ) -> None:
        """Changes the full edges of a cuboid, metres."""
        index = self._numbered("cuboid", name, env_obj_idx, env_idx)
        with curobo_refusals():
            shape = ClientCuboid(to_numpy("obj_dims", obj_dims).reshape(-1))
        self._change(env_idx, index, shape=shape)

    def enable_mesh(
        self, enable_mesh: bool = True, name: str | None = None, env_mesh_idx: int | None = None, env_idx: int = 0
    ) -> None:
        """Enables or disables a mesh, given by its name or its number among the meshes."""
        self._change(env_idx, self._numbered("mesh", name, env_mesh_idx, env_idx), enabled=bool(enable_mesh))

    def enable_obb(
        self, enable_obb: bool = True, name: str | None = None, env_obj_idx: int | None = None, env_idx: int = 0
    ) -> None:
        """Enables or disables a cuboid, given by its name or its number among the cuboids."""
        self._change(env_idx, self._numbered("cuboid", name, env_obj_idx, env_idx), enabled=bool(enable_obb))

    def get_voxel_grid(self, name: str, env_idx: int = 0) -> VoxelGrid:
        """Returns a voxel grid, with the tensor that queries read."""
        slot = self._of(env_idx)[self._numbered("voxel", name, None, env_idx)]
        grid = slot.grid
        return VoxelGrid(
            name,
            list(slot.pose),
            dims=grid.dims,
            voxel_size=grid.voxel_size,
            feature_tensor=grid.feature_tensor,
            positive_inside=getattr(grid, "positive_inside", True),
        )

    def update_voxel_data(self, new_voxel: Any, env_idx: int = 0) -> None:
        """Replaces the voxel grid of the same name."""
        index = self._numbered("voxel", new_voxel.name, None, env_idx)
        slots = self._of(env_idx)
        slots[index] = replace(Slot.of_grid(new_voxel), enabled=slots[index].enabled)
        self._world = None

    def clear_voxelization_cache(self) -> None:
        """Does nothing: boxes are computed anew by each query."""

    def enable_obstacle(self, name: str, enable: bool = True, env_idx: int = 0) -> None:
        """Enables or disables an obstacle in queries."""
        self._change(env_idx, self._find(name, env_idx), enabled=bool(enable))

    def get_obstacle_names(self, env_idx: int = 0) -> list[str]:
        """Returns the names of the obstacles in an environment."""
        return self._names(env_idx)

    def check_obstacle_exists(self, name: str, env_idx: int = 0) -> bool:
        """Whether there is an obstacle of this name."""
        return name in self._names(env_idx)

    def get_mesh_idx(self, name: str, env_idx: int = 0) -> int:
        """Returns the number of a mesh among the meshes of an environment."""
        return self._find(name, env_idx, "mesh")

    def get_obb_idx(self, name: str, env_idx: int = 0) -> int:
        """Returns the number of a cuboid among the cuboids of an environment."""
        return self._find(name, env_idx, "cuboid")

    def clear_cache(self) -> None:
        """Removes all obstacles."""
        self._slots = [[] for _ in self._slots]
        self._world = None

    def _surroundings(self, client: Client) -> Surroundings:
        """Returns the world for queries; it is sent with each call, or stored if it has a grid, which is large."""
        self._renew()
        if self._world is None:
            self._keeping.close()
            world = self._made(client)
            grids = any(slot.kind == "voxel" for slots in self._slots for slot in slots)
            self._world = self._keeping.enter_context(stored(client, world)) if grids else world
        return self._world

    def _renew(self) -> None:
        """Reads the grids that callers have changed."""
        for slots in self._slots:
            renewed = [slot.renewed() for slot in slots]
            if any(new is not old for new, old in zip(renewed, slots, strict=True)):
                slots[:] = renewed
                self._world = None

    def _made(self, client: Client) -> World:
        obstacles = [
            Obstacle(
                slot.shape,
                slot.pose,
                f"{environment}/{index}",
                enabled=slot.enabled,
                environment=environment,
                sign=sign_of(slot.shape, client) if isinstance(slot.shape, Mesh) else "auto",
            )
            for environment, slots in enumerate(self._slots)
            for index, slot in enumerate(slots)
            if slot.shape is not None
        ]
        return World(obstacles, self.n_envs)

    def _of(self, environment: int) -> list[Slot]:
        if not 0 <= environment < len(self._slots):
            raise CuroboArgumentError.of("env_idx", f"expected 0 to {len(self._slots) - 1}, got {environment}")
        return self._slots[environment]

    def _names(self, environment: int, kind: Kind | None = None) -> list[str]:
        return [slot.name for slot in self._of(environment) if kind in (None, slot.kind)]

    def _find(self, name: str, environment: int, kind: Kind | None = None) -> int:
        """Returns the number of the obstacle of a name among those of a kind; None: among all."""
        names = self._names(environment, kind)
        if name not in names:
            listed = ", ".join(names) or f"none, there are no {'obstacles' if kind is None else _PLURALS[kind]}"
            raise CuroboArgumentError.of("name", f"expected one of {listed}, got {name!r}")
        return names.index(name)

    def _numbered(self, kind: Kind, name: str | None, number: int | None, environment: int) -> int:
        """Returns the index of an obstacle of a kind, given by its name or its number among those of the kind."""
        of_kind = [index for index, slot in enumerate(self._of(environment)) if slot.kind == kind]
        if name is not None:
            return of_kind[self._find(name, environment, kind)]
        if number is None or not 0 <= int(number) < len(of_kind):
            text = f"expected a name, or the number of one of {len(of_kind)} {_PLURALS[kind]}, got {number}"
            raise CuroboArgumentError.of("env_obj_idx", text)
        return of_kind[int(number)]

    def _move(self, index: int, pose: Any, environment: int) -> None:
        numbers = tuple(pose_numbers("w_obj_pose", pose))
        with curobo_refusals():
            pose_array("pose", numbers)
        self._change(environment, index, pose=numbers)

    def _change(self, environment: int, index: int, **values: Any) -> None:
        slots = self._of(environment)
        slots[index] = replace(slots[index], **values)
        self._world = None


def _pose_of(w_obj_pose: Any, obj_w_pose: Any) -> Any:
    """Returns the pose, given as such or as its inverse."""
    if (w_obj_pose is None) == (obj_w_pose is None):
        raise CuroboArgumentError.of("w_obj_pose", "expected either w_obj_pose or obj_w_pose, got both or neither")
    if obj_w_pose is None:
        return w_obj_pose
    return inverse_pose(pose_array("obj_w_pose", pose_numbers("obj_w_pose", obj_w_pose)))


def _slots_of(model: Any) -> Sequence[Slot]:
    for kind in _FOREIGN:
        if getattr(model, kind, None):
            raise CuroboArgumentError.of(
                f"world_model.{kind}",
                "expected cuboids, meshes and voxel grids only; make them by "
                "WorldConfig.create_collision_support_world",
            )
    makers = {"cuboid": Slot.of_cuboid, "mesh": Slot.of_mesh, "voxel": Slot.of_grid}
    return [make(obstacle) for kind, make in makers.items() for obstacle in getattr(model, kind, None) or ()]
