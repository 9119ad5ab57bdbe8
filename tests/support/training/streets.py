"""A training whose views each see a small part of its Gaussians: they are spread out, and cameras look outwards."""

from __future__ import annotations

import numpy as np

from lumigrad.client import Camera, Gaussians
from support.training.scenes import Lesson

# Bytes of a Gaussian of degree 1: its values with moments, and the activated scales and opacity.
ROW_BYTES = 4 * (3 * (3 + 4 + 3 + 1 + 12) + 4)


def street_lesson(count: int = 20_000, seed: int = 0) -> Lesson:
    """Gaussians of degree 1 on a disc, in random order, and the same Gaussians moved, resized and recoloured."""
    generator = np.random.default_rng(seed)
    angles, distances = generator.uniform(0, 2 * np.pi, count), 12 * np.sqrt(generator.uniform(0.2, 1, count))
    means = np.stack([distances * np.cos(angles), generator.uniform(-1, 1, count), distances * np.sin(angles)], axis=1)
    quats = generator.normal(size=(count, 4))
    quats /= np.linalg.norm(quats, axis=1, keepdims=True)
    scales = np.exp(generator.uniform(-3.5, -2.5, (count, 3)))
    opacities = generator.uniform(0.3, 0.9, count)
    sh = generator.uniform(-0.5, 0.5, (count, 4, 3)) * np.array([1, 0.3, 0.3, 0.3])[:, None]

    def scene(shift: float) -> Gaussians:
        return Gaussians(
            means + shift * generator.normal(size=(count, 3)),
            quats,
            scales * np.exp(3 * shift * generator.normal(size=(count, 3))),
            opacities,
            sh=sh + 3 * shift * generator.normal(size=sh.shape),
        )

    return Lesson(scene(0.03), scene(0.0), [_outwards(angle) for angle in np.linspace(0, 2 * np.pi, 8, endpoint=False)])


def _outwards(angle: float) -> Camera:
    x, z = np.cos(angle), np.sin(angle)
    return Camera.look_at((5 * x, 0, 5 * z), (6 * x, 0, 6 * z), (0, -1, 0), width=96, height=64, fov_degrees=30)


def assert_equal(found: object, expected: object) -> None:
    """Fails unless both are Gaussians with the same bits."""
    assert isinstance(found, Gaussians) and isinstance(expected, Gaussians)
    for name, tensor in expected.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], tensor, name)
