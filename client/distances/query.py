"""Distance queries of spheres and of fields, as values and as protobuf messages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from lumigrad.client.base.arguments import instance, number, values_of, whole_number
from lumigrad.client.base.arrays import (
    Array,
    Float32,
    Float64,
    Int32,
    float32_array,
    float64_array,
    int32_array,
    to_numpy,
)
from lumigrad.client.base.cautions import warn_of
from lumigrad.client.base.precision import lost_by_size, lost_by_spheres
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.settings.distances import DistanceSemantics, DistanceSettings, Reduction
from lumigrad.client.values.handle import SceneHandle, kind_in_words, scene_facts
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.rotations import pose_array
from lumigrad.client.values.world import MAX_ENVIRONMENTS, Cuboid, Obstacle, VoxelGrid, World, size_of
from lumigrad.client.wire.scenes import world_message
from lumigrad.client.workers.attempts import InlineWorld, Source
from lumigrad.protos.tensors import ALIGNMENT, PayloadWriter
from lumigrad.v1 import distance_pb2, scene_pb2, world_pb2

Surroundings: TypeAlias = World | Mesh | SceneHandle
# Up to this coordinate, metres, float32 has steps of micrometres, fine enough for any obstacle.
_NEAR = 32.0


@dataclass(frozen=True)
class DistanceQuery:
    """One query.

    Attributes:
        world: a world, which is sent with the call, or a handle; a mesh means a world that contains only this mesh.
        spheres: [B, H, S, 4] centres and radii, metres.
        axes: how many of B, H and S the caller's spheres had; results have the same number.
        settings: the definition of costs.
        outputs: the names of the requested arrays.
        environments: [B] the environment of each trajectory; None: all 0.
        poses: [I, 7] poses that replace the world's own; None: the world's own.
        per_obstacle: compute outputs for each obstacle separately.
        inside: whether distances are positive inside.
    """

    world: Surroundings
    spheres: Float32
    axes: int
    settings: DistanceSettings
    outputs: tuple[str, ...]
    environments: Int32 | None = None
    poses: Float32 | None = None
    per_obstacle: bool = False
    inside: bool = False

    @property
    def most_reply_bytes(self) -> float:
        """The most bytes of the outputs; infinity with `per_obstacle`."""
        # An output has no more numbers per sphere than the sphere itself.
        return math.inf if self.per_obstacle else (self.spheres.nbytes + ALIGNMENT) * len(self.outputs)

    def facts(self) -> dict[str, str | int]:
        """Returns the attributes of the trace span: the world and the number of spheres."""
        return {**scene_facts(self.world), "rows": self.spheres.size // 4}

    def with_axes(self, array: Array) -> Array:
        """Reshapes a result [B, H, S, ...] to the axes of the caller's spheres."""
        return array.reshape(array.shape[3 - self.axes :])

    def without_axes(self, name: str, value: Any, output: Array | None) -> Float32:
        """Reshapes the gradient of an output, which has the output's shape, to [B, H, S, ...]."""
        array = float32_array(name, value)
        if output is not None and array.shape != output.shape:
            raise InvalidArgument.of(
                name, f"expected the shape of the output, {list(output.shape)}, got {list(array.shape)}"
            )
        return array.reshape((1,) * (3 - self.axes) + array.shape)


@dataclass(frozen=True)
class DistanceBackward:
    """A request for gradients of a query.

    Attributes:
        output_gradients: dL/d output by the output's name, [B, H, S, ...]; for distances that are positive outside.
        wanted: the names of the inputs to differentiate.
    """

    output_gradients: Mapping[str, Array]
    wanted: tuple[str, ...]


def surroundings(world: Any) -> Surroundings:
    """Returns worlds, meshes and handles unchanged, and other obstacles as a world; else raises InvalidArgument."""
    if isinstance(world, Obstacle | Cuboid | VoxelGrid) or (isinstance(world, Sequence) and not isinstance(world, str)):
        world = World(world)
    advice = "pass a World([Obstacle(…), …]), a shape, a list of them, or a handle from put"
    instance("world", world, (World, Mesh, SceneHandle), advice)
    if isinstance(world, SceneHandle) and world.kind not in ("world", "mesh"):
        text = f"expected a handle of a world or a mesh, got one of {kind_in_words(world.kind)}; {advice}"
        raise InvalidArgument.of("world", text)
    return world  # type: ignore[no-any-return]


def sphere_rows(value: Any) -> tuple[Float32, int]:
    """Converts spheres or points to [B, H, S, 4]; also returns how many of B, H and S they had."""
    array = float32_array("spheres", value)
    check_rows(array.shape)
    if array.shape[-1] == 3:
        array = float32_array("spheres", np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, 1)]))
    return array.reshape((1,) * (4 - array.ndim) + array.shape), array.ndim - 1


