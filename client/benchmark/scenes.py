"""What is measured where no scene is given."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lumigrad.client.gaussians import Gaussians
from lumigrad.client.mesh import Mesh

# Steps around the ring, and around its tube; each makes two triangles.
_RING, _TUBE = 64, 40


def cloud(count: int) -> Gaussians:
    """So many Gaussians in a ball of radius 1, which together cover about as much of a picture as a trained scene."""
    generator = np.random.default_rng(0)
    means = generator.normal(size=(count, 3))
    means *= np.cbrt(generator.random((count, 1))) / np.linalg.norm(means, axis=1, keepdims=True)
    quats = generator.normal(size=(count, 4))
    scales = 0.6 / np.cbrt(count) * np.exp(generator.normal(-1.0, 0.4, (count, 3)))
    return Gaussians(means, quats, scales, generator.random(count), colors=generator.random((count, 3)))


def ring() -> Mesh:
    """A torus of radii 0.7 and 0.3 m and 5,120 triangles, in the same ball."""
    around, across = np.meshgrid(np.arange(_RING), np.arange(_TUBE), indexing="ij")
    angle, tilt = 2 * np.pi * around / _RING, 2 * np.pi * across / _TUBE
    reach = 0.7 + 0.3 * np.cos(tilt)
    vertices = np.stack([reach * np.cos(angle), reach * np.sin(angle), 0.3 * np.sin(tilt)], axis=-1)
    first, second = around * _TUBE, (around + 1) % _RING * _TUBE
    after = (across + 1) % _TUBE
    corners = first + across, second + across, second + after, first + after
    faces = np.stack([corners[index] for index in (0, 1, 2, 0, 2, 3)], axis=-1)
    return Mesh(vertices.reshape(-1, 3), faces.reshape(-1, 3))


def spheres(count: int) -> npt.NDArray[np.float32]:
    """[count, 4] centres in and around the ring, and radii of 2 cm; metres."""
    places = np.random.default_rng(0).uniform(-1.2, 1.2, (count, 3))
    return np.concatenate([places, np.full((count, 1), 0.02)], axis=1).astype(np.float32)
