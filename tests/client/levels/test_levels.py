"""Levels of detail: what merging keeps, and what pages promise to renderers."""

from __future__ import annotations

import numpy as np
import pytest

from lumigrad.client import Gaussians, InvalidArgument
from lumigrad.client.formats.clustering import morton_order
from lumigrad.client.formats.levels import GaussianLevels
from lumigrad.client.formats.levels.coarsening import Page
from lumigrad.client.formats.levels.merging import areas_of, covariances_of, merged
from lumigrad.client.formats.levels.ordering import merging_order, pages_of
from lumigrad.client.formats.scene import StoredScene
from support.gaussians.clouds import cloud, gaussians_of
from support.rotations import rotation


def scene(count: int, seed: int = 0) -> StoredScene:
    return StoredScene.of(gaussians_of(cloud(count=count, seed=seed)), "scene.ply")


def covariance(quat: np.ndarray, scales: np.ndarray) -> np.ndarray:
    turn = rotation(quat)
    return turn @ np.diag(scales.astype(float) ** 2) @ turn.T


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
        # Opaque Gaussians become wider, by the same factor in all directions.
        widened = np.trace(covariances_of(coarse)[row]) / np.trace(expected)
        assert 1 - 1e-5 <= widened < 2 and (end - start > 1 or widened < 1 + 1e-5)
        np.testing.assert_allclose(covariances_of(coarse)[row], widened * expected, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(coarse.sh[row], np.einsum("n,nkd->kd", shares, fine.sh[start:end]), atol=1e-6)
        spread = shares @ (np.arange(start, end) + np.square(means - mean).sum(axis=1))
        np.testing.assert_allclose(variances[row], spread)


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


def blocked(opacity: float, count: int) -> float:
    """The light that coincident round Gaussians block, relative to the plane integral of one with opacity 1."""
    radii = np.linspace(0, 10, 20001)
    profile = 1 - (1 - opacity * np.exp(-(radii**2) / 2)) ** count
    return float(np.trapezoid(profile * radii, radii))


@pytest.mark.parametrize("opacity", [0.01, 0.3, 0.7, 0.99])
def test_what_coincides_blocks_as_much_as_before(opacity):
    one = scene(1)
    one = StoredScene(one.means, one.quats, np.full((1, 3), 0.2, np.float32), np.full(1, opacity, np.float32), one.sh)
    coarse, variances = merged(one.reordered(np.zeros(4, int)), np.array([0]), np.zeros(4))
    wider = (coarse.scales[0, 0] / 0.2) ** 2
    # The new width is the geometric mean of the old one and the one that would keep the mass.
    assert coarse.opacities[0] * wider**2 == pytest.approx(blocked(opacity, 4), rel=0.1)
    assert variances[0] == pytest.approx(0, abs=1e-12)


def test_what_lies_apart_keeps_its_mass():
    one = scene(1)
    apart = one.reordered(np.zeros(4, int))
    apart.means[:] += 100 * np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], np.float32)
    sparse, _ = merged(apart, np.array([0]), np.zeros(4))
    mass = (apart.opacities * areas_of(apart.scales)).sum()
    np.testing.assert_allclose(sparse.opacities * areas_of(sparse.scales), mass, rtol=0.3)


def test_a_wall_stays_closed():
    """Overlapping opaque discs on a grid, merged three times: most of what is behind them stays hidden."""
    grid = np.stack(np.meshgrid(*[np.arange(32) + 0.5] * 2, [0.0]), axis=-1).reshape(-1, 3)
    count = len(grid)
    wall = StoredScene(
        grid.astype(np.float32),
        np.tile(np.array([1, 0, 0, 0], np.float32), (count, 1)),
        np.tile(np.array([1.0, 1.0, 0.01], np.float32), (count, 1)),
        np.full(count, 0.9, np.float32),
        np.zeros((count, 1, 3), np.float32),
    )
    x, y = np.meshgrid(np.linspace(12, 20, 40), np.linspace(12, 20, 40))
    for page in Page.of(wall, 4).levels:
        through = np.ones_like(x)
        for mean, scales, opacity in zip(page.means, page.scales, page.opacities, strict=True):
            squared = ((x - mean[0]) ** 2 + (y - mean[1]) ** 2) / float(np.sort(scales)[1:].prod())
            through *= 1 - float(opacity) * np.exp(-squared / 2)
        assert through.mean() < 0.35


def test_pages_have_every_gaussian_and_levels_of_a_quarter():
    given = gaussians_of(cloud(count=1000))
    levels = GaussianLevels.of(given, page_rows=256)
    assert (levels.levels, levels.sh_degree) == (5, 1)
    # All pages but the last are at least half full.
    assert ((levels.counts[:-1, 0] >= 128) & (levels.counts[:-1, 0] <= 256)).all()
    np.testing.assert_array_equal(levels.counts[:, 1:], -(-levels.counts[:, :-1] // 4))
    assert (levels.counts[:, -1] == 1).all()
    read = [[levels.read(page, level) for level in range(5)] for page in range(len(levels))]
    assert [[len(part) for part in page] for page in read] == levels.counts.tolist()
    finest = np.concatenate([page[0].means for page in read])
    np.testing.assert_array_equal(np.sort(finest, axis=0), np.sort(given.means, axis=0))
    for page, bounds in zip(read, levels.bounds, strict=True):
        for part, (low, high) in zip(page, bounds, strict=True):
            stored = StoredScene.of(part, "page")
            reach = 3 * np.sqrt(np.einsum("nii->ni", covariances_of(stored)))
            assert (part.means - reach >= low - 1e-4).all() and (part.means + reach <= high + 1e-4).all()
        finest = StoredScene.of(page[0], "page")
        reach = 3 * np.sqrt(np.einsum("nii->ni", covariances_of(finest)))
        exact = [(finest.means - reach).min(axis=0), (finest.means + reach).max(axis=0)]
        np.testing.assert_allclose(bounds[0], exact, atol=1e-4)
        assert (np.diff(bounds[:, 0], axis=0) <= 0).all() and (np.diff(bounds[:, 1], axis=0) >= 0).all()
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


def test_pages_end_between_the_largest_cells():
    codes = np.sort(np.random.default_rng(0).integers(0, 1 << 40, 5000).astype(np.uint64))
    ends = list(pages_of(codes, 512, last=True))
    sizes = np.diff([0, *ends])
    assert ends[-1] == 5000 and (sizes <= 512).all() and (sizes[:-1] >= 256).all()
    for start, end in zip([0, *ends], ends[:-1], strict=False):
        window = codes[start + 255 : start + 513]
        assert codes[end - 1] ^ codes[end] == (window[:-1] ^ window[1:]).max()
    # Unless they are the last, Gaussians that do not fill a page are left over.
    assert list(pages_of(codes[:600], 512, last=False)) == list(pages_of(codes[:600], 512, last=True))[:1]
    assert list(pages_of(np.zeros(1000, np.uint64), 512, last=True)) == [512, 1000]


def test_runs_that_are_merged_are_compact():
    fine = scene(3000)
    order = merging_order(fine)
    np.testing.assert_array_equal(np.sort(order), np.arange(3000))
    runs = fine.means[order][: 3000 // 64 * 64].reshape(-1, 64, 3)
    spread = np.square(runs - runs.mean(axis=1, keepdims=True)).sum(axis=2).mean()
    curve = fine.means[morton_order(fine.means)][: 3000 // 64 * 64].reshape(-1, 64, 3)
    assert spread < 0.8 * np.square(curve - curve.mean(axis=1, keepdims=True)).sum(axis=2).mean()
