"""Storing and updating worlds: meshes, cuboids and voxel grids with poses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from lumigrad.kernels import meshes
from lumigrad.protos.tensors import PayloadReader
from lumigrad.protos.worlds import environments_of, numbers_of
from lumigrad.server.core.errors import InvalidArgumentError
from lumigrad.server.core.limits import arguments_of, require
from lumigrad.server.core.record import StageTimes
from lumigrad.server.engines.content import Content, Outline, Tensors
from lumigrad.server.engines.distances import ENGINE
from lumigrad.server.engines.obstacles import NUMBER_OF_SIGN, FindMesh, drafts_of, grid_name, grids_uploader
from lumigrad.server.scenes.building import Owner
from lumigrad.server.scenes.clouds import Arrival, Make, Prepare
from lumigrad.server.scenes.mesh import MeshContent, search_nothing
from lumigrad.server.storage.scenes import SceneStore
from lumigrad.server.storage.tenants import Runtime
from lumigrad.v1 import scene_pb2, tensor_pb2, world_pb2

_ANYTHING = meshes.Cuboid((1.0, 1.0, 1.0))


def changes_of(
    request: scene_pb2.UpdateRequest, numbers: Mapping[str, int]
) -> tuple[dict[int, Sequence[float]], dict[int, bool]]:
    """Return the poses (x y z in metres, qw qx qy qz, object to world) and flags of an update, by obstacle index.

    `numbers` has the indices of obstacles by name.
    """
    require(not request.tensors, "tensors", "none: a world's obstacles are changed by name", len(request.tensors))
    require(len(request.obstacles) > 0, "obstacles", "at least one obstacle", "none")
    limit = "0, since a change of obstacles has none"
    require(not request.payload_bytes, "payload_bytes", limit, request.payload_bytes)
    indices: list[int] = []
    seen: set[str] = set()
    for index, message in enumerate(request.obstacles):
        name = message.name
        if name not in numbers:
            raise InvalidArgumentError(f"obstacles[{index}].name", "the name of an obstacle of this world", name)
        if name in seen:
            raise InvalidArgumentError(f"obstacles[{index}].name", "each name once", name)
        seen.add(name)
        indices.append(numbers[name])
    changes = list(zip(indices, request.obstacles, strict=True))
    enabled = {number: not message.disabled for number, message in changes if message.HasField("disabled")}
    return _poses(changes), enabled


def _poses(changes: Sequence[tuple[int, world_pb2.ObstacleUpdate]]) -> dict[int, Sequence[float]]:
    """Return the poses of an update. They are checked together, or one by one if any may be invalid."""
    posed = {number: message.pose for number, message in changes if message.HasField("pose")}
    rows = numbers_of(list(posed.values()), len(meshes.IDENTITY))
    if rows is not None and meshes.are_poses(rows).all():
        return dict(zip(posed, map(tuple, rows.tolist()), strict=True))
    poses: dict[int, Sequence[float]] = {}
    for index, (number, message) in enumerate(changes):
        if message.HasField("pose"):
            with arguments_of(f"obstacles[{index}]"):
                poses[number] = meshes.Instance(_ANYTHING, pose=tuple(message.pose.values)).pose
    return poses


KIND = "world"
# The approximate memory of an obstacle's list entries.
_OBSTACLE_BYTES = 1024


@dataclass(frozen=True)
class Shown:
    """The obstacles of a world without poses, the same for all its versions.

    Attributes:
        names: The names by which updates refer to obstacles.
        mesh_ids: For each obstacle, the scene_id of its mesh; empty for other shapes.
        scenes: The store of the meshes.
    """

    names: Sequence[str]
    mesh_ids: Sequence[str]
    scenes: SceneStore

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """The indices of obstacles by name."""
        return {name: index for index, name in enumerate(self.names)}

    @cached_property
    def needs(self) -> frozenset[str]:
        """The ids of all meshes."""
        return frozenset(filter(None, self.mesh_ids))


class _Made(NamedTuple):
    """The kernels' world, and the shapes of its meshes by scene_id.

    Replaced as a whole: other threads, which read it meanwhile, must not take an old world for one of the new meshes.
    """

    world: meshes.World
    shapes: Mapping[str, meshes.Shape]

    @staticmethod
    def of(shown: Shown, world: meshes.World) -> _Made:
        """Find the meshes of a world."""
        shapes = (instance.shape for instance in world.instances)
        return _Made(world, {name: shape for name, shape in zip(shown.mesh_ids, shapes, strict=True) if name})


class WorldContent:
    """A world on the device."""

    kind = KIND

    def __init__(self, shown: Shown, world: meshes.World) -> None:
        self.shown = shown
        self._made = _Made.of(shown, world)

    @property
    def outline(self) -> Outline:
        """The facts that requests are checked against."""
        return Outline(obstacles=self.count, environments=self._made.world.environments)

    @property
    def count(self) -> int:
        """The number of obstacles."""
        return len(self.shown.names)

    @property
    def needs(self) -> frozenset[str]:
        """The names of its meshes."""
        return self.shown.needs

    @property
    def tensors(self) -> Tensors:
        """The tensors of its grids."""
        shapes = ((index, instance.shape) for index, instance in enumerate(self._made.world.instances))
        return {grid_name(index): shape.distances for index, shape in shapes if isinstance(shape, meshes.Grid)}

    @property
    def bytes(self) -> int:
        """The size of its grids and its lists."""
        return _OBSTACLE_BYTES * self.count + sum(tensor.nbytes for tensor in self.tensors.values())

    def settled(self) -> meshes.World | None:
        """Return the same as `world`, or None if that would first have to make it; callable on any thread."""
        made = self._made
        return None if self._moved(made) else made.world

    def _moved(self, made: _Made) -> dict[str, meshes.Mesh]:
        """Return the meshes that have other versions now than when a world was made."""
        moved = {}
        for mesh_id, mesh in made.shapes.items():
            # An inline world does not keep its meshes in the store; they may have been removed since it arrived.
            stored = self.shown.scenes.peek(mesh_id)
            if stored is not None and isinstance(stored.content, MeshContent) and stored.content.mesh is not mesh:
                moved[mesh_id] = stored.content.mesh
        return moved

    def world(self) -> meshes.World:
        """Return the world of the kernels, with the current versions of its meshes; on the device's thread only."""
        made = self._made
        moved = self._moved(made)
        if moved:
            instances = [
                replace(instance, shape=moved.get(mesh_id, instance.shape))
                for mesh_id, instance in zip(self.shown.mesh_ids, made.world.instances, strict=True)
            ]
            made = self._made = _Made.of(self.shown, meshes.World(instances, made.world.environments))
        return made.world

    def changed(self, poses: Mapping[int, Sequence[float]], enabled: Mapping[int, bool]) -> WorldContent:
        """Return a copy with changed poses and flags, which shares all hierarchies; callable on any thread."""
        # If meshes have new versions, the copy finds them itself.
        world = self._made.world
        world = world.with_poses(poses) if poses else world
        return WorldContent(self.shown, world.with_enabled(enabled) if enabled else world)

    def describe(self, info: scene_pb2.SceneInfo) -> None:
        """Add nothing."""

    def message(self, tensors: Mapping[str, tensor_pb2.Tensor]) -> scene_pb2.Scene:
        """Return the world as the message that stores it."""
        world = self._made.world
        scene = scene_pb2.Scene(world=world_pb2.World(environments=world.environments))
        for index, instance in enumerate(world.instances):
            obstacle = scene.world.obstacles.add(
                name=self.shown.names[index],
                pose=world_pb2.Pose(values=instance.pose),
                disabled=not instance.enabled,
                environment=instance.environment,
                sign=NUMBER_OF_SIGN[instance.sign],
            )
            match instance.shape:
                case meshes.Cuboid(size=size):
                    obstacle.cuboid.size.extend(size)
                case meshes.Grid(voxel_size=voxel_size):
                    obstacle.grid.distances.CopyFrom(tensors[grid_name(index)])
                    obstacle.grid.voxel_size = voxel_size
                case _:
                    obstacle.mesh_id = self.shown.mesh_ids[index]
        return scene


