"""Converts mesh cases to the client's values."""

from __future__ import annotations

from typing import Any

from lumigrad.client import Cuboid, Mesh, Obstacle, VoxelGrid, World
from support.meshes.case import CuboidShape, MeshCase, MeshShape, Shape


def remote_world(case: MeshCase) -> World:
    """A case's obstacles; a shape that occurs several times is one value."""
    made: dict[int, Any] = {}

    def value(shape: Shape) -> Any:
        if id(shape) not in made:
            if isinstance(shape, MeshShape):
                made[id(shape)] = Mesh(shape.vertices, shape.faces)
            elif isinstance(shape, CuboidShape):
                made[id(shape)] = Cuboid(shape.size)
            else:
                made[id(shape)] = VoxelGrid(shape.distances, shape.voxel_size)
        return made[id(shape)]

    obstacles = [
        Obstacle(value(one.shape), one.pose, enabled=one.enabled, environment=one.environment, sign=one.sign)  # type: ignore[arg-type]
        for one in case.placed
    ]
    return World(obstacles, case.environments)


def remote_settings(case: MeshCase) -> dict[str, Any]:
    """A case's settings, for `Client.query`."""
    return {**vars(case.options), "environments": case.rows}
