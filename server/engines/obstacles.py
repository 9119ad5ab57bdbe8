"""Checks the obstacles of a world message and converts them for the kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from lumigrad.kernels import meshes
from lumigrad.protos.dtypes import Array
from lumigrad.protos.tensors import PayloadReader
from lumigrad.protos.worlds import name_of, numbers_of, pose_of, poses_of
from lumigrad.server.core.errors import InvalidArgumentError
from lumigrad.server.core.limits import Limits, arguments_of, known, names_of, renamed, require
from lumigrad.server.device.transfer import Transfer
from lumigrad.server.engines.content import check_type, uploader
from lumigrad.v1 import tensor_pb2, world_pb2

# A world with the most obstacles would not fit into one message with longer names.
_NAME_BYTES = 100
_SIGNS = names_of(world_pb2.SignPolicy)
NUMBER_OF_SIGN = {name: number for number, name in _SIGNS.items()}
_SHAPES = "mesh_id, cuboid or grid"
# Replaces a grid until its values arrive.
_LATER = meshes.Cuboid((1.0, 1.0, 1.0))
FindMesh = Callable[[str, int, str], meshes.Mesh]


@dataclass(frozen=True)
class Drafts:
    """The obstacles of a world whose header was checked, in lists of equal length.

    Attributes:
        mesh_ids: The scene ids of meshes; empty for other shapes.
        instances: The kernels' instances, without the values of grids.
        grids: The grid messages, whose values are still missing, by index.
    """

    names: Sequence[str]
    mesh_ids: Sequence[str]
    instances: Sequence[meshes.Instance]
    grids: Mapping[int, world_pb2.VoxelGrid]


def drafts_of(world: world_pb2.World, environments: int, limits: Limits, find: FindMesh, field: str) -> Drafts:
    """Check the obstacles, each property for all at once, since there may be many.

    `find` returns the mesh of a scene_id and version, or raises an error that names the given field.
    """
    obstacles, where = list(world.obstacles), f"{field}.obstacles"
    names = _checked_names(obstacles, where)
    belongs = [obstacle.environment for obstacle in obstacles]
    for index, environment in enumerate(belongs):
        if environment >= environments:
            limit = f"less than {environments}, the number of environments"
            raise InvalidArgumentError(f"{where}[{index}].environment", limit, environment)
    shapes, grids = _shapes(obstacles, limits, find, where)
    with renamed(lambda argument: argument.replace("instances", where, 1)):
        instances = meshes.instances_of(
            shapes,
            _checked_poses(obstacles, where),
            [not obstacle.disabled for obstacle in obstacles],
            belongs,
            _signs(obstacles, where),
        )
    return Drafts(names, [obstacle.mesh_id for obstacle in obstacles], instances, grids)


Obstacles = Sequence[world_pb2.Obstacle]


def _checked_names(obstacles: Obstacles, field: str) -> list[str]:
    names = [name_of(obstacle, index) for index, obstacle in enumerate(obstacles)]
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            raise InvalidArgumentError(f"{field}[{index}].name", "a name that occurs once in the world", name)
        if len(name.encode()) > _NAME_BYTES:
            raise InvalidArgumentError(f"{field}[{index}].name", f"at most {_NAME_BYTES} bytes", name)
        seen.add(name)
    return names


def _signs(obstacles: Obstacles, field: str) -> list[str]:
    signs = [_SIGNS.get(obstacle.sign, "") for obstacle in obstacles]
    if "" in signs:
        index = signs.index("")
        known(_SIGNS, obstacles[index].sign, f"{field}[{index}].sign")
    return signs


def _checked_poses(obstacles: Obstacles, field: str) -> Array:
    poses = poses_of(obstacles)
    if poses is None:
        for index, obstacle in enumerate(obstacles):
            with arguments_of(f"{field}[{index}]"):
                meshes.Instance(_LATER, pose_of(obstacle))
    assert poses is not None
    return poses


def _shapes(
    obstacles: Obstacles, limits: Limits, find: FindMesh, field: str
) -> tuple[list[meshes.Shape], dict[int, world_pb2.VoxelGrid]]:
    """Return the shapes, and the grids by index. A placeholder stands for a grid until its values arrive."""
    kinds = [obstacle.WhichOneof("shape") for obstacle in obstacles]
    shapes: list[meshes.Shape] = [_LATER] * len(obstacles)
    grids: dict[int, world_pb2.VoxelGrid] = {}
    boxes = [index for index, kind in enumerate(kinds) if kind == "cuboid"]
    for index, cuboid in zip(boxes, _cuboids([obstacles[index].cuboid for index in boxes], boxes, field), strict=True):
        shapes[index] = cuboid
    for index, kind in enumerate(kinds):
        if kind == "mesh_id":
            message, where = obstacles[index], f"{field}[{index}].mesh_id"
            require(bool(message.mesh_id), where, "the scene_id of a mesh", "none")
            shapes[index] = find(message.mesh_id, message.mesh_version, where)
        elif kind == "grid":
            grids[index] = obstacles[index].grid
            _check_grid(grids[index], limits, f"{field}[{index}].grid")
        elif kind is None:
            raise InvalidArgumentError(f"{field}[{index}]", _SHAPES, "none")
    return shapes, grids


def _cuboids(messages: Sequence[world_pb2.Cuboid], indices: Sequence[int], field: str) -> Sequence[meshes.Cuboid]:
    sizes = numbers_of(messages, 3)
    if sizes is not None and meshes.are_sizes(sizes).all():
        return meshes.cuboids_of(sizes)
    # The loop finds the size that is invalid.
    cuboids = []
    for index, message in zip(indices, messages, strict=True):
        with arguments_of(f"{field}[{index}].cuboid"):
            cuboids.append(meshes.Cuboid(tuple(message.size)))  # type: ignore[arg-type]
    return cuboids


def _check_grid(message: world_pb2.VoxelGrid, limits: Limits, field: str) -> None:
    where = f"{field}.distances"
    require(message.HasField("distances"), where, "a tensor", "none")
    check_type(message.distances, where)
    shape = list(message.distances.shape)
    is_fit = len(shape) == 3 and min(shape) >= 2
    require(is_fit, f"{where}.shape", "[nx, ny, nz] with at least 2 voxels along each axis", shape)
    require(prod(shape) <= limits.voxels, where, f"at most {limits.voxels} voxels", prod(shape))


def grid_name(index: int) -> str:
    """Return the name of the grid tensor of obstacle `index`."""
    return f"obstacles[{index}].grid.distances"


def grids_uploader(
    drafts: Drafts, reader: PayloadReader, transfer: Transfer, field: str
) -> Callable[[], Mapping[int, meshes.Instance]]:
    """Check the grids' positions in the payload; returns a function that uploads them and completes the instances."""
    grids = drafts.grids
    tensors: dict[str, tensor_pb2.Tensor] = {grid_name(index): grid.distances for index, grid in grids.items()}
    upload = uploader(tensors, reader, transfer, field)

    def instances() -> Mapping[int, meshes.Instance]:
        uploaded = upload()
        completed = {}
        for index, grid in grids.items():
            with arguments_of(f"{field}.obstacles[{index}].grid"):
                shape = meshes.Grid(uploaded[grid_name(index)], grid.voxel_size)
            completed[index] = replace(drafts.instances[index], shape=shape)
        return completed

    return instances
