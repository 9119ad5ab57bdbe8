"""Converts scenes and updates to protobuf messages and back; fingerprints their arrays."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lumigrad.client.base.arguments import values_of
from lumigrad.client.base.arrays import Array, Float32, float32_array
from lumigrad.client.base.cautions import said
from lumigrad.client.errors import Internal, InvalidArgument
from lumigrad.client.formats.levels import GaussianLevels
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import Scene, SceneHandle
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.rotations import pose_array
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.values.target_image import TargetImage
from lumigrad.client.values.world import Cuboid, Obstacle, Shape, Sign, VoxelGrid, World
from lumigrad.client.wire.levels import levels_arrays, levels_message
from lumigrad.protos import worlds
from lumigrad.protos.hashing import content_hash, tensors_of
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.v1 import scene_pb2, tensor_pb2, world_pb2


def scene_of(
    message: scene_pb2.Scene, reader: PayloadReader, mesh: Callable[[str], SceneHandle] | None = None
) -> Scene:
    """Returns the scene in a message; `mesh` makes the handle of a world's mesh from its scene_id."""
    kind = message.WhichOneof("kind")
    if kind is None:
        raise Internal("the worker sent a scene of a kind that this client does not support; update Lumigrad")
    if kind == "world":
        assert mesh is not None
        return world_of(message.world, reader, mesh)
    arrays: dict[str, Any] = {name: reader.read(tensor, name) for name, tensor in tensors_of(getattr(message, kind))}
    with said():
        return _KINDS[kind](**arrays)


# Scene types that consist of tensors only, by their field names in the protobuf message.
_KINDS: dict[str, type[Spheres | Gaussians | Mesh | TargetImage]] = {
    "spheres": Spheres,
    "gaussians": Gaussians,
    "mesh": Mesh,
    "target": TargetImage,
}


def scene_message(scene: Scene, payload: PayloadWriter, meshes: References = ()) -> scene_pb2.Scene:
    """Returns the message of a scene; its arrays are appended to `payload`. `meshes` refer to a world's meshes."""
    if isinstance(scene, World):
        return scene_pb2.Scene(world=world_message(scene, meshes, payload))
    if isinstance(scene, GaussianLevels):
        return scene_pb2.Scene(levels=levels_message(scene, payload))
    message = scene_pb2.Scene()
    tensors = getattr(message, next(name for name, kind in _KINDS.items() if isinstance(scene, kind)))
    for name, array in scene.tensors.items():
        getattr(tensors, name).CopyFrom(payload.add(array))
    return message


def named_tensors(arrays: Mapping[str, Array], payload: PayloadWriter) -> list[tensor_pb2.NamedTensor]:
    """Returns the messages of named arrays, which are appended to `payload`."""
    return [tensor_pb2.NamedTensor(name=name, tensor=payload.add(array)) for name, array in arrays.items()]


def arrays_of(scene: Scene) -> Mapping[str, Array]:
    """Returns the arrays that the content hash of a scene covers, by their paths in its message."""
    if isinstance(scene, GaussianLevels):
        return levels_arrays(scene)
    return world_arrays(scene) if isinstance(scene, World) else scene.tensors


def scene_hash(scene: Scene, meshes: References = ()) -> str:
    """Returns the content hash of a scene."""
    message = scene_message(scene, PayloadWriter(), meshes)
    kind = message.WhichOneof("kind")
    assert kind is not None
    arrays = arrays_of(scene)
    return content_hash(getattr(message, kind), lambda _, field: arrays[field])


_SIGNS = values_of(Sign, world_pb2.SignPolicy)
# The scene_id and version of each obstacle's mesh; None: the obstacle is not a mesh.
References = Sequence[scene_pb2.SceneRef | None]
_NAMES: dict[int, Any] = {number: sign for sign, number in _SIGNS.items()}


def world_message(world: World, meshes: References, payload: PayloadWriter) -> world_pb2.World:
    """Returns the message of a world; its grids are appended to `payload`, and `meshes` refer to obstacles' meshes."""
    obstacles = [
        _obstacle_message(obstacle, mesh, payload) for obstacle, mesh in zip(world.obstacles, meshes, strict=True)
    ]
    return world_pb2.World(obstacles=obstacles, environments=world.environments)


def world_arrays(world: World) -> dict[str, Float32]:
    """Returns the distances of a world's grids, by the paths of their tensors in its message."""
    return {
        f"obstacles[{index}].grid.distances": obstacle.shape.distances
        for index, obstacle in enumerate(world.obstacles)
        if isinstance(obstacle.shape, VoxelGrid)
    }


