"""Random Gaussians for tests of file formats, and comparisons of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lumigrad.client import Gaussians

SH_0 = 1 / (2 * math.sqrt(math.pi))


@dataclass
class Cloud:
    """The arrays of a scene that a test writes, and compares with those that are read."""

    means: np.ndarray
    quats: np.ndarray
    scales: np.ndarray
    opacities: np.ndarray
    sh: np.ndarray

    def __len__(self) -> int:
        return len(self.means)

    @property
    def base_colors(self) -> np.ndarray:
        return 0.5 + SH_0 * self.sh[:, 0]


def cloud(count: int = 300, degree: int = 1, seed: int = 0) -> Cloud:
    """Gaussians whose values every format can represent."""
    generator = np.random.default_rng(seed)
    quats = generator.normal(size=(count, 4))
    sh = generator.uniform(-0.9, 0.9, size=(count, (degree + 1) ** 2, 3))
    return Cloud(
        generator.normal(size=(count, 3)) * (1.0, 2.0, 5.0),
        quats / np.linalg.norm(quats, axis=1, keepdims=True),
        np.exp(generator.uniform(-6, -1, size=(count, 3))),
        generator.uniform(0.02, 0.98, size=count),
        sh,
    )


def same_rotations(first: np.ndarray, second: np.ndarray) -> float:
    """The largest angle in radians between two arrays of quaternions [N, 4]."""
    dots = np.abs((first.astype(float) * second).sum(axis=1))
    return float((2 * np.arccos(np.minimum(dots / np.linalg.norm(first, axis=1), 1.0))).max(initial=0.0))


def gaussians_of(made: Cloud) -> Gaussians:
    return Gaussians(made.means, made.quats, made.scales, made.opacities, sh=made.sh)


def assert_close(read: Gaussians, made: Cloud, *, means: float, scales: float, opacity: float, sh: float, angle: float):
    """Compare with absolute tolerances, that of the scales being relative; `sh` bounds all coefficients."""
    np.testing.assert_allclose(read.means, made.means, rtol=0, atol=means)
    np.testing.assert_allclose(read.scales, made.scales, rtol=scales)
    np.testing.assert_allclose(read.opacities, made.opacities, rtol=0, atol=opacity)
    np.testing.assert_allclose(read.sh, made.sh[:, : read.sh.shape[1]], rtol=0, atol=sh)
    assert same_rotations(read.quats, made.quats) < angle
    np.testing.assert_allclose(np.linalg.norm(read.quats, axis=1), 1.0, atol=1e-6)


def post(count: int = 400) -> Gaussians:
    """An upright post, red above (at negative y) and blue below, around the origin."""
    generator = np.random.default_rng(0)
    means = generator.uniform((-0.2, -1, -0.2), (0.2, 1, 0.2), (count, 3))
    colors = np.where(means[:, 1:2] < 0, [[0.9, 0.1, 0.1]], [[0.1, 0.1, 0.9]])
    quats = generator.normal(size=(count, 4))
    return Gaussians(means, quats, np.full((count, 3), 0.08), np.full(count, 0.95), colors=colors)
