"""Worlds as values: named obstacles in one or several environments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from lumigrad.client.base.arguments import instance, number, one_of, optional_name, truth, whole_number
from lumigrad.client.base.arrays import Float32, Float64, float32_array, float64_array, to_numpy
from lumigrad.client.base.cautions import said, warn_of
from lumigrad.client.base.precision import lost_by_size
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.values.handle import SceneHandle, kind_in_words
from lumigrad.client.values.mesh import Mesh, MeshReport
from lumigrad.client.values.rotations import IDENTITY, check_pose_rows, pose_array


@dataclass(frozen=True, eq=False, init=False)
class Cuboid:
    """A box centred at the origin of its frame, with edges along the axes.

    Attributes:
        size: [3] lengths of the edges, metres, > 0.

    Example:
        box = Cuboid((1, 1, 2))
    """

    size: Float64

    def __init__(self, size: Any) -> None:
        edges = float64_array("size", size, (3,))
        if not (edges > 0).all():
            raise InvalidArgument.of("size", f"expected three lengths > 0, got {edges.tolist()}")
        vars(self).update(size=edges)

    def __repr__(self) -> str:
        return f"Cuboid({' x '.join(f'{edge:g}' for edge in self.size)} m)"


@dataclass(frozen=True, eq=False, init=False)
class VoxelGrid:
    """Signed distances at the centres of voxels, in a box centred at the origin of its frame.

    Distances are interpolated linearly between centres; outside the box, the distance to the box is added to the
    closest value.

    Attributes:
        distances: [X, Y, Z] float32, metres, positive outside, finite; for an obstacle at least 2 along each axis.
        voxel_size: edge length of a voxel, metres.

    Example:
        grid = VoxelGrid(np.ones((4, 4, 4)), voxel_size=0.1)
    """

    distances: Float32
    voxel_size: float

    def __init__(self, distances: Any, voxel_size: float) -> None:
        values = float32_array("distances", distances, ("X", "Y", "Z"))
        if not values.size:
            raise InvalidArgument.of("distances", f"expected at least one voxel, got shape {list(values.shape)}")
        if not np.isfinite(values).all():
            raise InvalidArgument.of(
                "distances", "expected finite values, got nan or infinity; write a large distance where nothing is near"
            )
        edge = number("voxel_size", voxel_size)
        if not 0.0 < edge < np.inf:
            raise InvalidArgument.of("voxel_size", f"expected metres > 0, got {edge}")
        vars(self).update(distances=values, voxel_size=edge)

    def __repr__(self) -> str:
        return f"VoxelGrid({' x '.join(map(str, self.distances.shape))} voxels of {self.voxel_size:g} m)"

    @property
    def size(self) -> Float64:
        """The edge lengths [3] of the box, metres."""
        return np.array(self.distances.shape) * self.voxel_size

    @property
    def centers(self) -> Float64:
        """The centres [X, Y, Z, 3] of the voxels in the frame of the grid, metres."""
        axes = [(np.arange(count) - (count - 1) / 2) * self.voxel_size for count in self.distances.shape]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)


Sign = Literal["auto", "normals", "rays", "winding", "unsigned"]
Shape: TypeAlias = Mesh | SceneHandle | Cuboid | VoxelGrid

MAX_ENVIRONMENTS = 1 << 20


@dataclass(frozen=True, eq=False, init=False)
class Obstacle:
    """A mesh, a box or a grid of distances, placed in a world.

    Attributes:
        shape: a mesh, the handle of one from `Client.put`, a cuboid or a grid.
        pose: [7] object to world: x y z (metres) and quaternion w x y z, which is normalised when used. [3] x y z or a
            matrix [3, 4] or [4, 4] are accepted too.
        name: identifies the obstacle in `Client.update`; None: the world chooses a name.
        enabled: whether queries include the obstacle.
        environment: the number of the obstacle's environment.
        sign: how the inside of a mesh is determined. "normals": by the closest surface; "rays": by majority of three
            rays along the axes of the mesh; "winding": by the generalised winding number; "unsigned": there is no
            inside; "auto": "normals" if the mesh is closed and oriented and its components are apart, else "winding",
            after turning components that are inside out. `MeshReport.sign` reports the choice of "auto".

    Example:
        table = Obstacle(Cuboid((1.2, 0.8, 0.05)), pose=(0, 0, 0.7), name="table")
    """

    shape: Shape
    pose: Float64
    name: str | None
    enabled: bool
    environment: int
    sign: Sign

    def __init__(
        self,
        shape: Shape,
        pose: Any = IDENTITY,
        name: str | None = None,
        enabled: bool = True,
        environment: int = 0,
        sign: Sign = "auto",
    ) -> None:
        advice = "make one with Mesh(vertices, faces), Cuboid(size) or VoxelGrid(distances, voxel_size)"
        instance("shape", shape, (Mesh, SceneHandle, Cuboid, VoxelGrid), advice)
        if isinstance(shape, SceneHandle) and shape.kind != "mesh":
            raise InvalidArgument.of("shape", f"expected a handle of a mesh, got one of {kind_in_words(shape.kind)}")
        if isinstance(shape, VoxelGrid) and min(shape.distances.shape) < 2:
            raise InvalidArgument.of("shape", f"expected 2 voxels or more each way, got {shape!r}")
        one_of("sign", sign, get_args(Sign), quote='"')
        vars(self).update(
            shape=shape,
            pose=pose_array("pose", pose),
            name=optional_name("name", name),
            enabled=truth("enabled", enabled),
            environment=whole_number("environment", environment, 0, MAX_ENVIRONMENTS - 1),
            sign=sign,
        )
        warn_of("pose" if name is None else f"pose of {name!r}", lost_by_size(self.pose[:3], size_of(shape)))

    @property
    def mesh(self) -> Mesh | None:
        """The obstacle's mesh, or None if it is not a mesh or the client has no copy."""
        shape = self.shape.scene if isinstance(self.shape, SceneHandle) else self.shape
        return shape if isinstance(shape, Mesh) else None


