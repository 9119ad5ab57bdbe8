"""Pages are chosen by the bounds of their finest level, and culled by the bounds of the level that is drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lumigrad.client import Camera, Client, Gaussians
from lumigrad.client.formats.levels import GaussianLevels
from lumigrad.client.formats.levels.merging import covariances_of
from lumigrad.client.formats.scene import StoredScene
from support.gaussians.levels import joined
from support.workers.client_load import client_fixture
from support.workers.spooling import spooling_fixture

PAGE_ROWS = 256
# Centres of square walls, four units wide, of one page each. Merged to one Gaussian, a wall reaches 1.5 units beyond
# its ends, and so around cameras between the walls.
WALLS = ((0.0, 0.0, 0.0), (16.0, 0.0, 0.0), (32.0, 0.0, 0.0), (64.0, 0.0, 0.0))
WIDTH = 4.0
# Half a unit beyond the end of a wall, with the other walls in front.
EYE = (18.5, 0.0, 0.0)


def walls() -> GaussianLevels:
    random = np.random.default_rng(4)
    pages = []
    for wall in WALLS:
        places = random.uniform(-WIDTH / 2, WIDTH / 2, (PAGE_ROWS, 3)) * (1, 1, 0) + wall
        gaussians = Gaussians(
            places,
            np.tile([1.0, 0.0, 0.0, 0.0], (PAGE_ROWS, 1)),
            np.full((PAGE_ROWS, 3), 0.05),
            random.uniform(0.3, 0.9, PAGE_ROWS),
            sh=random.normal(scale=0.5, size=(PAGE_ROWS, 1, 3)),
        )
        pages.append(GaussianLevels.of(gaussians, page_rows=PAGE_ROWS))
    tables = {name: np.concatenate([getattr(page, name) for page in pages]) for name in ("bounds", "counts", "errors")}
    return replace(pages[0], **tables, source=lambda page, level: pages[page].read(0, level))


LEVELS = walls()


process = spooling_fixture(supervised=False)
client = client_fixture("process")


def box(levels: GaussianLevels, page: int, level: int) -> tuple[np.ndarray, np.ndarray]:
    """The corners around three standard deviations of the Gaussians of one level."""
    scene = StoredScene.of(levels.read(page, level), "page")
    reach = 3 * np.sqrt(np.einsum("nii->ni", covariances_of(scene)))
    return (scene.means - reach).min(axis=0), (scene.means + reach).max(axis=0)


def needed(levels: GaussianLevels, camera: Camera, error_px: float) -> list[tuple[int, int]]:
    """The pages in front of a camera that looks along x, each at the coarsest level that its content allows."""
    found = []
    for page in range(len(levels)):
        low, high = box(levels, page, 0)
        away = np.linalg.norm(np.maximum(np.maximum(low - camera.position, camera.position - high), 0))
        level = int((levels.errors[page] * camera.K[0, 0] / max(away, 0.01) <= error_px).sum()) - 1
        if box(levels, page, level)[1][0] > camera.position[0]:
            found.append((page, level))
    return found


@pytest.mark.parametrize("error_px", [1.0, 4.0, 8.0])
def test_what_coarse_gaussians_cover_draws_no_page_finer(client: Client, error_px: float) -> None:
    camera = Camera.look_at(EYE, (64, 0, 0), (0, 1, 0), width=96, height=64, fov_degrees=60)
    assert box(LEVELS, 1, 0)[1][0] < EYE[0] < box(LEVELS, 1, LEVELS.levels - 1)[1][0]
    frame = client.render(client.put(LEVELS), camera, max_error_px=error_px, retain=True)
    places = needed(LEVELS, camera, error_px)
    assert 0 < len(places) < len(WALLS)
    assert frame.levels is not None
    assert sum(frame.levels.counts) == sum(LEVELS.counts[place] for place in places)
    plain = client.render(joined(LEVELS, places), camera)
    assert np.array_equal(frame.color, plain.color)
    assert plain.color.std() > 0.01
    assert frame.levels.error_px <= error_px
    assert len(frame.backward(np.ones_like(frame.color)).index) <= sum(frame.levels.counts)


def test_pages_with_one_box_are_chosen_and_culled_by_it(client: Client) -> None:
    camera = Camera.look_at(EYE, (64, 0, 0), (0, 1, 0), width=96, height=64, fov_degrees=60)
    largest = LEVELS.bounds[:, -1]
    one = client.render(client.put(replace(LEVELS, bounds=largest)), camera, max_error_px=8.0)
    repeated = np.repeat(largest[:, None], LEVELS.levels, axis=1)
    each = client.render(client.put(replace(LEVELS, bounds=repeated)), camera, max_error_px=8.0)
    assert one.levels == each.levels
    assert np.array_equal(one.color, each.color)
    assert one.levels is not None
    # The camera is in the box of the wall behind it.
    assert one.levels.counts[0] == PAGE_ROWS
