"""Spheres near a box of SIZE around the origin, for `lumigrad query`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import numpy as np

SIZE = (1.0, 0.7, 0.4)
# Runs the command with these arguments, in a folder with box.obj; --spheres is spheres.npy unless it is given.
Query = Callable[..., "subprocess.CompletedProcess[str]"]


def to_box(points: np.ndarray, size: tuple[float, ...] = SIZE, center: tuple[float, ...] = (0, 0, 0)) -> np.ndarray:
    """Signed distances of points [.., 3]."""
    outside = np.abs(points - np.array(center)) - np.array(size) / 2
    return np.linalg.norm(np.maximum(outside, 0), axis=-1) + np.minimum(outside.max(-1), 0)


def some_spheres(count: int = 60) -> np.ndarray:
    random = np.random.default_rng(0)
    return np.concatenate([random.uniform(-0.7, 0.7, (count, 3)), random.uniform(0, 0.1, (count, 1))], 1)


def swing(steps: int = 21, wall: float = 0.5) -> np.ndarray:
    """Two spheres, [T, 2, 4]: one goes along x past the end of the box and back into it, the other stays away."""
    x = np.linspace(1.2, wall, steps)
    moving = np.stack([x, 0 * x, 0 * x, 0 * x + 0.1], -1)
    still = np.broadcast_to([0.0, 2.0, 0.0, 0.1], (steps, 4))
    return np.stack([moving, still], 1)
