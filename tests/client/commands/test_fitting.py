"""The parts of `lumigrad fit`: similarity, initial scenes, held-out photographs, schedules."""

from __future__ import annotations

import math
import tracemalloc
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lumigrad.client import Camera, Client, InvalidArgument, Spheres
from lumigrad.client.datasets import Capture, Points, View
from lumigrad.client.fitting import evaluation
from lumigrad.client.fitting.background import Background
from lumigrad.client.fitting.beginning import extent_for, gaussians_at, spacing, spheres_at, surfels_at
from lumigrad.client.fitting.evaluation import (
    PhotographScore,
    Scores,
    color_map,
    exposed,
    exposures_nearby,
    matched,
    psnr,
    scored,
    ssim,
)
from lumigrad.client.fitting.first_view import first_view
from lumigrad.client.fitting.matching import Matched
from lumigrad.client.fitting.memory import check_memory, memory_of
from lumigrad.client.fitting.photograph import Photograph
from lumigrad.client.fitting.recipe import Checkpoint, Recipe, Schedule
from lumigrad.client.fitting.shot import Shot, divide, shots_of
from lumigrad.client.training.calls import TargetImages
from lumigrad.client.training.options import Mcmc
from lumigrad.client.transport.call import Call
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.target_image import TargetImage
from support.files.dataset_files import shots as dataset_shots
from support.files.dataset_files import write_cameras_json


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
    # Deviations from the window's mean, including those of padded zeros.
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
    # Coinciding points have some size as well.
    assert (spacing(np.concatenate([grid, grid[:1], grid[:1], grid[:1]])) > 0).all()
    with pytest.raises(InvalidArgument, match="more than 3 initial points, got 3"):
        spacing(grid[:3])
    points = Points(grid, np.full_like(grid, 0.25))
    gaussians = gaussians_at(points, 2)
    assert gaussians.sh is not None and gaussians.sh.shape == (64, 9, 3)
    assert spheres_at(points).radii == pytest.approx(0.5)


def test_surfels_are_flat_and_turned_at_random() -> None:
    generator = np.random.default_rng(0)
    points = Points(generator.normal(size=(200, 3)), generator.random((200, 3)))
    surfels, again = (surfels_at(points, 1, seed=4) for _ in range(2))
    assert surfels.is_flat and surfels.scales is not None and (surfels.scales[:, :2] > 0).all()
    np.testing.assert_array_equal(surfels.quats, again.quats)
    # No direction is preferred.
    assert np.abs(np.mean(surfels.quats, axis=0)).max() < 0.15


def test_a_recipe_of_surfels_has_the_losses_of_surfaces() -> None:
    recipe = Recipe(primitive="surfel", extent=4.0, steps=1000)
    loss, options = recipe.loss, recipe.trainer_options()
    assert loss.normal == 0.05 and loss.surface_start == 200
    assert loss.distortion == pytest.approx(Recipe(primitive="surfel").loss.distortion / 4)
    assert options["primitive"] == "surfel"
    assert Recipe().loss.normal == Recipe().loss.distortion == 0
    message = loss.message()
    assert (message.normal, message.surface_start) == (0.05, 200)


def test_a_recipe_depends_on_the_unit_of_length_as_the_scene_does() -> None:
    usual = Recipe(strategy="mcmc", poses=True, extent=6.0)
    assert usual.loss.scale == usual.loss.opacity == 0.01 and usual.looks["near"] is None
    for unit in (1e-3, 1e3):
        other = replace(usual, extent=6.0 * unit)
        assert other.loss.opacity == 0.01
        assert other.loss.scale * unit == pytest.approx(0.01)
        of_usual, of_other = usual.density, other.density
        assert isinstance(of_usual, Mcmc) and isinstance(of_other, Mcmc)
        assert of_other.noise * unit**2 == pytest.approx(of_usual.noise)
    tiny = replace(usual, extent=1e-6).density
    assert isinstance(tiny, Mcmc) and tiny.noise == 1e12
    small = replace(usual, extent=0.006).trainer_options()
    assert small["near"] == pytest.approx(6e-5)
    # Steps of the usual length would throw the cameras of a small scene around.
    assert small["refine_poses"].initial == pytest.approx(6e-7)
    assert "near" not in replace(usual, kind="spheres").trainer_options()


