"""Random spheres for the mesh cases, near the obstacles, at rest or moving."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from support.meshes.case import CuboidShape, Doubles, Floats, MeshShape, Placed
from support.meshes.obstacles import Obstacle
from support.meshes.shapes import box


@dataclass(frozen=True)
class Crowd:
    """The distribution of spheres: `near` is their distance from surfaces, `step` the motion per time step, metres."""

    batches: int = 2
    horizon: int = 4
    count: int = 24
    near: float = 0.1
    radii: tuple[float, float] = (0.01, 0.12)
    step: float = 0.15
    # The fraction that is placed anywhere around or inside, not near surfaces.
    loose: float = 0.3


def random_of(name: str) -> np.random.Generator:
    """A random generator seeded by the name."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def _corners(placed: Placed) -> Doubles:
    """Triangles of the surface, in the world: [F, 3, 3]."""
    shape = placed.shape
    if isinstance(shape, CuboidShape):
        shape = box(shape.size)
    elif not isinstance(shape, MeshShape):
        dims = np.array(shape.distances.shape)
        shape = box(tuple(((dims - 1) * shape.voxel_size * 0.7).tolist()))
    obstacle = Obstacle(placed)
    turn = obstacle.rotation().numpy()
    return shape.corners @ turn.T + obstacle.pose[:3].numpy()


def surface_points(placed: Placed, count: int, random: np.random.Generator) -> tuple[Doubles, Doubles]:
    """Points of the surface, uniform in area, and the normals there: [N, 3] each."""
    a, b, c = _corners(placed).transpose(1, 0, 2)
    normals = np.cross(b - a, c - a)
    areas = np.linalg.norm(normals, axis=1)
    chosen = random.choice(len(areas), count, p=areas / areas.sum())
    s, t = random.random((2, count, 1))
    s, t = np.where(s + t > 1, 1 - s, s), np.where(s + t > 1, 1 - t, t)
    points = a[chosen] + s * (b - a)[chosen] + t * (c - a)[chosen]
    return points, normals[chosen] / areas[chosen, None]


def strewn(name: str, placed: Sequence[Placed], crowd: Crowd, size: float = 1.0) -> Floats:
    """Spheres [B, H, S, 4] around the obstacles; lengths of `crowd` are multiplied by `size`."""
    random = random_of(f"spheres of {name}")
    batches, horizon, count = crowd.batches, crowd.horizon, crowd.count
    total = batches * count
    centres = np.empty((total, 3))
    for index, number in enumerate(np.array_split(np.arange(total), len(placed))):
        points, normals = surface_points(placed[index], len(number), random)
        centres[number] = points + normals * random.normal(0, crowd.near * size, (len(number), 1))
    corners = np.concatenate([_corners(one).reshape(-1, 3) for one in placed])
    low, high = corners.min(0), corners.max(0)
    loose = random.random(total) < crowd.loose
    reach = 0.2 * size
    centres[loose] = random.uniform(low - reach, high + reach, (int(loose.sum()), 3))
    centres = random.permutation(centres).reshape(batches, 1, count, 3)
    steps = random.normal(0, crowd.step * size / np.sqrt(3), (batches, horizon, count, 3))
    # The sphere is at its random position in the middle time step.
    ways = np.cumsum(steps, 1)
    centres = centres + ways - ways[:, horizon // 2 : horizon // 2 + 1]
    radii = random.uniform(*crowd.radii, (batches, 1, count, 1)) * size * np.ones((1, horizon, 1, 1))
    return np.concatenate([centres, radii], -1).astype(np.float32)


def tensor(values: Floats | Doubles) -> torch.Tensor:
    """A float32 tensor on the CPU."""
    return torch.from_numpy(np.ascontiguousarray(values, np.float32))
