"""`WorldConfig`: the obstacles of a world by kind, and its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from lumigrad.client.compat.curobo.errors import CuroboArgumentError
from lumigrad.client.compat.curobo.geometry import Capsule, Cuboid, Cylinder, Mesh, Obstacle, Sphere, VoxelGrid
from lumigrad.client.compat.curobo.values import pose_numbers
from lumigrad.client.values.rotations import pose_array, rotated

_KINDS: Mapping[str, type[Obstacle]] = {
    "sphere": Sphere,
    "cuboid": Cuboid,
    "capsule": Capsule,
    "cylinder": Cylinder,
    "mesh": Mesh,
    "voxel": VoxelGrid,
}


@dataclass
class WorldConfig:
    """Obstacles by kind; a checker that loads it refuses all but cuboids, meshes and voxel grids."""

    sphere: list[Any] = field(default_factory=list)
    cuboid: list[Any] = field(default_factory=list)
    capsule: list[Any] = field(default_factory=list)
    cylinder: list[Any] = field(default_factory=list)
    mesh: list[Any] = field(default_factory=list)
    blox: list[Any] = field(default_factory=list)
    voxel: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        for kind in fields(self):
            setattr(self, kind.name, list(getattr(self, kind.name) or ()))

    @staticmethod
    def from_dict(data: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> WorldConfig:
        """Creates a world from the content of a world file of cuRobo: for each kind, attributes by name."""
        unknown = sorted(set(data) - set(_KINDS))
        if unknown:
            raise CuroboArgumentError.of("data", f"expected some of {', '.join(_KINDS)}, got {', '.join(unknown)}")
        return WorldConfig(
            **{
                kind: [
                    _KINDS[kind](name=name, **_known(_KINDS[kind], name, values)) for name, values in entries.items()
                ]
                for kind, entries in data.items()
            }
        )

    @property
    def objects(self) -> list[Any]:
        """All obstacles."""
        return list(self._all())

    @staticmethod
    def create_mesh_world(current_world: WorldConfig, process: bool = False) -> WorldConfig:
        """Returns a world of meshes in place of all obstacles that have a surface."""
        return WorldConfig(mesh=[each.get_mesh() for each in current_world._all() if not isinstance(each, VoxelGrid)])

    @staticmethod
    def create_merged_mesh_world(current_world: WorldConfig, process: bool = True) -> WorldConfig:
        """Returns a world of one mesh, in the world's frame."""
        vertices, faces, count = [], [], 0
        for mesh in WorldConfig.create_mesh_world(current_world).mesh:
            pose = pose_array("pose", pose_numbers("pose", mesh.pose))
            points, triangles = mesh.arrays()
            vertices.append(rotated(pose[3:] / np.linalg.norm(pose[3:]), points) + pose[:3])
            faces.append(triangles + count)
            count += len(points)
        if not vertices:
            return WorldConfig()
        return WorldConfig(mesh=[Mesh("merged_mesh", vertices=np.concatenate(vertices), faces=np.concatenate(faces))])

    @staticmethod
    def create_collision_support_world(current_world: WorldConfig, process: bool = True) -> WorldConfig:
        """Returns a world that checkers load: cuboids and voxel grids as they are, and meshes in place of others."""
        kept = {"cuboid": list(current_world.cuboid), "voxel": list(current_world.voxel)}
        others = [each for name in ("sphere", "capsule", "cylinder", "mesh") for each in getattr(current_world, name)]
        return WorldConfig(**kept, mesh=[each.get_mesh() for each in others])

    @staticmethod
    def create_obb_world(current_world: WorldConfig) -> WorldConfig:
        """Returns a world of boxes along the axes of the obstacles' frames; voxel grids are left out."""
        return WorldConfig(
            cuboid=[each.get_cuboid() for each in current_world._all() if not isinstance(each, VoxelGrid)]
        )

    def get_mesh_world(self, merge_meshes: bool = False, process: bool = False) -> WorldConfig:
        """Returns `create_mesh_world`, or `create_merged_mesh_world`, of this world."""
        return WorldConfig.create_merged_mesh_world(self) if merge_meshes else WorldConfig.create_mesh_world(self)

    def get_obb_world(self) -> WorldConfig:
        """Returns `create_obb_world` of this world."""
        return WorldConfig.create_obb_world(self)

    def get_collision_check_world(self, mesh_process: bool = False) -> WorldConfig:
        """Returns `create_collision_support_world` of this world."""
        return WorldConfig.create_collision_support_world(self, mesh_process)

    def get_cache_dict(self) -> dict[str, int]:
        """Returns the numbers of cuboids and meshes."""
        return {"obb": len(self.cuboid), "mesh": len(self.mesh)}

    def add_obstacle(self, obstacle: Any) -> None:
        """Adds an obstacle to those of its kind."""
        for name, kind in _KINDS.items():
            if isinstance(obstacle, kind):
                getattr(self, name).append(obstacle)
                return
        kinds = ", ".join(kind.__name__ for kind in _KINDS.values())
        raise CuroboArgumentError.of("obstacle", f"expected {kinds}, got {type(obstacle).__name__}")

    def get_obstacle(self, name: str) -> Any:
        """Returns the obstacle of this name; None if there is none."""
        return next((each for each in self._all() if each.name == name), None)

    def remove_obstacle(self, name: str) -> None:
        """Removes the obstacles of this name."""
        for kind in _KINDS:
            setattr(self, kind, [each for each in getattr(self, kind) if each.name != name])

    def clone(self) -> WorldConfig:
        """Returns a copy, obstacles included."""
        copies = {kind.name: getattr(self, kind.name) for kind in fields(self)}
        return WorldConfig(
            **{
                name: [each.clone() if isinstance(each, VoxelGrid) else deepcopy(each) for each in those]
                for name, those in copies.items()
            }
        )

    def _all(self) -> Iterator[Any]:
        for kind in _KINDS:
            yield from getattr(self, kind)


def _known(kind: type, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    names = set(kind.__dataclass_fields__) - {"name"}  # type: ignore[attr-defined]
    unknown = sorted(set(values) - names)
    if unknown:
        raise CuroboArgumentError.of(f"data[{name!r}]", f"expected some of {', '.join(sorted(names))}, got {unknown}")
    return dict(values)