def warn_of_far(world: Surroundings, spheres: Array, poses: Array | None = None) -> None:
    """Warns if spheres or obstacles are so far from 0 that float32 is too coarse for them.

    Args:
        world: the world.
        spheres: [.., 4], or points [.., 3].
        poses: [I, 7] poses of the world's obstacles; None: its own, which were checked when it was made.
    """
    warn_of("spheres", lost_by_spheres(spheres))
    known = world.scene if isinstance(world, SceneHandle) else world
    if poses is None or not isinstance(known, World) or np.abs(poses[:, :3]).max(initial=0.0) < _NEAR:
        return
    for obstacle, pose in zip(known.obstacles, poses, strict=False):
        warn_of(f"poses: of {obstacle.name!r}", lost_by_size(pose[:3], size_of(obstacle.shape)))


def check_rows(shape: Sequence[int]) -> None:
    """Raises InvalidArgument unless `shape` is that of spheres or points."""
    if not 2 <= len(shape) <= 4 or shape[-1] not in (3, 4):
        raise InvalidArgument.of(
            "spheres",
            "expected shape [B, H, S, 4], [H, S, 4] or [S, 4]: x y z and radius, or 3 instead of 4 for points, "
            f"got {list(shape)}",
        )


def environment_numbers(value: Any, trajectories: int) -> Int32 | None:
    """Returns the environments [B] from one number for all trajectories or one for each; None stays None."""
    if value is None:
        return None
    if to_numpy("environments", value).ndim == 0:
        value = np.full(trajectories, int32_array("environments", value, ()))
    return int32_array("environments", value, (trajectories,))


@dataclass(frozen=True)
class FieldQuery:
    """A query of the distance field in a box.

    Attributes:
        world: as for `DistanceQuery`.
        pose: [7] pose of the centre of the box, object to world.
        size: [3] edge lengths of the box, metres.
        voxel_size: edge length of a voxel, metres.
        environment: the number of the environment.
        max_distance: the search radius, metres; None: unlimited.
        semantics: "exact", or "curobo_field" for cuRobo's behaviour.
    """

    world: Surroundings
    pose: Float64
    size: Float64
    voxel_size: float
    environment: int = 0
    max_distance: float | None = None
    semantics: DistanceSemantics = "exact"

    def __post_init__(self) -> None:
        vars(self).update(
            pose=pose_array("pose", self.pose),
            size=float64_array("size", self.size, (3,)),
            voxel_size=number("voxel_size", self.voxel_size),
            environment=whole_number("environment", self.environment, 0, MAX_ENVIRONMENTS - 1),
            max_distance=None if self.max_distance is None else number("max_distance", self.max_distance),
        )
        warn_of("pose", lost_by_size(self.pose[:3], float(self.size.max())))
        if self.semantics not in ("exact", "curobo_field"):
            raise InvalidArgument.of("semantics", f'expected "exact" or "curobo_field", got {self.semantics!r}')

    def outward(self, values: Array) -> Float32:
        """Converts the worker's values to distances that are positive outside in every semantics."""
        if not np.isfinite(values).all():
            raise InvalidArgument.of(
                "max_distance", f"expected a largest distance, since there is nothing in environment {self.environment}"
            )
        return np.asarray(values if self.semantics == "exact" else -values, np.float32)


_SEMANTICS = values_of(DistanceSemantics, distance_pb2.DistanceSemantics)
_REDUCTIONS = values_of(Reduction, distance_pb2.Reduction)


def fill_spec(
    spec: distance_pb2.DistanceSpec, query: DistanceQuery, source: Source | None, payload: PayloadWriter
) -> None:
    """Fills the message of a query; `source` is a reference to a stored world, or a world to send with the call."""
    spec.spheres.CopyFrom(payload.add(query.spheres))
    spec.settings.MergeFromString(_settings_bytes(query.settings))
    spec.outputs.extend(query.outputs)
    spec.per_obstacle = query.per_obstacle
    if query.environments is not None:
        spec.environments.CopyFrom(payload.add(query.environments))
    if query.poses is not None:
        spec.poses.CopyFrom(payload.add(query.poses))
    if isinstance(source, InlineWorld):
        spec.scene.world.CopyFrom(world_message(source.world, source.meshes, payload))
    elif source is not None:
        spec.scene_ref.CopyFrom(source)


@lru_cache(maxsize=256)
def _settings_bytes(settings: DistanceSettings) -> bytes:
    return settings_message(settings).SerializeToString()


def settings_message(settings: DistanceSettings) -> distance_pb2.DistanceSettings:
    """Returns the protobuf message of settings; fields that are None are left unset."""
    values = dict(vars(settings))
    values |= {"semantics": _SEMANTICS[settings.semantics], "reduction": _REDUCTIONS[settings.reduction]}
    return distance_pb2.DistanceSettings(time_step=values.pop("time_step_s"), **values)


def field_message(query: FieldQuery, reference: scene_pb2.SceneRef) -> distance_pb2.FieldRequest:
    """Returns the protobuf message of a field query in a stored world."""
    return distance_pb2.FieldRequest(
        scene_ref=reference,
        pose=world_pb2.Pose(values=query.pose.tolist()),
        size=query.size.tolist(),
        voxel_size=query.voxel_size,
        environment=query.environment,
        max_distance=query.max_distance,
        semantics=_SEMANTICS[query.semantics],
    )