@pytest.mark.parametrize(("radius", "expected"), [(6.0, 6.6), (0.05, 3.0), (1e-15, 3.0)])
def test_the_length_of_a_fit_is_that_of_the_scene_if_cameras_are_close_together(radius: float, expected: float) -> None:
    turn = [2 * math.pi * k / 8 for k in range(8)]
    eyes = [(1 + radius * math.cos(angle), 2 + radius * math.sin(angle), 3) for angle in turn]
    cameras = [Camera.look_at(eye, (1, 2, 9), (0, 1, 0), width=8, height=8) for eye in eyes]
    positions = np.array([[1, 2, 6]] * 5 + [[1, 2, 400]], np.float32)
    assert extent_for(cameras, gaussians_at(Points(positions, np.zeros((6, 3))), 0)) == pytest.approx(
        expected, rel=1e-3
    )
    alone = extent_for(cameras[:1], spheres_at(Points(positions, np.zeros((6, 3)))))
    assert alone == pytest.approx(math.hypot(3, radius), rel=1e-3)


def test_every_photograph_is_fitted_or_held_out():
    fitted, held_out = divide(list(range(17)), 8)  # type: ignore[arg-type]
    assert held_out == [0, 8, 16]
    assert sorted([*fitted, *held_out]) == list(range(17))
    assert divide([1, 2], 0) == ([1, 2], [1, 2])  # type: ignore[arg-type]


def test_steps_see_each_photograph_once_before_any_again_and_small_ones_first():
    views = [view for (view,) in Schedule(5, 10, seed=3).views(0, 25)]
    assert all(sorted(views[first : first + 5]) == list(range(5, 10)) for first in (0, 5))
    assert all(sorted(views[first : first + 5]) == list(range(5)) for first in (10, 15, 20))
    # A fit that resumes goes on with the photographs that were left out.
    assert Schedule(5, 10, seed=3).views(7, 18) == [[view] for view in views[7:]]
    assert Schedule(5, 10, seed=4).views(0, 25) != [[view] for view in views]


def test_half_a_photograph_shows_the_same(client: Client):
    generator = np.random.default_rng(0)
    scene = gaussians_at(Points(generator.normal(size=(50, 3)), generator.random((50, 3))), 0)
    camera = Camera.opencv(90.0, 92.0, 30.0, 21.0, np.eye(3), [0.0, 0.0, 6.0], 64, 45)
    picture = np.rint(255 * client.render(scene, camera).color.clip(0, 1)).astype(np.uint8)
    mask = np.zeros((45, 64), np.uint8)
    mask[:, 32:] = 255
    shot = Shot("a", camera, lambda: Photograph(picture, mask))
    half, taken = shot.halved, shot.halved.read()
    assert taken.pixels.shape == (22, 32, 3) and taken.mask is not None and taken.mask.shape == (22, 32)
    assert not taken.mask[:, :16].any() and (taken.mask[:, 16:] == 255).all()
    assert psnr(client.render(scene, half.camera).color, taken.colors) > 35
    assert [each.camera.width for each in Schedule(1, 1, 0).shots([shot])] == [64, 32]
    assert Schedule(1, 0, 0).shots([shot]) == [shot]


@pytest.mark.parametrize("steps", [1, 10, 100, 7000])
@pytest.mark.parametrize("strategy", ["mcmc", "adaptive", "none"])
def test_a_recipe_of_any_length_is_valid(steps: int, strategy: str):
    recipe = Recipe(steps=steps, strategy=strategy, cap=100, poses=True)  # type: ignore[arg-type]
    options = recipe.trainer_options()
    # The rates of means fall to a tenth.
    assert options["total_steps"] == 2 * steps
    assert (options["density"] is None) == (strategy == "none")
    if options["density"] is not None:
        options["density"].message(1.0)


