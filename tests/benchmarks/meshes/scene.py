"""The scenes of the mesh benchmark: a bumpy torus at three resolutions, points around it, and spheres that pass it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

# Quads around the axis and around the tube.
RINGS = {"1k": (32, 16), "70k": (280, 125), "1M": (1000, 500)}
POINTS = 100_000
# Trajectories, time steps and spheres of a robot.
BATCHES, HORIZON, SPHERES = 32, 32, 61


@dataclass(frozen=True)
class MeshScene:
    """Vertices [V, 3] in metres, about 1.1 x 1.1 x 0.5 m, and faces [F, 3], closed and outward."""

    vertices: Doubles
    faces: NDArray[np.int32]


def torus(name: str) -> MeshScene:
    """The mesh of one of RINGS."""
    around, along = RINGS[name]
    u = np.arange(around)[:, None] * (2 * np.pi / around)
    v = np.arange(along)[None, :] * (2 * np.pi / along)
    bumps = 0.15 * np.sin(7 * u + 3 * v) + 0.10 * np.sin(5 * v - 2 * u) + 0.05 * np.cos(11 * u) * np.sin(2 * v)
    tube = 0.15 * (1 + bumps)
    ring = 0.38 * (1 + 0.06 * np.cos(3 * u)) + tube * np.cos(v)
    height = tube * np.sin(v) + 0.04 * np.sin(2 * u)
    vertices = np.stack([ring * np.cos(u), ring * np.sin(u), height], axis=-1).reshape(-1, 3)
    number = np.arange(around * along, dtype=np.int32).reshape(around, along)
    beyond = np.roll(number, -1, axis=0)
    corners = number, beyond, np.roll(beyond, -1, axis=1), np.roll(number, -1, axis=1)
    a, b, c, d = (corner.reshape(-1) for corner in corners)
    return MeshScene(vertices, np.concatenate([np.stack([a, b, c], axis=-1), np.stack([a, c, d], axis=-1)]))


def points(scene: MeshScene, kind: str, count: int = POINTS) -> Doubles:
    """[count, 3] in random order: "near" the surface, by a normal distribution of 1 cm, or in a "box" around it."""
    if kind == "box":
        random = np.random.default_rng(8)
        low, high = scene.vertices.min(axis=0), scene.vertices.max(axis=0)
        margin = 0.1 * (high - low)
        return random.uniform(low - margin, high + margin, (count, 3))
    random = np.random.default_rng(7)
    a, b, c = (scene.vertices[scene.faces[:, corner]] for corner in range(3))
    normals = np.cross(b - a, c - a)
    areas = np.linalg.norm(normals, axis=1)
    chosen = np.searchsorted(np.cumsum(areas) / areas.sum(), random.random(count)).clip(0, len(areas) - 1)
    s, t = random.random(count), random.random(count)
    folded = s + t > 1
    s[folded], t[folded] = 1 - s[folded], 1 - t[folded]
    on = a[chosen] + s[:, None] * (b - a)[chosen] + t[:, None] * (c - a)[chosen]
    return on + (normals[chosen] / areas[chosen][:, None]) * random.normal(0, 0.01, count)[:, None]


def trajectories() -> NDArray[np.float32]:
    """[32, 32, 61, 4] spheres of 3 to 5 cm that move straight through a box of 1.2 m, about 1 cm a time step."""
    random = np.random.default_rng(9)
    start, goal = random.uniform(-0.6, 0.6, (2, BATCHES, 1, SPHERES, 3))
    share = np.linspace(0, 0.5, HORIZON)[None, :, None, None]
    spheres = np.empty((BATCHES, HORIZON, SPHERES, 4), np.float32)
    spheres[..., :3] = start + share * (goal - start)
    spheres[..., 3] = random.uniform(0.03, 0.05, (BATCHES, 1, SPHERES))
    return spheres
