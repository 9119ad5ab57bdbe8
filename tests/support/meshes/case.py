"""Spheres near meshes, cuboids and grids: the inputs of the reference and of every engine in the tests."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Whole = NDArray[np.int32]

IDENTITY = (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, eq=False)
class MeshShape:
    """Vertices [V, 3] and faces [F, 3]."""

    vertices: Doubles
    faces: Whole

    @property
    def corners(self) -> Doubles:
        """The corners of the faces, [F, 3, 3]."""
        return self.vertices[self.faces]

    def moved(self, vertices: Doubles) -> MeshShape:
        """The same faces with other vertices."""
        return MeshShape(vertices, self.faces)


@dataclass(frozen=True)
class CuboidShape:
    """A cuboid with edges in metres."""

    size: tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class GridShape:
    """Signed distances [nx, ny, nz], positive outside, at the centres of voxels around the origin."""

    distances: Floats
    voxel_size: float


Shape = MeshShape | CuboidShape | GridShape


@dataclass(frozen=True, eq=False)
class Placed:
    """A shape in the world; `pose` is x, y, z, qw, qx, qy, qz, object to world."""

    shape: Shape
    pose: tuple[float, ...] = IDENTITY
    enabled: bool = True
    environment: int = 0
    sign: str = "auto"


@dataclass(frozen=True)
class Options:
    """Settings with the defaults of the protocol; repeated here so that tests fail if a default changes."""

    semantics: str = "exact"
    activation_distance: float = 0.0
    max_distance: float | None = None
    sweep: bool = False
    samples: int = 32
    speed_metric: bool = False
    time_step_s: float | None = None
    reduction: str = "sum"
    weight: float = 1.0


@dataclass(frozen=True, eq=False)
class MeshCase:
    """Spheres [B, H, S, 4] are float32; `rows` [B] is the environment of each trajectory, None: the first."""

    name: str
    placed: tuple[Placed, ...]
    spheres: Floats
    environments: int = 1
    rows: Whole | None = None
    options: Options = field(default_factory=Options)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Trajectories, time steps, spheres."""
        batches, horizon, count = self.spheres.shape[:3]
        return batches, horizon, count

    @property
    def environment_of(self) -> Whole:
        """The environment of each trajectory, [B]."""
        return np.zeros(len(self.spheres), np.int32) if self.rows is None else self.rows