def test_exposures_lie_between_those_of_neighbours(client: Client):
    generator = np.random.default_rng(0)
    scene = Spheres(generator.normal(scale=0.6, size=(60, 3)), generator.random((60, 3)), np.full(60, 0.2))
    cameras = [Camera.orbit((0, 0, 0), 4.0, azimuth, 60.0, width=48, height=40) for azimuth in (0, 100, 200)]
    # The second photograph lies between the others by name; its own exposure is not used.
    taken = []
    for camera, name, gain in zip(cameras, ("a", "b", "c"), (0.4, 0.9, 0.6), strict=True):
        picture = gain * client.render(scene, camera).color
        levels = Photograph(np.rint(255 * picture.clip(0, 1)).astype(np.uint8))
        taken.append(Shot(name, camera, partial(copy, levels)))
    found = exposures_nearby(client, scene, taken[1:2], [taken[2], taken[0]], {})
    assert found is not None and found.shape == (1, 3, 4)
    assert found[0] == pytest.approx(0.5 * np.eye(3, 4), abs=0.05)
    assert exposures_nearby(client, scene, taken, [], {}) is None


def photograph(border: tuple[int, ...], inside: tuple[int, ...]) -> np.ndarray:
    picture = np.empty((12, 16, 4), np.uint8)
    picture[:] = border
    picture[3:9, 4:12] = inside
    return picture


RED = (200, 20, 20, 255)


@pytest.mark.parametrize(
    ("choice", "photographs", "color", "is_transparent"),
    [
        ("auto", [photograph((255, 255, 254, 255), RED)], (1, 1, 1), False),
        ("auto", [photograph((3, 0, 2, 255), RED)], (0, 0, 0), False),
        ("auto", [photograph((51, 102, 204, 255), RED)] * 2, (0.2, 0.4, 0.8), False),
        # Two walls, one for each photograph: they belong to the scene.
        ("auto", [photograph((51, 102, 204, 255), RED), photograph((204, 102, 51, 255), RED)], (0, 0, 0), False),
        ("auto", [photograph((255, 255, 255, 0), RED)], (0, 0, 0), True),
        ("white", [photograph((0, 0, 0, 0), RED)], (1, 1, 1), False),
        ("image", [photograph((255, 255, 255, 255), RED)], (0, 0, 0), False),
    ],
)
def test_the_background_is_found_in_the_photographs(choice, photographs, color, is_transparent):
    background = Background.of(photographs, choice)
    assert background.color == pytest.approx(color, abs=1e-3)
    assert background.is_transparent == is_transparent


def test_a_background_is_told_by_its_name(tmp_path: Path):
    walls = [photograph((51, 102, 204, 255), RED), photograph((204, 102, 51, 255), RED)]
    found = Background.of(walls, "auto")
    assert str(found) == str(Background.of(walls, "image")) == "image" and found.opposite.startswith("one colour")
    assert str(Background.of(walls, "black")) == "black" and Background.of(walls, "black").opposite == "not black"
    recipe = Recipe(background=found)
    Checkpoint("id", "lease", 9, 8, recipe, Scores(1.0, 1.0, 1.0, 1.0)).write(tmp_path / "checkpoint.json")
    assert Checkpoint.read(tmp_path / "checkpoint.json").recipe == recipe