def world_of(message: world_pb2.World, reader: PayloadReader, mesh: Callable[[str], SceneHandle]) -> World:
    """Returns the world in a message; `mesh` makes the handle of a mesh from its scene_id."""
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
    """Returns the messages that change poses and enabled flags of obstacles, given by name."""
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


# A prime, so that swapping array rows of any usual width moves their values to other columns and changes the sums.
_COLUMNS = 1021


def fingerprint(array: Array) -> int:
    """Returns a checksum of the content of an array, fifty times as fast as the content hash.

    It is not cryptographically secure.
    """
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    rows = flat.nbytes // (8 * _COLUMNS)
    whole = flat[: rows * 8 * _COLUMNS].view(np.uint64).reshape(rows, _COLUMNS)
    # The sums overflow modulo 2^64.
    sums = zlib.crc32(np.add.reduce(whole, axis=0))
    return zlib.crc32(flat[whole.nbytes :].data, sums)


def scene_fingerprints(scene: Scene) -> dict[str, int]:
    """Returns the fingerprints of all arrays of a scene by name; a world's include the arrays of its meshes."""
    if not isinstance(scene, World):
        return {name: fingerprint(array) for name, array in arrays_of(scene).items()}
    found = {path: fingerprint(array) for path, array in world_arrays(scene).items()}
    meshes = {id(each.shape): (index, each.shape) for index, each in enumerate(scene.obstacles)}
    for index, mesh in meshes.values():
        if isinstance(mesh, Mesh):
            found |= {f"obstacles[{index}].mesh.{name}": fingerprint(array) for name, array in mesh.tensors.items()}
    return found


def updated_fingerprints(before: Mapping[str, int], scene: Scene, changed: Iterable[str]) -> dict[str, int]:
    """Returns the fingerprints of a scene after an update of the `changed` tensors; others stay as in `before`."""
    if isinstance(scene, World | GaussianLevels):
        return dict(before)
    return {**before, **{name: fingerprint(scene.tensors[name]) for name in changed}}


_CHANGEABLE = {
    "spheres": ("positions", "colors", "radii", "opacities"),
    "gaussians": ("means", "quats", "scales", "covariances", "opacities", "sh", "colors"),
    "mesh": ("vertices",),
    "world": ("poses", "enabled"),
}
_PLURALS = {"mesh": "meshes", "world": "worlds"}


@dataclass(frozen=True)
class SceneChanges:
    """The changes of one update: new `tensors` by name; for a world, `poses` and `enabled` by obstacle name."""

    tensors: Mapping[str, Any]
    poses: Mapping[str, Any]
    enabled: Mapping[str, bool]
    # The last scene that they were applied to, and the result: checks take time, and warnings are given once.
    _last: list[tuple[Scene, Scene]] = field(default_factory=list, init=False, repr=False, compare=False)

    def message(self, handle: SceneHandle, payload: PayloadWriter) -> scene_pb2.UpdateRequest:
        """Returns the update request without the scene_id; tensors are appended to `payload`."""
        self._check(handle.kind)
        local = self.applied(handle)
        if handle.kind == "world":
            return scene_pb2.UpdateRequest(obstacles=update_messages(self.poses, self.enabled))
        if local is None or isinstance(local, World | GaussianLevels):
            # Only the worker can check the shapes if there is no local copy.
            arrays = {name: float32_array(name, value) for name, value in self.tensors.items()}
        else:
            arrays = {name: local.tensors[name] for name in self.tensors}
        return scene_pb2.UpdateRequest(tensors=named_tensors(arrays, payload))

    def applied(self, handle: SceneHandle) -> Scene | None:
        """Returns the client's copy of the scene with the changes applied, or None if there is no copy."""
        scene = handle.scene
        if scene is None:
            return None
        for before, after in self._last:
            if before is scene:
                return after
        changed: Scene
        if isinstance(scene, World):
            changed = scene.with_poses(self.poses).with_enabled(self.enabled)
        else:
            changed = replace(scene, **self.tensors)
        self._last[:] = [(scene, changed)]
        return changed

    def _check(self, kind: str) -> None:
        if kind == "levels":
            raise InvalidArgument.of("handle", "expected another kind of scene: levels do not change; put new ones")
        known = _CHANGEABLE.get(kind, ())
        listed = " and ".join(", ".join(known).rsplit(", ", 1))
        obstacles = [name for name, values in (("poses", self.poses), ("enabled", self.enabled)) if values]
        given = [*self.tensors, *obstacles]
        if not given:
            raise InvalidArgument.of("tensors", f"expected at least one of {listed}, got none")
        for name in given:
            if known and name not in known:
                plural = _PLURALS.get(kind, kind)
                raise InvalidArgument.of(name, f"expected one of {listed}, which {plural} have, got {name}")
