"""Levels of detail: what merging keeps, and what pages promise to renderers."""

from __future__ import annotations

import numpy as np
import pytest

from lumigrad.client import Gaussians, InvalidArgument
from lumigrad.client.formats.levels import GaussianLevels
from lumigrad.client.formats.levels.merging import areas_of, covariances_of, merged
from lumigrad.client.formats.scene import StoredScene
from support.gaussians.clouds import cloud, gaussians_of


def scene(count: int, seed: int = 0) -> StoredScene:
    return StoredScene.of(gaussians_of(cloud(count=count, seed=seed)), "scene.ply")


def covariance(quat: np.ndarray, scales: np.ndarray) -> np.ndarray:
    w, x, y, z = quat.astype(float) / np.linalg.norm(quat.astype(float))
    rotation = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
    return rotation @ np.diag(scales.astype(float) ** 2) @ rotation.T


def test_merged_gaussians_have_the_moments_of_their_sum():
    fine = scene(11)
    starts = np.array([0, 4, 5, 9])
    coarse, variances = merged(fine, starts, np.arange(11.0))
    for row, (start, end) in enumerate(zip(starts, [*starts[1:], 11], strict=True)):
        part = range(start, end)
        weights = np.array([float(fine.opacities[k]) * areas_of(fine.scales)[k] for k in part])
        shares = weights / weights.sum()
        means = fine.means[start:end].astype(float)
        mean = shares @ means
        expected = sum(
            s * (covariance(fine.quats[k], fine.scales[k]) + np.outer(m - mean, m - mean))
            for s, k, m in zip(shares, part, means, strict=True)
        )
        np.testing.assert_allclose(coarse.means[row], mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(covariances_of(coarse)[row], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(coarse.sh[row], np.einsum("n,nkd->kd", shares, fine.sh[start:end]), atol=1e-6)
        spread = shares @ (np.arange(start, end) + np.square(means - mean).sum(axis=1))
        np.testing.assert_allclose(variances[row], spread)
        mass = coarse.opacities[row] * areas_of(coarse.scales[row : row + 1])[0]
        assert mass <= weights.sum() * (1 + 1e-5)


def test_a_gaussian_that_is_alone_stays_as_it_is():
    fine = scene(5)
    coarse, variances = merged(fine, np.arange(5), np.zeros(5))
    for name in ("means", "quats", "scales", "opacities", "sh"):
        np.testing.assert_allclose(getattr(coarse, name), getattr(fine, name), rtol=1e-6)
    assert not variances.any()


def test_areas_are_those_of_the_shadows_of_ellipsoids():
    # A sphere, a disc seen from all directions on average, and a needle.
    np.testing.assert_allclose(areas_of(np.array([[2.0, 2, 2]])), [4 * np.pi])
    np.testing.assert_allclose(areas_of(np.array([[1.0, 1, 0]])), [np.pi / 2], rtol=0.011)
    assert areas_of(np.array([[1.0, 0, 0]]))[0] == 0


def test_opacities_of_what_overlaps_and_of_what_lies_apart():
    one = scene(1)
    together = one.reordered(np.zeros(4, int))
    blocked, _ = merged(together, np.array([0]), np.zeros(4))
    np.testing.assert_allclose(blocked.opacities, 1 - (1 - one.opacities) ** 4, rtol=1e-4)
    apart = StoredScene(together.means.copy(), together.quats, together.scales, together.opacities, together.sh)
    apart.means[:] += 100 * np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], np.float32)
    sparse, _ = merged(apart, np.array([0]), np.zeros(4))
    mass = (apart.opacities * areas_of(apart.scales)).sum()
    np.testing.assert_allclose(sparse.opacities * areas_of(sparse.scales), mass, rtol=1e-3)


def test_pages_have_every_gaussian_and_levels_of_a_quarter():
    given = gaussians_of(cloud(count=1000))
    levels = GaussianLevels.of(given, page_rows=256)
    assert (len(levels), levels.levels, levels.sh_degree) == (4, 5, 1)
    assert levels.counts.tolist() == [[256, 64, 16, 4, 1]] * 3 + [[232, 58, 15, 4, 1]]
    read = [[levels.read(page, level) for level in range(5)] for page in range(4)]
    assert [[len(part) for part in page] for page in read] == levels.counts.tolist()
    finest = np.concatenate([page[0].means for page in read])
    np.testing.assert_array_equal(np.sort(finest, axis=0), np.sort(given.means, axis=0))
    for page, (low, high) in zip(read, levels.bounds, strict=True):
        for part in page:
            stored = StoredScene.of(part, "page")
            reach = 3 * np.sqrt(np.einsum("nii->ni", covariances_of(stored)))
            assert (part.means - reach >= low - 1e-4).all() and (part.means + reach <= high + 1e-4).all()
    assert not levels.errors[:, 0].any() and (np.diff(levels.errors, axis=1) > 0).all()


@pytest.mark.parametrize(("page", "level", "name"), [(-1, 0, "page"), (1, 0, "page"), (0, 5, "level")])
def test_pages_and_levels_that_do_not_exist_are_refused(page, level, name):
    levels = GaussianLevels.of(gaussians_of(cloud(count=256)))
    with pytest.raises(InvalidArgument, match=rf"^{name}: expected 0 to \d, got {[page, level][name == 'level']}"):
        levels.read(page, level)


def test_scenes_without_gaussians_have_no_pages():
    none = Gaussians(np.zeros((0, 3)), np.zeros((0, 4)), np.zeros((0, 3)), np.zeros(0), sh=np.zeros((0, 1, 3)))
    with pytest.raises(InvalidArgument, match="expected at least one Gaussian, got none"):
        GaussianLevels.of(none)
