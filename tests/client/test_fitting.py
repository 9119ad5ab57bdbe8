"""The parts of `lumigrad fit`: similarities, beginnings, divisions."""

from __future__ import annotations

import numpy as np
import pytest

from lumigrad.client import Camera, Client, InvalidArgument, Spheres
from lumigrad.client.datasets import Points
from lumigrad.client.fitting.beginning import Shot, divide, gaussians_at, spacing, spheres_at
from lumigrad.client.fitting.evaluation import exposures_nearby, matched, psnr, ssim
from lumigrad.client.fitting.recipe import Recipe


def test_ssim_is_the_mean_over_windows_of_the_definition():
    generator = np.random.default_rng(0)
    x = generator.random((14, 17, 3))
    y = np.clip(x + generator.normal(scale=0.1, size=x.shape), 0, 1)
    offsets = np.arange(-5, 6)
    weights = np.exp(-(offsets[:, None] ** 2 + offsets**2) / (2 * 1.5**2))
    weights /= weights.sum()
    windows = [
        np.lib.stride_tricks.sliding_window_view(np.pad(picture, ((5, 5), (5, 5), (0, 0))), (11, 11), axis=(0, 1))
        for picture in (x, y)
    ]
    mean_x, mean_y = (np.sum(weights * window, axis=(-1, -2), keepdims=True) for window in windows)
    # Deviations from the mean of the window, also of the zeros in it.
    deviation_x, deviation_y = windows[0] - mean_x, windows[1] - mean_y
    variance_x, variance_y, covariance = (
        np.sum(weights * product, axis=(-1, -2), keepdims=True)
        for product in (deviation_x**2, deviation_y**2, deviation_x * deviation_y)
    )
    luminance = (2 * mean_x * mean_y + 1e-4) / (mean_x**2 + mean_y**2 + 1e-4)
    expected = np.mean(luminance * (2 * covariance + 9e-4) / (variance_x + variance_y + 9e-4))
    assert ssim(x, y) == pytest.approx(expected, abs=1e-9)
    assert ssim(x, x) == pytest.approx(1.0)
    assert psnr(x, x + 0.1) == pytest.approx(20.0)


def test_only_what_the_mask_lets_through_counts():
    generator = np.random.default_rng(0)
    x = generator.random((14, 17, 3))
    y = x.copy()
    y[:, :8] = 0
    mask = np.zeros((14, 17), np.uint8)
    mask[:, 8:] = 255
    assert psnr(x, y, mask) == pytest.approx(120.0)
    mask[:, 9:] = 0
    assert psnr(x, y, mask) == pytest.approx(120.0)
    assert ssim(x, y, mask) > ssim(x, y)


def test_matched_colours_undo_an_exposure():
    generator = np.random.default_rng(0)
    x = generator.random((14, 17, 3)).astype(np.float32)
    exposed = x * [0.5, 0.6, 0.7] + 0.1
    assert psnr(matched(x, exposed), exposed) > 90


def test_sizes_follow_the_distance_to_neighbours():
    grid = np.stack(np.meshgrid(*[np.arange(4.0)] * 3), axis=-1).reshape(-1, 3)
    assert spacing(grid) == pytest.approx(1.0)
    # Points in one place have some size, too.
    assert (spacing(np.concatenate([grid, grid[:1], grid[:1], grid[:1]])) > 0).all()
    with pytest.raises(InvalidArgument, match="more than 3 initial points, got 3"):
        spacing(grid[:3])
    points = Points(grid, np.full_like(grid, 0.25))
    gaussians = gaussians_at(points, 2)
    assert gaussians.sh is not None and gaussians.sh.shape == (64, 9, 3)
    assert spheres_at(points).radii == pytest.approx(0.5)


def test_every_photograph_is_fitted_or_held_out():
    fitted, held_out = divide(list(range(17)), 8)  # type: ignore[arg-type]
    assert held_out == [0, 8, 16]
    assert sorted([*fitted, *held_out]) == list(range(17))
    assert divide([1, 2], 0) == ([1, 2], [1, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [1, 10, 100, 7000])
@pytest.mark.parametrize("strategy", ["mcmc", "adaptive", "none"])
def test_a_recipe_of_any_length_is_valid(steps: int, strategy: str):
    recipe = Recipe(steps=steps, strategy=strategy, cap=100, poses=True)  # type: ignore[arg-type]
    options = recipe.trainer_options()
    assert options["total_steps"] == steps
    assert (options["density"] is None) == (strategy == "none")
    if options["density"] is not None:
        options["density"].message(1.0)


def test_exposures_lie_between_those_of_neighbours(client: Client):
    generator = np.random.default_rng(0)
    scene = Spheres(generator.normal(scale=0.6, size=(60, 3)), generator.random((60, 3)), np.full(60, 0.2))
    cameras = [Camera.orbit((0, 0, 0), 4.0, azimuth, 60.0, width=48, height=40) for azimuth in (0, 100, 200)]
    # The second is in the middle, by name, and its own photograph is not looked at.
    taken = []
    for camera, name, gain in zip(cameras, ("a", "b", "c"), (0.4, 0.9, 0.6), strict=True):
        picture = gain * client.render(scene, camera).color
        taken.append(Shot(name, np.rint(255 * picture.clip(0, 1)).astype(np.uint8), None, camera))
    found = exposures_nearby(client, scene, taken[1:2], [taken[2], taken[0]])
    assert found is not None and found.shape == (1, 3, 4)
    assert found[0] == pytest.approx(0.5 * np.eye(3, 4), abs=0.05)
    assert exposures_nearby(client, scene, taken, []) is None
