"""Images need only the Gaussians that were visited, and nothing behind the closers of their cells, on each engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.gaussians import CELL, VISITS, Camera, Gaussians, PinholeLens, Settings, forward
from support.backends.cuda_devices import Device
from support.backends.gaussian_engines import Engine
from support.closeness import assert_same_bits

IMAGES = ("color", "transmittance", "depth", "contributors")
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "antialiased": {"antialiased": True},
    "gsplat": {"semantics": "gsplat"},
    "early stop": {"alpha_min": 0.2, "transmittance_min": 0.05},
    "clipped": {"radius_clip": 2.0, "near": 2.0},
}
WIDTH, HEIGHT = 83, 45


def tensor(values: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, np.float32))


def camera(shift: float = 0.0, width: int = WIDTH, height: int = HEIGHT) -> Camera:
    translation = np.array([shift, 0.0, 0.0])
    return Camera.opencv(60.0, 60.0, width / 2, height / 2, np.eye(3), translation, width, height)


def wall(count: int, depths: tuple[float, float], width: float = 1.0, seed: int = 0) -> dict[str, Tensor]:
    """Gaussians between two depths, dense enough to close many pixels, over the left part of the picture."""
    random = np.random.default_rng(seed)
    z = random.uniform(*depths, count)
    x = (random.uniform(-0.1, width + 0.1, count) - 0.5) * WIDTH / 60 * z
    y = random.uniform(-0.6, 0.6, count) * HEIGHT / 60 * z
    return {
        "means": tensor(np.stack([x, y, z], 1)),
        "quats": tensor(random.normal(size=(count, 4))),
        "scales": tensor(0.03 * z[:, None] * random.uniform(0.3, 2.0, (count, 3))),
        "opacities": tensor(random.choice([0.3, 0.9, 0.99, 1.0], count)),
        "colors": tensor(random.uniform(0, 1, (count, 3))),
    }


def drawn(engine: Engine, scene: Mapping[str, Tensor], settings: Settings, *more: str) -> dict[str, np.ndarray]:
    outputs, _ = engine.forward(Gaussians(**scene), [camera()], settings, outputs=(*IMAGES, *more))
    return {name: value.numpy() for name, value in outputs.items()}


def images(found: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: found[name] for name in IMAGES}


def cell_depths(found: Mapping[str, np.ndarray]) -> np.ndarray:
    """The depths of the closers [rows, columns], infinite in open cells."""
    closers = found["closers"][0]
    return np.where(closers >= 0, found["depths"][0][np.maximum(closers, 0)], np.inf)


@pytest.mark.parametrize("name", SETTINGS)
def test_images_without_what_was_not_visited_are_the_same(name: str, gaussian_engine: Engine) -> None:
    settings, scene = Settings(**SETTINGS[name]), wall(3000, (2, 6), width=0.7)
    found = drawn(gaussian_engine, scene, settings, *VISITS)
    assert_same_bits(images(found), drawn(gaussian_engine, scene, settings))
    assert found["visited"].dtype == np.uint8
    assert found["visited"].shape == (1, 3000)
    visited = torch.from_numpy(found["visited"][0]).bool()
    assert 0.05 < visited.float().mean() < 0.95
    needed = {key: value[visited] for key, value in scene.items()}
    assert_same_bits(images(found), drawn(gaussian_engine, needed, settings))


@pytest.mark.parametrize("name", SETTINGS)
def test_nothing_behind_closers_shows(name: str, gaussian_engine: Engine) -> None:
    """Nothing behind the depth of a cell changes any of its pixels; something changes in most open cells."""
    settings, scene = Settings(**SETTINGS[name]), wall(3000, (2, 6), width=0.7)
    found = drawn(gaussian_engine, scene, settings, "depths", *VISITS)
    depths = cell_depths(found)
    assert depths.shape == (-(-HEIGHT // CELL), -(-WIDTH // CELL))
    assert 0.2 < np.isfinite(depths).mean() < 0.8
    by_pixel = np.kron(depths, np.ones((CELL, CELL)))[:HEIGHT, :WIDTH]
    changed = np.zeros((HEIGHT, WIDTH), bool)
    for depth in (3.0, 4.5, 7.0):
        # The weakest Gaussians are blended the longest.
        behind = {
            "means": tensor([[0, 0, depth]]),
            "quats": tensor([[1, 0, 0, 0]]),
            "scales": tensor([[100 * depth, 100 * depth, 1e-3]]),
            "opacities": tensor([1.1 * settings.alpha_min]),
            "colors": tensor([[0.5, 0.5, 0.5]]),
        }
        both = {key: torch.cat([scene[key], behind[key]]) for key in scene}
        other = drawn(gaussian_engine, both, settings)
        changed = (other["transmittance"] != found["transmittance"])[0]
        assert not (changed & (by_pixel < depth)).any()
    cells = np.zeros_like(depths, bool)
    np.logical_or.at(cells, tuple(axis // CELL for axis in np.nonzero(changed)), True)
    assert (cells == np.isinf(depths)).mean() > 0.9


def test_views_have_visits_of_their_own(gaussian_engine: Engine) -> None:
    scene, cameras = wall(2000, (2, 6)), [camera(), camera(1.5)]
    both, _ = gaussian_engine.forward(Gaussians(**scene), cameras, Settings(), outputs=VISITS)
    for view, one in enumerate(cameras):
        alone, _ = gaussian_engine.forward(Gaussians(**scene), [one], Settings(), outputs=VISITS)
        for name in VISITS:
            np.testing.assert_array_equal(both[name][view].numpy(), alone[name][0].numpy())
    assert not torch.equal(both["visited"][0], both["visited"][1])


@pytest.mark.parametrize("count", [0, 5])
def test_nothing_is_visited_where_nothing_is_drawn(count: int, gaussian_engine: Engine) -> None:
    behind = {key: value[:count] for key, value in wall(5, (-6, -2)).items()}
    outputs, _ = gaussian_engine.forward(Gaussians(**behind), [camera()], Settings(), outputs=VISITS)
    assert not outputs["visited"].any()
    assert (outputs["closers"] == -1).all()


@pytest.mark.parametrize("is_listed", [True, False])
def test_tiles_that_were_not_listed_have_closers(is_listed: bool, device: Device) -> None:
    if not is_listed:
        device.cuda.session.set_pair_limit(0)
    scene = wall(3000, (2, 6), width=0.7)
    found = drawn(device.engine, scene, Settings(), "depths", *VISITS)
    expected = forward(Gaussians(**scene), [camera()], Settings(), outputs=("depths", *VISITS)).outputs
    on_cpu = cell_depths({name: value.numpy() for name, value in expected.items()})
    # The CPU looks a few Gaussians further before it notices that a pixel has ended.
    np.testing.assert_array_equal(np.isinf(cell_depths(found)), np.isinf(on_cpu))
    assert (cell_depths(found) <= on_cpu).all()
    needed = {key: value[torch.from_numpy(found["visited"][0]).bool()] for key, value in scene.items()}
    assert_same_bits(images(found), drawn(device.engine, needed, Settings()))


def test_visits_are_refused_where_there_are_none() -> None:
    scene = Gaussians(**wall(5, (2, 6)))
    with pytest.raises(ArgumentError, match=r"outputs: expected all of \('visited', 'closers'\) or none"):
        forward(scene, [camera()], Settings(), outputs=("visited",))
    sensor = Camera.sensor(PinholeLens(fx=60, fy=60, cx=40, cy=20), np.eye(3), np.zeros(3), WIDTH, HEIGHT)
    with pytest.raises(ArgumentError, match=r"outputs.*'visited'"):
        forward(scene, [sensor], Settings(response="ray"), outputs=VISITS)
    with pytest.raises(ArgumentError, match=r"outputs.*'visited'"):
        forward(scene, [camera()], Settings(primitive="surfel"), outputs=VISITS)
    with pytest.raises(ArgumentError, match=r"rows: expected .* no outputs of whole images"):
        forward(scene, [camera()], Settings(), outputs=VISITS, rows=(0, 8))
