"""Shapes with poses, in one or several environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from lumigrad.kernels import _native
from lumigrad.kernels.checks import check, is_whole
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.meshes.engine import Engine
from lumigrad.kernels.meshes.mesh import SIGNS, Mesh
from lumigrad.kernels.meshes.pose import IDENTITY, Array, are_poses, checked_pose, placements
from lumigrad.kernels.meshes.shapes import Cuboid, Grid, Shape

MAX_ENVIRONMENTS = 2**20
# Limit of instances times environments for caching worlds of single instances; each world takes memory for all.
_MOST_KEPT = 2**20


@dataclass(frozen=True, eq=False)
class Instance:
    """A shape with a pose; instances may share a shape.

    Attributes:
        shape: The shape.
        pose: x y z (metres) qw qx qy qz, object to world, float64. The quaternion is normalised where it is used.
        enabled: Whether queries include the instance.
        environment: The index of its environment.
        sign: The method that decides which points are inside a mesh: "auto" (`Mesh.policy`), "normals" (pseudo-normal
            of the closest feature), "rays" (at least two of three axis-parallel rays hit a back face first), "winding"
            (the generalised winding number exceeds 1/2) or "unsigned" (no point is inside).

    Raises:
        ArgumentError: A value is invalid.
    """

    shape: Shape
    pose: Sequence[float] = IDENTITY
    enabled: bool = True
    environment: int = 0
    sign: str = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.shape, (Mesh, Cuboid, Grid)):
            raise ArgumentError("shape", "a Mesh, a Cuboid or a Grid", type(self.shape).__name__)
        object.__setattr__(self, "pose", checked_pose(self.pose, "pose"))
        check(isinstance(self.enabled, bool), "enabled", "True or False", self.enabled)
        check(is_whole(self.environment) and self.environment >= 0, "environment", "0 or more", self.environment)
        check(self.sign in SIGNS, "sign", f"one of {SIGNS}", self.sign)
        if not isinstance(self.shape, Mesh):
            check(self.sign == "auto", "sign", "'auto': other values are for meshes only", self.sign)


def instances_of(
    shapes: Sequence[Shape],
    poses: Array,
    enabled: Sequence[bool],
    environments: Sequence[int],
    signs: Sequence[str],
) -> list[Instance]:
    """Instances of many shapes, with poses [I, 7] float64, which are checked together.

    Raises:
        ArgumentError: As for `Instance`; names the instance, as in "instances[3].pose".
    """
    instances = []
    rows = zip(shapes, map(tuple, poses.tolist()), enabled, environments, signs, are_poses(poses).tolist(), strict=True)
    for index, (shape, pose, is_enabled, environment, sign, is_valid) in enumerate(rows):
        is_plain = is_valid and sign == "auto" and isinstance(shape, (Mesh, Cuboid, Grid))
        if is_plain and isinstance(is_enabled, bool) and type(environment) is int and environment >= 0:
            instances.append(_unchecked(shape, pose, is_enabled, environment, sign))
            continue
        try:
            instances.append(Instance(shape, pose, is_enabled, environment, sign))
        except ArgumentError as error:
            raise ArgumentError(f"instances[{index}].{error.argument}", error.expected, error.actual) from None
    return instances


def _valid_poses(poses: Mapping[int, Sequence[float]]) -> Mapping[int, Sequence[float]]:
    """Checks poses by index of the instance, most of them together, and returns them."""
    try:
        rows = np.array(list(poses.values()), np.float64)
    except (TypeError, ValueError, RuntimeError):
        rows = np.empty(0)
    if rows.shape == (len(poses), len(IDENTITY)) and are_poses(rows).all():
        return dict(zip(poses, map(tuple, rows.tolist()), strict=True))
    return {index: checked_pose(pose, f"poses[{index}]") for index, pose in poses.items()}


def _unchecked(shape: Shape, pose: Sequence[float], enabled: bool, environment: int, sign: str) -> Instance:
    """An instance whose attributes were checked."""
    instance = object.__new__(Instance)
    instance.__dict__.update(shape=shape, pose=pose, enabled=enabled, environment=environment, sign=sign)
    return instance


@dataclass(frozen=True, eq=False)
class World:
    """The instances of one or several environments; immutable.

    A world with other poses shares the shapes and their hierarchies.

    Attributes:
        instances: The instances; results refer to them by index.
        environments: The number of environments. A query in an environment includes only its instances.

    Raises:
        ArgumentError: An instance's environment does not exist, or shapes are on different devices.
    """

    instances: Sequence[Instance]
    environments: int = 1
    _placed: dict[tuple[str, int | None], Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.instances, Sequence):
            raise ArgumentError("instances", "a sequence of instances", type(self.instances).__name__)
        object.__setattr__(self, "instances", tuple(self.instances))
        count = self.environments
        ok = is_whole(count) and 1 <= count <= MAX_ENVIRONMENTS
        check(ok, "environments", f"1 to {MAX_ENVIRONMENTS}", count)
        device: torch.device | None = None
        for index, instance in enumerate(self.instances):
            if not isinstance(instance, Instance):
                raise ArgumentError(f"instances[{index}]", "an Instance", type(instance).__name__)
            if instance.environment >= count:
                expected = f"below {count}, the number of environments"
                raise ArgumentError(f"instances[{index}].environment", expected, f"{instance.environment}")
            if not isinstance(instance.shape, Cuboid):
                device = device or instance.shape.device
                if instance.shape.device != device:
                    expected = f"on {device}, the device of the shapes before it"
                    raise ArgumentError(f"instances[{index}].shape", expected, f"on {instance.shape.device}")

    @property
    def device(self) -> torch.device | None:
        """The device of the shapes; None if all are cuboids, which any device can query."""
        return next((one.shape.device for one in self.instances if not isinstance(one.shape, Cuboid)), None)

    @property
    def poses(self) -> Array:
        """The poses as given, [I, 7] float64."""
        return np.array([one.pose for one in self.instances], np.float64).reshape(-1, 7)

    @property
    def bytes(self) -> int:
        """Memory that the shapes use, bytes; shared shapes count once."""
        return sum(shape.bytes for shape in {id(one.shape): one.shape for one in self.instances}.values())

    def with_poses(self, poses: Mapping[int, Sequence[float]]) -> World:
        """The same world with other poses.

        Args:
            poses: By index of the instance, x y z qw qx qy qz.

        Raises:
            ArgumentError: There is no such instance, or a pose is invalid.
        """
        return self._changed("poses", "pose", _valid_poses(poses))

    def with_enabled(self, enabled: Mapping[int, bool]) -> World:
        """The same world with instances enabled or disabled.

        Args:
            enabled: By index of the instance.

        Raises:
            ArgumentError: There is no such instance, or a value is neither True nor False.
        """
        for index, value in enabled.items():
            check(isinstance(value, bool), f"enabled[{index}]", "True or False", value)
        return self._changed("enabled", "enabled", enabled)

    def _changed(self, argument: str, attribute: str, values: Mapping[int, Any]) -> World:
        """The same world with other, checked values of an attribute."""
        changed = list(self.instances)
        for index, value in values.items():
            if not (is_whole(index) and 0 <= index < len(changed)):
                raise ArgumentError(argument, f"indices of {len(changed)} instances", f"{index!r}")
            changed[index] = _unchecked(**{**changed[index].__dict__, attribute: value})
        return World(changed, self.environments)

    def placed(self, engine: Engine, only: int | None = None) -> Any:
        """The extension's world for an engine, cached by the engine's key; with `only`, of this instance alone."""
        if only is not None and len(self.instances) * self.environments > _MOST_KEPT:
            return self._place(engine, (only,))
        key = engine.key, only
        if key not in self._placed:
            self._placed[key] = self._place(engine, range(len(self.instances)) if only is None else (only,))
        return self._placed[key]

    def placed_before(self, key: str) -> Any | None:
        """Return the world of all instances that `placed` cached for this key, on any thread, or None."""
        return self._placed.get((key, None))

    def _place(self, engine: Engine, numbers: Sequence[int]) -> Any:
        seen = [number for number in numbers if self.instances[number].enabled]
        seen.sort(key=lambda number: self.instances[number].environment)
        there = [self.instances[number] for number in seen]
        counts = np.bincount([one.environment for one in there], minlength=self.environments)
        poses = np.array([one.pose for one in there], np.float64).reshape(-1, 7)
        return _native.make_mesh_world(
            [one.shape.solid(engine, one.sign) for one in there],
            placements(poses),
            seen,
            [0, *np.cumsum(counts).tolist()],
            len(self.instances),
        )
