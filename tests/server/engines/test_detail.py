"""Boxes of Gaussians that may be in a picture, and the levels of pages that cameras need."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels import gaussians
from lumigrad.kernels.gaussians import Camera, Gaussians, Settings
from lumigrad.server.engines.detail import NONE, Detail, Levels, chosen, fitted, reached, rows_of
from lumigrad.server.engines.levels import LevelTable
from lumigrad.v1 import gaussians_pb2

SETTINGS = {
    "default": {},
    "weak ones": {"alpha_min": 1e-4},
    "strong ones": {"alpha_min": 0.1},
    "blurred": {"eps2d": 9.0},
    "sharp": {"eps2d": 0.0},
    "weak and blurred": {"alpha_min": 1e-5, "eps2d": 4.0},
    "enlarged": {"scale_modifier": 3.0},
    "reduced": {"scale_modifier": 0.25},
    "surfels": {"primitive": "surfel"},
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("size", [6, 32])
def test_gaussians_up_to_a_fifth_of_the_picture_lose_nothing(size: int, name: str) -> None:
    """Ellipses of an orthographic camera have an exact reach in standard deviations; surfels need a pinhole camera."""
    random, settings = np.random.default_rng(size), Settings(**SETTINGS[name])
    shape = {} if settings.surfels else {"model": "orthographic"}
    camera = Camera.opencv(size, size, size / 2, size / 2, np.eye(3), (0, 0, 0), size, size, **shape)
    message = gaussians_pb2.GaussianSettings(
        primitive=gaussians_pb2.PRIMITIVE_SURFEL if settings.surfels else gaussians_pb2.PRIMITIVE_UNSPECIFIED,
        **{key: value for key, value in SETTINGS[name].items() if key != "primitive"},
    )
    drawn = left_out = 0
    for _ in range(200):
        place = np.array([*random.uniform(-1, 1, 2) * random.choice([1, 3]), 1.0])
        sizes = 0.19 * random.choice([1e-3, random.uniform(), 1.0]) * np.array([1, 1, 1e-6])
        means, scales = (torch.from_numpy(values[None]).float() for values in (place, sizes))
        rest = {"quats": torch.tensor([[1.0, 0, 0, 0]]), "opacities": torch.ones(1), "colors": torch.ones(1, 3)}
        one = Gaussians(means=means, scales=scales, **rest)
        box = np.float32([[place - 3 * sizes, place + 3 * sizes]])
        is_drawn = bool(gaussians.forward(one, [camera], settings, outputs=("alpha",)).outputs["alpha"].any())
        may_be = bool(reached(box, [camera], message)[0])
        assert may_be or not is_drawn, (place, sizes)
        drawn, left_out = drawn + is_drawn, left_out + (not may_be)
    assert min(drawn, left_out) > 20


PAGES, LEVELS = 200, 5


def table(seed: int) -> LevelTable:
    """Boxes around the origin that grow with the level, some around the cameras."""
    random = np.random.default_rng(seed)
    middles = random.uniform(-40, 40, (PAGES, 1, 3))
    reach = np.cumsum(random.uniform(0, 6, (PAGES, LEVELS, 3)), axis=1)
    return LevelTable(
        bounds=np.stack([middles - reach, middles + reach], axis=2).astype(np.float32),
        counts=np.tile(np.array([256, 64, 16, 4, 1]), (PAGES, 1)),
        errors=np.cumsum(random.uniform(0, 0.5, (PAGES, LEVELS)) * (np.arange(LEVELS) > 0), axis=1).astype(np.float32),
        digests=np.zeros((PAGES, LEVELS, 32), np.uint8),
        sh_degree=0,
        table_bytes=0,
    )


def looking(seed: int, count: int) -> list[Camera]:
    random = np.random.default_rng(seed)
    rotations = [np.linalg.qr(random.normal(size=(3, 3)))[0] for _ in range(count)]
    turned = [rotation * np.sign(np.linalg.det(rotation)) for rotation in rotations]
    return [
        Camera.opencv(60, 60, 32, 24, rotation, -rotation @ random.uniform(-30, 30, 3), 64, 48) for rotation in turned
    ]


def pixels(levels: LevelTable, camera: Camera) -> np.ndarray:
    """Returns the errors [P, L] of the levels in pixels, at the distances to the finest boxes."""
    source: Any = camera.source
    eye = -np.asarray(source.rotation).T @ np.asarray(source.translation)
    low, high = levels.bounds[:, 0].astype(float).swapaxes(0, 1)
    away = np.linalg.norm(np.maximum(np.maximum(low - eye, eye - high), 0), axis=1)
    return levels.errors * (60 / np.maximum(away, 0.01))[:, None]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("count", [1, 3])
def test_each_page_is_drawn_as_coarse_as_the_cameras_that_see_it_allow(count: int, seed: int) -> None:
    levels, cameras, settings = table(seed), looking(seed, count), gaussians_pb2.GaussianSettings(max_error_px=3.0)
    found, _ = chosen(levels, cameras, Detail.of(settings, 1 << 40))
    fine = [pixels(levels, camera) <= 3.0 for camera in cameras]
    seen = [
        np.stack([reached(levels.bounds[:, level], [camera], settings) for level in range(LEVELS)], axis=1)
        for camera in cameras
    ]
    is_drawn = found != NONE
    assert 10 < is_drawn.sum() < PAGES - 10
    assert len(set(found[is_drawn])) > 2
    assert rows_of(levels, found) == levels.counts[is_drawn, found[is_drawn]].sum()
    for page in range(PAGES):
        # A level will do if it is fine enough for every camera that sees it; the finest always will.
        does = [all(fine[c][page, k] or not seen[c][page, k] or k == 0 for c in range(count)) for k in range(LEVELS)]
        level = max(k for k in range(LEVELS) if does[k])
        assert found[page] == (level if any(seen[c][page, level] for c in range(count)) else NONE)


def limited(levels: LevelTable, cameras: list[Camera], error_px: float, most: int) -> Levels:
    detail = Detail.of(gaussians_pb2.GaussianSettings(max_error_px=error_px), most)
    return fitted(levels, chosen(levels, cameras, detail)[0], cameras, detail)


@pytest.mark.parametrize("count", [1, 3])
def test_pages_that_become_coarser_for_want_of_room_bring_no_others_into_view(count: int) -> None:
    levels, cameras = table(9), looking(9, count)
    free = limited(levels, cameras, 3.0, 1 << 40)
    rows = rows_of(levels, free)
    for most in (rows, rows // 2, int((free != NONE).sum())):
        tight = limited(levels, cameras, 3.0, most)
        assert rows_of(levels, tight) <= most
        assert np.array_equal(tight == NONE, free == NONE)
        assert (tight >= free).all()


@pytest.mark.parametrize("most", [4000, 1000, 400])
def test_a_page_around_the_camera_leaves_room_to_those_before_it(most: int) -> None:
    middles = np.float32([[[0, 0, 20 * page]] for page in range(5)])
    levels = LevelTable(
        bounds=np.repeat(np.stack([middles - 10, middles + 10], axis=2), LEVELS, axis=1),
        counts=np.tile(np.array([1024, 256, 64, 16, 4]), (5, 1)),
        errors=np.tile(np.float32([0, 0.1, 0.2, 0.4, 0.8]), (5, 1)),
        digests=np.zeros((5, LEVELS, 32), np.uint8),
        sh_degree=0,
        table_bytes=0,
    )
    camera = Camera.opencv(60, 60, 32, 24, np.eye(3), (0, 0, 0), 64, 48)
    found = limited(levels, [camera], 0.01, most)
    rows = rows_of(levels, found)
    assert rows == levels.counts[range(5), found].sum() <= most
    assert found.max() < LEVELS - 1
    assert (np.diff(found) >= 0).all(), "nearer pages are as fine as those behind them"
    finer = levels.counts[range(5), np.maximum(found - 1, 0)] - levels.counts[range(5), found]
    assert (finer[found > 0] > most - rows).all(), "what room is left is used"
