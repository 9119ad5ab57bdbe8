"""Levels of detail in pictures: at the distance where a level's error is a pixel, it looks like the scene itself."""

from __future__ import annotations

import numpy as np
import pytest

from lumigrad.client import Camera, Client, Gaussians
from lumigrad.client.formats.levels import GaussianLevels

FOCAL = 300.0


def decibels(client: Client, levels: GaussianLevels, level: int, pixels: float) -> float:
    """PSNR over the pixels that the scene covers, from the distance where the level's error is `pixels` pixels."""
    low, high = levels.bounds[0, 0].astype(float)
    centre, radius = (low + high) / 2, float(np.linalg.norm(high - low)) / 2
    distance = float(levels.errors[0, level]) * FOCAL / pixels + radius
    size = 2 * int(min(radius / distance * FOCAL, 200)) + 8
    k = np.array([[FOCAL, 0, size / 2], [0, FOCAL, size / 2], [0, 0, 1]])
    total = covered = 0.0
    for direction in ((0.0, -0.3, -1.0), (1.0, -0.5, 0.2)):
        eye = centre + distance * np.array(direction) / np.linalg.norm(direction)
        view = Camera.look_at(eye, centre, (0, -1, 0)).view_matrix
        camera = Camera.from_view_matrix(view, k, size, size)
        seen = [
            client.render(levels.read(0, each), camera, outputs=("color", "alpha"), antialiased=True)
            for each in (0, level)
        ]
        mask = seen[0].alpha.squeeze() > 0.01
        total += float(np.square(seen[0].color - seen[1].color)[mask].sum())
        covered += 3.0 * float(mask.sum())
    return float(-10 * np.log10(total / covered))


def vase() -> Gaussians:
    """The vase without its surroundings, so that its box says where it is."""
    every = Gaussians.load("sample:vase")
    assert every.quats is not None and every.scales is not None and every.sh is not None
    inside = np.linalg.norm(every.means - np.median(every.means, axis=0), axis=1) < 2
    inside &= every.scales.max(axis=1) < 0.1
    arrays = (every.means, every.quats, every.scales, every.opacities)
    return Gaussians(*(array[inside] for array in arrays), sh=every.sh[inside])


@pytest.mark.parametrize(("level", "least"), [(1, 31.0), (2, 26.0)])
def test_a_level_whose_error_is_a_pixel_looks_like_the_scene(client: Client, level: int, least: float) -> None:
    levels = GaussianLevels.of(vase())
    # Only pixels that the vase covers count: the empty ones are always right.
    assert decibels(client, levels, level, 1.0) > least