def world_of(content: Content) -> meshes.World:
    """Return the kernels' world for a stored mesh or world, with current meshes; on the device's thread only."""
    assert isinstance(content, MeshContent | WorldContent)
    return content.world()


def settled_world(content: Content) -> meshes.World | None:
    """Return the same as `world_of`, or None if that would first have to make it; callable on any thread."""
    assert isinstance(content, MeshContent | WorldContent)
    return content.settled()


class WorldKind:
    """Scenes of obstacles."""

    name = KIND
    engine = ENGINE

    def arrival(self, scene: scene_pb2.Scene, runtime: Runtime, field: str) -> Arrival:
        """Check the header of a world; `field` is its path in the request."""
        world, limits = scene.world, runtime.limits
        count = len(world.obstacles)
        require(count <= limits.obstacles, f"{field}.obstacles", f"at most {limits.obstacles} obstacles", count)
        environments = environments_of(world)
        limit = f"at most {limits.obstacles} environments"
        require(environments <= limits.obstacles, f"{field}.environments", limit, environments)
        drafts = drafts_of(world, environments, limits, _mesh_finder(runtime.scenes), field)

        def receive(reader: PayloadReader) -> Prepare:
            transfer = runtime.transfer
            complete = grids_uploader(drafts, reader, transfer, field)
            shown = Shown(drafts.names, drafts.mesh_ids, runtime.scenes)

            def prepare(_: Owner) -> Make:
                for instance in drafts.instances:
                    if isinstance(instance.shape, meshes.Mesh):
                        instance.shape.prepare(instance.sign)
                return make

            def make(times: StageTimes) -> WorldContent:
                with times.stage("upload"):
                    instances = list(drafts.instances)
                    for index, instance in complete().items():
                        instances[index] = instance
                    content = WorldContent(shown, meshes.World(instances, environments))
                    transfer.finish()
                with times.stage("kernel.build"):
                    search_nothing(content.world(), transfer.device)
                    transfer.finish()
                return content

            return prepare

        return Arrival(Outline(obstacles=count, environments=environments), receive)

    def change(self, content: WorldContent, request: scene_pb2.UpdateRequest, runtime: Runtime) -> Arrival:
        """Check the header of an update of poses and flags."""
        poses, enabled = changes_of(request, content.shown.numbers)

        def prepare(_: Owner) -> Make:
            # Done on the call's thread: thousands of poses would hold up the device's thread.
            changed = content.changed(poses, enabled)
            return lambda _: changed

        # An update of obstacles has no payload.
        return Arrival(content.outline, lambda _: prepare)


def _mesh_finder(scenes: SceneStore) -> FindMesh:
    found: dict[tuple[str, int], meshes.Mesh] = {}

    def find(mesh_id: str, version: int, field: str) -> meshes.Mesh:
        if (mesh_id, version) not in found:
            scene = scenes.find(mesh_id, version)
            content = scene.content
            require(isinstance(content, MeshContent), field, "the scene_id of a mesh", f"one of kind {scene.kind}")
            assert isinstance(content, MeshContent)
            found[mesh_id, version] = content.mesh
        return found[mesh_id, version]

    return find