def size_of(shape: Shape) -> float:
    """Returns the longest edge of the box around a shape, metres; 0 if unknown."""
    if isinstance(shape, Cuboid | VoxelGrid):
        return float(shape.size.max())
    known = shape.report or shape.scene if isinstance(shape, SceneHandle) else shape
    if isinstance(known, MeshReport):
        return max(high - low for low, high in zip(known.low, known.high, strict=True))
    low, high = known.bounds if isinstance(known, Mesh) else (np.zeros(3), np.zeros(3))
    return float((high - low).max())


_ADVICE = "pass Obstacle(shape, pose), a shape, or a list of them"


@dataclass(frozen=True, eq=False, init=False)
class World:
    """The obstacles of queries. Immutable; `with_poses` and `with_enabled` return changed copies.

    Attributes:
        obstacles: the obstacles in the caller's order; results refer to their indices. Names are unique: an unnamed
            obstacle gets its mesh's name if that is unused, else its index.
        environments: number of environments; each obstacle is in one, and each trajectory of a query refers to one.

    Example:
        world = World([Obstacle(Cuboid((1, 1, 1)), pose=(0, 0, 2)), Mesh(vertices, faces)])
    """

    obstacles: tuple[Obstacle, ...]
    environments: int

    def __init__(
        self, obstacles: Obstacle | Shape | Iterable[Obstacle | Shape], environments: int | None = None
    ) -> None:
        """Takes one obstacle or several; plain shapes get the identity pose in environment 0."""
        if isinstance(obstacles, (Obstacle, Mesh, SceneHandle, Cuboid, VoxelGrid)):
            obstacles = (obstacles,)
        instance("obstacles", obstacles, (Iterable,), _ADVICE)
        given = tuple(_placed(f"obstacles[{index}]", each) for index, each in enumerate(obstacles))
        needed = 1 + max((obstacle.environment for obstacle in given), default=0)
        if environments is None:
            environments = needed
        environments = whole_number("environments", environments, 1, MAX_ENVIRONMENTS)
        if environments < needed:
            raise InvalidArgument.of(
                "environments",
                f"expected at least {needed}, since an obstacle is in number {needed - 1}, got {environments}",
            )
        vars(self).update(obstacles=_named(given), environments=environments)

    @staticmethod
    def load(path: str | PathLike[str], *, scale: float = 1.0) -> World:
        """Reads a world from cuRobo's YAML (extra `robot`), or from a mesh file (extra `mesh`).

        Args:
            path: a .yml with obstacles by name under cuboid, mesh, sphere, capsule and cylinder (the last three become
                meshes), or a file that `Mesh.load` reads.
            scale: metres per unit of a mesh file; lengths in YAML files are in metres.

        Raises:
            InvalidArgument: the file is damaged or of another kind; the text names the file.
            MissingPackage: an extra is not installed; the text names it.

        Example:
            world = World.load(folder / "part.stl", scale=0.001)
        """
        from lumigrad.client.formats.world_files import read_obstacles

        return World(read_obstacles(path, scale=scale))

    def __len__(self) -> int:
        """Returns the number of obstacles."""
        return len(self.obstacles)

    def __repr__(self) -> str:
        several = "" if self.environments == 1 else f" in {self.environments} environments"
        disabled = sum(not obstacle.enabled for obstacle in self.obstacles)
        off = f", {disabled} disabled" if disabled else ""
        return f"World({_counts(self.obstacles)}{several}{off}{_shown(self.names)})"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the obstacles, in their order."""
        return tuple(str(obstacle.name) for obstacle in self.obstacles)

    @property
    def poses(self) -> Float64:
        """The poses [I, 7] of the obstacles, object to world: x y z (metres) and quaternion w x y z."""
        return np.array([obstacle.pose for obstacle in self.obstacles], np.float64).reshape(-1, 7)

    def index(self, name: str) -> int:
        """Returns the index of the obstacle with a name.

        Args:
            name: the name of an obstacle.

        Raises:
            InvalidArgument: there is no obstacle with this name.

        Example:
            number = world.index(world.names[0])
        """
        try:
            return self.names.index(name)
        except ValueError:
            raise InvalidArgument.of(
                "name", f"expected one of {', '.join(self.names) or 'none, there are no obstacles'}, got {name!r}"
            ) from None

    def with_poses(self, poses: Mapping[str, Any] | Any) -> World:
        """Returns a copy with other poses.

        Args:
            poses: poses by obstacle name, each as for an `Obstacle`; or an array [I, 7], [I, 3], [I, 3, 4] or
                [I, 4, 4] for all obstacles in their order.

        Raises:
            InvalidArgument: a name is unknown, or a pose has the wrong shape.

        Example:
            moved = world.with_poses({world.names[0]: (0, 0, 1)})
        """
        if not isinstance(poses, Mapping):
            poses = dict(zip(self.names, _rows(poses, len(self)), strict=True))
        return self._with("pose", poses)

    def with_enabled(self, enabled: Mapping[str, bool]) -> World:
        """Returns a copy with some obstacles enabled or disabled.

        Args:
            enabled: whether queries include an obstacle, by its name.

        Raises:
            InvalidArgument: a name is unknown, or a value is not a bool.

        Example:
            without = world.with_enabled({world.names[0]: False})
        """
        instance("enabled", enabled, (Mapping,), "pass {name: True or False}")
        return self._with("enabled", enabled)

    def _with(self, attribute: str, values: Mapping[str, Any]) -> World:
        changed = list(self.obstacles)
        for name, value in values.items():
            index = self.index(name)
            changed[index] = replace(changed[index], **{attribute: value})
        return World(changed, self.environments)


_KINDS = {Mesh: ("mesh", "meshes"), Cuboid: ("cuboid", "cuboids"), VoxelGrid: ("voxel grid", "voxel grids")}
_MOST_NAMES = 6


def _counts(obstacles: tuple[Obstacle, ...]) -> str:
    """Returns the number of shapes of each kind, for `repr`; handles count as meshes."""
    kinds = [Mesh if isinstance(obstacle.shape, SceneHandle) else type(obstacle.shape) for obstacle in obstacles]
    counts = ((kinds.count(kind), names) for kind, names in _KINDS.items())
    return ", ".join(f"{count} {names[count != 1]}" for count, names in counts if count) or "no obstacles"


def _shown(names: tuple[str, ...]) -> str:
    """Returns the first names, for `repr`; empty if the world chose all of them, which are then indices."""
    if all(name == str(index) for index, name in enumerate(names)):
        return ""
    return f": {', '.join(map(repr, names[:_MOST_NAMES]))}{', …' if len(names) > _MOST_NAMES else ''}"


def _rows(poses: Any, count: int) -> Any:
    """Returns an array of poses [I, ...] after checking its shape; its rows are checked later."""
    array = to_numpy("poses", poses)
    check_pose_rows("poses", array.shape, count)
    return array


def _placed(name: str, value: Any) -> Obstacle:
    """Returns an obstacle unchanged, and a shape as an obstacle with the identity pose."""
    instance(name, value, (Obstacle, *get_args(Shape)), _ADVICE)
    return value if isinstance(value, Obstacle) else Obstacle(value)


def _named(obstacles: tuple[Obstacle, ...]) -> tuple[Obstacle, ...]:
    taken: set[str] = set()
    for index, obstacle in enumerate(obstacles):
        if obstacle.name in taken:
            raise InvalidArgument.of(
                f"obstacles[{index}].name", f"expected a name that no other obstacle has, got {obstacle.name!r} again"
            )
        if obstacle.name is not None:
            taken.add(obstacle.name)
    named = []
    for index, obstacle in enumerate(obstacles):
        name = obstacle.name
        if name is None:
            mesh = obstacle.mesh
            name = mesh.name if mesh is not None and mesh.name not in (None, *taken) else str(index)
            while name in taken:
                name = f"{name}_"
            taken.add(str(name))
        with said():
            named.append(obstacle if name is obstacle.name else replace(obstacle, name=name))
    return tuple(named)
