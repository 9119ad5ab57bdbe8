"""The obstacles of a collision checker, by environment and name, and the world that they make."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from lumigrad.client.client import Client
from lumigrad.client.compat.curobo.errors import CuroboArgumentError, curobo_refusals
from lumigrad.client.compat.curobo.registry import Kind, Slot, sign_of
from lumigrad.client.distances.query import Surroundings
from lumigrad.client.errors import SceneNotFound
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.obstacle import Obstacle
from lumigrad.client.values.pose import pose_array
from lumigrad.client.values.world import World

# Kinds of obstacles that a world model may hold but no checker here knows.
_FOREIGN = ("sphere", "capsule", "cylinder", "blox")


class Obstacles:
    """What a checker knows of its surroundings; the world is made anew when something changed."""

    def __init__(self, environments: int) -> None:
        self._slots: list[list[Slot]] = [[] for _ in range(environments)]
        self._world: Surroundings | None = None
        self._stored: SceneHandle | None = None

    @property
    def environments(self) -> int:
        """Their number."""
        return len(self._slots)

    def load(self, model: Any, environment: int) -> None:
        """Replaces all obstacles of an environment by those of a world model; None: by none."""
        slots = [] if model is None else list(_slots_of(model))
        self._of(environment)[:] = slots
        self._world = None

    def resize(self, environments: int) -> None:
        """Makes it so many environments; those that remain keep their obstacles."""
        if environments < 1:
            raise CuroboArgumentError.of("n_envs", f"expected at least 1, got {environments}")
        self._slots = [*self._slots[:environments], *([] for _ in range(environments - len(self._slots)))]
        self._world = None

    def add(self, slot: Slot, environment: int) -> None:
        """Adds an obstacle, in the place of one of this name and kind if there is one."""
        slots = self._of(environment)
        same = [index for index, other in enumerate(slots) if (other.name, other.kind) == (slot.name, slot.kind)]
        index = same[0] if same else len(slots)
        slots[index : index + 1] = [slot]
        self._world = None

    def change(self, name: str, environment: int, **values: Any) -> None:
        """Changes attributes of the obstacle of a name."""
        slots = self._of(environment)
        index = self._find(name, environment)
        with curobo_refusals():
            if "pose" in values:
                pose_array("pose", values["pose"])
        slots[index] = replace(slots[index], **values)
        self._world = None

    def clear(self) -> None:
        """Removes everything."""
        self._slots = [[] for _ in self._slots]
        self._world = None

    def names(self, environment: int, kind: Kind | None = None) -> list[str]:
        """Of the obstacles of an environment, or of one kind of them."""
        return [slot.name for slot in self._of(environment) if kind in (None, slot.kind)]

    def world(self, client: Client) -> Surroundings:
        """What to ask about: travels with each call, or where it holds a grid is stored, since that is long."""
        self._renew()
        if self._world is None:
            if self._stored is not None:
                # Should another checker have the same world, its client puts it again.
                with suppress(SceneNotFound):
                    client.delete(self._stored)
            world = self._made(client)
            grids = any(slot.kind == "voxel" for slots in self._slots for slot in slots)
            self._stored = client.put(world) if grids else None
            self._world = world if self._stored is None else self._stored
        return self._world

    def _renew(self) -> None:
        """Takes what callers have changed in their grids."""
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
        ]
        return World(obstacles, self.environments)

    def _of(self, environment: int) -> list[Slot]:
        if not 0 <= environment < len(self._slots):
            raise CuroboArgumentError.of("env_idx", f"expected 0 to {len(self._slots) - 1}, got {environment}")
        return self._slots[environment]

    def _find(self, name: str, environment: int) -> int:
        names = self.names(environment)
        if name not in names:
            listed = ", ".join(names) or "none, there are no obstacles"
            raise CuroboArgumentError.of("name", f"expected one of {listed}, got {name!r}")
        return names.index(name)


def _slots_of(model: Any) -> Sequence[Slot]:
    for kind in _FOREIGN:
        if getattr(model, kind, None):
            raise CuroboArgumentError.of(
                f"world_model.{kind}", "expected cuboids, meshes and voxel grids only; make meshes of what is round"
            )
    makers = {"cuboid": Slot.of_cuboid, "mesh": Slot.of_mesh, "voxel": Slot.of_grid}
    return [make(obstacle) for kind, make in makers.items() for obstacle in getattr(model, kind, None) or ()]