def test_transparent_pixels_show_the_background_and_do_not_count_as_colours(tmp_path: Path):
    taken = photograph((9, 9, 9, 0), (200, 100, 0, 255))
    taken[0, 0] = (100, 100, 100, 51)
    white = Background((1.0, 1.0, 1.0)).behind(taken)
    assert white[5, 5].tolist() == [200, 100, 0] and white[0, 1].tolist() == [255, 255, 255]
    assert white[0, 0].tolist() == [224, 224, 224]
    Image.fromarray(taken).save(tmp_path / "a.png")
    camera = Camera.look_at((0, 0, 5), (0, 0, 0), width=32, height=24)
    shot = Shot.of(Matched.of(View("a", camera, tmp_path / "a.png")), 100, Background(is_transparent=True))
    assert shot.camera.width == 16 and shot.read().pixels[0, 1].tolist() == [0, 0, 0]
    target = shot.target_image()
    assert target.mask is not None and target.mask[0, 0] == 51 and target.mask[5, 5] == 255
    assert shot.target_bytes == sum(array.nbytes for array in target.tensors.values())
    # A rendering that is wrong only where the photograph is transparent.
    stray = shot.read().colors.copy()
    stray[0, 1] = 1.0
    score = PhotographScore.of("a", stray, shot.read())
    assert score.psnr < 30 and score.opaque_psnr == 120
    half = shot.halved.read()
    assert half.opacity is not None and half.opacity.shape == (6, 8)
    recipe = Recipe(background=Background(is_transparent=True))
    assert recipe.loss.alpha > 0 == Recipe().loss.alpha


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set of two photographs with pinholes."""
    for k in range(2):
        picture = np.random.default_rng(k).integers(0, 255, (300, 500, 3), np.uint8)
        Image.fromarray(picture).save(tmp_path / f"photo_{k}.jpg")
    write_cameras_json(tmp_path / "cameras.json", dataset_shots(2), 500, 300, (400.0, 400.0))
    return tmp_path


def test_photographs_are_reduced_with_their_cameras_and_read_when_asked_for(folder: Path):
    capture = Capture.load(folder, images=".")
    found, background = shots_of(capture, 128, "black")
    assert background == Background() and [(each.camera.width, each.camera.height) for each in found] == [(128, 77)] * 2
    assert found[0].read().pixels.shape == (77, 128, 3) and found[0].halved.read().pixels.shape == (38, 64, 3)
    whole = shots_of(capture, 500, "black")[0][0].read().pixels
    np.testing.assert_array_equal(whole, np.asarray(Image.open(folder / "photo_0.jpg")))
    (folder / "photo_1.jpg").write_bytes((folder / "photo_1.jpg").read_bytes()[:5000])
    with pytest.raises(InvalidArgument, match=r"path: .*photo_1\.jpg: expected a picture: image file is truncated"):
        found[1].read()


class Store:
    """Takes target images, and keeps none."""

    def put(self, image: TargetImage, call: Call) -> SceneHandle:
        assert image.color is not None
        return SceneHandle("a", 1, f"{image.width} {image.color.sum()}", "target", 1, image.color.nbytes)


def test_the_memory_of_a_fit_does_not_grow_with_its_photographs(tmp_path: Path):
    """All photographs together take 65 MB, and at half the size 16 MB."""
    for k in range(80):
        picture = np.full((450, 600, 3), 3 * k, np.uint8)
        Image.fromarray(picture).save(tmp_path / f"photo_{k}.jpg")
    write_cameras_json(tmp_path / "cameras.json", dataset_shots(80), 600, 450, (400.0, 400.0))
    tracemalloc.start()
    try:
        found, _ = shots_of(Capture.load(tmp_path, images="."), 600, "auto")
        views = Schedule(len(found), 1, 0).shots(found)
        hashes = TargetImages([shot.target_image for shot in views]).put(Store(), Call(9.0))  # type: ignore[arg-type]
        scores = scored((np.zeros((450, 600, 3), np.float32) for _ in found[::20]), found[::20])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(set(hashes)) == 160 and scores.psnr > 0
    assert peak < 35e6


def test_photographs_that_the_worker_cannot_hold_are_refused_with_what_helps():
    camera = Camera.look_at((0, 0, 5), (0, 0, 0), width=2000, height=1500)
    shots = [Shot(str(k), camera, lambda: Photograph(np.zeros((1, 1, 3), np.uint8)), has_mask=k < 2) for k in range(4)]
    assert memory_of(shots) == 2000 * 1500 * 14
    scene = Spheres(np.zeros((100, 3)), np.zeros((100, 3)), np.ones(100))
    for limit in (0, memory_of(shots) + 5600):
        check_memory(shots, scene, limit)
    said = r"max_size: expected .* 10\.0 MiB together, .* got 40\.1 MiB at 2000 pixels, .*--max-size 999 fits, "
    with pytest.raises(InvalidArgument, match=said):
        check_memory(shots, scene, 10 << 20)


def test_the_size_that_is_named_fits_photographs_of_several_sizes():
    def shot(name: str, width: int, height: int) -> Shot:
        camera = Camera.look_at((0, 0, 5), (0, 0, 0), width=width, height=height)
        return Shot(name, camera, lambda: Photograph(np.zeros((1, 1, 3), np.uint8)), has_mask=False)

    shots = [shot("large", 1600, 1200), *(shot(str(k), 400, 300) for k in range(100))]
    scene = Spheres(np.zeros((100, 3)), np.zeros((100, 3)), np.ones(100))
    with pytest.raises(InvalidArgument, match=r"--max-size (\d+) fits") as caught:
        check_memory(shots, scene, 39_000_000)
    side = int(str(caught.value).partition("--max-size ")[2].split()[0])
    assert 36e6 + 3 * side * side * 0.75 < 39e6 < 36e6 + 3 * (side + 10) * (side + 10) * 0.75
    with pytest.raises(InvalidArgument, match="the scene leaves no room for any; start the worker with"):
        check_memory(shots, scene, 3000)


def test_scores_are_the_same_for_images_of_many_bands():
    generator = np.random.default_rng(0)
    x = generator.random((150, 20, 3)).astype(np.float32)
    y = np.clip(x + generator.normal(scale=0.1, size=x.shape), 0, 1)
    mask = generator.integers(0, 255, x.shape[:2], np.uint8)
    weights = mask / mask.sum(dtype=np.float64)
    assert psnr(x, y, mask) == pytest.approx(-10 * np.log10((weights * np.square(x - y).mean(-1)).sum()))
    # A band's windows reach into its neighbours.
    assert ssim(x, y) == pytest.approx(float(evaluation._similarity(x.astype(float), y).mean()), abs=1e-12)
    matrix = np.array([[0.5, 0.1, 0, 0.2], [0, 0.7, 0.1, 0], [0.1, 0, 0.4, 0.1]])
    assert color_map(x, exposed(matrix, x), mask) == pytest.approx(matrix, abs=1e-5)


def test_the_first_view_is_one_from_the_middle_of_a_capture():
    up = np.array([0.0, 0.0, 1.0])
    eyes = [(azimuth, elevation, 4.0) for azimuth in (0.0, 180.0) for elevation in (5.0, 70.0)]
    eyes += [(0.0, 28.0, 4.0), (180.0, 28.0, 6.0)]
    cameras = [
        Camera.orbit((1, 2, 3), distance, azimuth, elevation, up, fov_degrees=50, width=64, height=48)
        for azimuth, elevation, distance in eyes
    ]
    capture = Capture(tuple(View(str(index), camera) for index, camera in enumerate(cameras)))
    view = first_view(capture, Background((1.0, 1.0, 1.0)))
    assert view.eye == pytest.approx(cameras[4].model.eye, abs=1e-4)
    assert view.target == pytest.approx((1, 2, 3), abs=1e-4)
    assert view.fov_degrees == pytest.approx(50, abs=1e-2) and view.background == (1, 1, 1)
    tiny = [Camera.orbit((0, 0, 0), 4e-6, azimuth, 30.0, up, width=64, height=48) for azimuth in (20.0, 200.0)]
    view = first_view(Capture(tuple(View(str(index), camera) for index, camera in enumerate(tiny))), Background())
    assert view.eye == pytest.approx(tiny[0].model.eye, abs=1e-10)
