"""Checks the obstacles of a world message and converts them for the kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from lumigrad.kernels import meshes
from lumigrad.protos.tensors import PayloadReader
from lumigrad.protos.worlds import name_of, pose_of
from lumigrad.server.core.limits import Limits, arguments_of, known, names_of, require
from lumigrad.server.device.transfer import Transfer
from lumigrad.server.engines.content import check_type, uploader
from lumigrad.v1 import tensor_pb2, world_pb2

# With longer names, a world with the most obstacles would not fit into one message.
_NAME_BYTES = 100
_SIGNS = names_of(world_pb2.SignPolicy)
NUMBER_OF_SIGN = {name: number for number, name in _SIGNS.items()}
_SHAPES = "mesh_id, cuboid or grid"
# Replaces a grid until its values arrive.
_LATER = meshes.Cuboid((1.0, 1.0, 1.0))
FindMesh = Callable[[str, int, str], meshes.Mesh]


@dataclass(frozen=True)
class Draft:
    """An obstacle whose header was checked.

    Attributes:
        mesh_id: The scene id of its mesh; empty: it is not a mesh.
        instance: The kernels' instance, without the values of a grid.
        grid: The grid message whose values are still missing, if it is a grid.
    """

    name: str
    mesh_id: str
    instance: meshes.Instance
    grid: world_pb2.VoxelGrid | None


def drafts_of(world: world_pb2.World, environments: int, limits: Limits, find: FindMesh, field: str) -> list[Draft]:
    """Check the obstacles.

    `find` returns the mesh of a scene_id and version, or raises an error that names the given field.
    """
    drafts: list[Draft] = []
    names: set[str] = set()
    for index, message in enumerate(world.obstacles):
        where = f"{field}.obstacles[{index}]"
        name = name_of(message, index)
        require(name not in names, f"{where}.name", "a name that occurs once in the world", name)
        require(len(name.encode()) <= _NAME_BYTES, f"{where}.name", f"at most {_NAME_BYTES} bytes", name)
        names.add(name)
        limit = f"less than {environments}, the number of environments"
        require(message.environment < environments, f"{where}.environment", limit, message.environment)
        drafts.append(_draft(message, name, limits, find, where))
    return drafts


def _draft(message: world_pb2.Obstacle, name: str, limits: Limits, find: FindMesh, field: str) -> Draft:
    sign = known(_SIGNS, message.sign, f"{field}.sign")
    shape: meshes.Shape = _LATER
    grid = None
    match message.WhichOneof("shape"):
        case "mesh_id":
            require(bool(message.mesh_id), f"{field}.mesh_id", "the scene_id of a mesh", "none")
            shape = find(message.mesh_id, message.mesh_version, f"{field}.mesh_id")
        case "cuboid":
            with arguments_of(f"{field}.cuboid"):
                shape = meshes.Cuboid(message.cuboid.size)  # type: ignore[arg-type]
        case "grid":
            grid = message.grid
            _check_grid(grid, limits, f"{field}.grid")
        case _:
            require(False, field, _SHAPES, "none")
    with arguments_of(field):
        instance = meshes.Instance(
            shape,
            pose=pose_of(message),
            enabled=not message.disabled,
            environment=message.environment,
            sign=sign,
        )
    return Draft(name, message.mesh_id, instance, grid)


def _check_grid(message: world_pb2.VoxelGrid, limits: Limits, field: str) -> None:
    where = f"{field}.distances"
    require(message.HasField("distances"), where, "a tensor", "none")
    check_type(message.distances, where)
    shape = list(message.distances.shape)
    is_fit = len(shape) == 3 and min(shape) >= 2
    require(is_fit, f"{where}.shape", "[nx, ny, nz] with at least 2 voxels along each axis", shape)
    require(prod(shape) <= limits.voxels, where, f"at most {limits.voxels} voxels", prod(shape))


def grid_name(index: int) -> str:
    """The name of the grid tensor of obstacle `index`."""
    return f"obstacles[{index}].grid.distances"


def grids_uploader(
    drafts: Sequence[Draft], reader: PayloadReader, transfer: Transfer, field: str
) -> Callable[[], Mapping[int, meshes.Instance]]:
    """Check the grids' positions in the payload; returns a function that uploads them and completes the instances."""
    grids = {index: draft.grid for index, draft in enumerate(drafts) if draft.grid is not None}
    tensors: dict[str, tensor_pb2.Tensor] = {grid_name(index): grid.distances for index, grid in grids.items()}
    upload = uploader(tensors, reader, transfer, field)

    def instances() -> Mapping[int, meshes.Instance]:
        uploaded = upload()
        completed = {}
        for index, grid in grids.items():
            with arguments_of(f"{field}.obstacles[{index}].grid"):
                shape = meshes.Grid(uploaded[grid_name(index)], grid.voxel_size)
            completed[index] = replace(drafts[index].instance, shape=shape)
        return completed

    return instances
