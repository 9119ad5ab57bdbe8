"""Worlds <-> messages of the contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lumigrad.client.base.arguments import values_of
from lumigrad.client.base.arrays import Float32
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.obstacle import Cuboid, Obstacle, Shape, Sign, VoxelGrid
from lumigrad.client.values.pose import pose_array
from lumigrad.client.values.world import World
from lumigrad.protos import worlds
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.v1 import scene_pb2, world_pb2

_SIGNS = values_of(Sign, world_pb2.SignPolicy)
# For each obstacle the name and version of its mesh; None: it is no mesh.
References = Sequence[scene_pb2.SceneRef | None]
_NAMES: dict[int, Any] = {number: sign for sign, number in _SIGNS.items()}


def world_message(world: World, meshes: References, payload: PayloadWriter) -> world_pb2.World:
    """A world whose grids are appended to `payload`.

    Args:
        world: what to send.
        meshes: for each obstacle the name and version of its mesh.
        payload: of the same stream.
    """
    obstacles = [
        _obstacle_message(obstacle, mesh, payload) for obstacle, mesh in zip(world.obstacles, meshes, strict=True)
    ]
    return world_pb2.World(obstacles=obstacles, environments=world.environments)


def world_arrays(world: World) -> dict[str, Float32]:
    """The distances of a world's grids by the paths of their tensors in its message."""
    return {
        f"obstacles[{index}].grid.distances": obstacle.shape.distances
        for index, obstacle in enumerate(world.obstacles)
        if isinstance(obstacle.shape, VoxelGrid)
    }


def world_of(message: world_pb2.World, reader: PayloadReader, mesh: Callable[[str], SceneHandle]) -> World:
    """The world in a message; `mesh` makes the handle of a mesh from its scene_id."""
    obstacles = [
        Obstacle(
            _shape(obstacle, index, reader, mesh),
            worlds.pose_of(obstacle),
            worlds.name_of(obstacle, index),
            enabled=not obstacle.disabled,
            environment=obstacle.environment,
            sign=_NAMES[worlds.sign_of(obstacle)],
        )
        for index, obstacle in enumerate(message.obstacles)
    ]
    return World(obstacles, worlds.environments_of(message))


def update_messages(poses: Mapping[str, Any], enabled: Mapping[str, bool]) -> list[world_pb2.ObstacleUpdate]:
    """Changes of obstacles by their names."""
    updates = {name: world_pb2.ObstacleUpdate(name=name) for name in (*poses, *enabled)}
    for name, pose in poses.items():
        updates[name].pose.values.extend(pose_array(f"poses[{name!r}]", pose).tolist())
    for name, on in enabled.items():
        updates[name].disabled = not on
    return list(updates.values())


def _obstacle_message(
    obstacle: Obstacle, mesh: scene_pb2.SceneRef | None, payload: PayloadWriter
) -> world_pb2.Obstacle:
    message = world_pb2.Obstacle(
        name=obstacle.name,
        pose=world_pb2.Pose(values=obstacle.pose.tolist()),
        disabled=not obstacle.enabled,
        environment=obstacle.environment,
        sign=_SIGNS[obstacle.sign],
    )
    shape = obstacle.shape
    if isinstance(shape, Cuboid):
        message.cuboid.size.extend(shape.size.tolist())
    elif isinstance(shape, VoxelGrid):
        message.grid.distances.CopyFrom(payload.add(shape.distances))
        message.grid.voxel_size = shape.voxel_size
    elif mesh is not None:
        message.mesh_id, message.mesh_version = mesh.scene_id, mesh.version
    return message


def _shape(
    obstacle: world_pb2.Obstacle, index: int, reader: PayloadReader, mesh: Callable[[str], SceneHandle]
) -> Shape:
    if obstacle.HasField("cuboid"):
        return Cuboid(obstacle.cuboid.size)
    if obstacle.HasField("grid"):
        field = f"scene.world.obstacles[{index}].grid.distances"
        return VoxelGrid(reader.read(obstacle.grid.distances, field), obstacle.grid.voxel_size)
    return mesh(obstacle.mesh_id)
