"""Boxes as cameras see them, and the boxes that nearer Gaussians hide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels import gaussians
from lumigrad.kernels.gaussians import CELL, VISITS, Camera, Gaussians, Settings
from lumigrad.server.engines.occlusion import ScreenBoxes, all_cells, can_hide

WIDTH, HEIGHT = 100, 61
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "antialiased": {"antialiased": True},
    "no blur": {"eps2d": 0.0},
    "much blur": {"eps2d": 5.0, "alpha_min": 1e-4},
    "corners": {"pixel_center": 0.0},
    "early stop": {"alpha_min": 0.2, "transmittance_min": 0.05},
    "gsplat": {"semantics": "gsplat"},
}


def looking(random: np.random.Generator) -> Camera:
    """Returns a camera anywhere, with a lens without distortion and a principal point in or near the picture."""
    rotation = np.linalg.qr(random.normal(size=(3, 3)))[0]
    rotation *= np.sign(np.linalg.det(rotation))
    center = random.uniform(-0.3, 1.3, 2) * (WIDTH, HEIGHT)
    return Camera.opencv(*random.uniform(30, 150, 2), *center, rotation, random.normal(size=3) * 3, WIDTH, HEIGHT)


def in_front(camera: Camera, points: np.ndarray) -> np.ndarray:
    """Returns points [N, 3] of the camera's frame in the world's."""
    source: Any = camera.source
    return np.asarray((points - source.translation) @ source.rotation)


def tensor(values: Any) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, np.float32))


def random_scene(random: np.random.Generator, camera: Camera, count: int) -> Gaussians:
    """Returns Gaussians of all sizes and shapes, in and around the picture, at most as large as their distance."""
    depths = random.uniform(1, 30, count)
    fx, fy, cx, cy = camera.intrinsics(0.5)
    pixels = random.uniform(-0.5, 1.5, (count, 2)) * (WIDTH, HEIGHT)
    points = np.hstack([(pixels - (cx, cy)) / (fx, fy) * depths[:, None], depths[:, None]])
    return Gaussians(
        means=tensor(in_front(camera, points)),
        quats=tensor(random.normal(size=(count, 4))),
        scales=tensor(depths[:, None] * 10 ** random.uniform(-3, -0.5, (count, 3))),
        opacities=tensor(random.uniform(0.1, 1, count)),
        colors=torch.ones(count, 1),
    )


def boxes_of(scene: Gaussians) -> np.ndarray:
    """Returns boxes [N, 2, 3] that reach to three standard deviations of each Gaussian."""
    w, x, y, z = torch.nn.functional.normalize(scene.quats.double(), dim=1).unbind(1)
    rows = [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)]
    rows += [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)]
    rows += [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]
    axes = torch.stack(rows, 1).reshape(-1, 3, 3) * scene.scales.double()[:, None]
    reach = 3 * axes.square().sum(2).sqrt()
    return torch.stack([scene.means - reach, scene.means + reach], 1).float().numpy()


def cells_of(pixels: np.ndarray) -> np.ndarray:
    """Returns the cells [rows, columns] with any of some pixels [H, W]."""
    height, width = pixels.shape
    padded = np.pad(pixels, ((0, -height % CELL), (0, -width % CELL)))
    rows, columns = (size // CELL for size in padded.shape)
    return np.asarray(padded.reshape(rows, CELL, columns, CELL).any(axis=(1, 3)))


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("seed", range(2))
def test_gaussians_are_drawn_on_the_cells_of_their_boxes_alone(seed: int, name: str) -> None:
    random, settings = np.random.default_rng(seed), Settings(**SETTINGS[name])
    camera = looking(random)
    scene = random_scene(random, camera, 150)
    assert min(contained(scene, camera, settings)) > 3


def test_flat_gaussians_that_face_the_camera_are_drawn_there_too() -> None:
    """Only the reach beyond three standard deviations makes them larger than their boxes."""
    random, camera = np.random.default_rng(5), Camera.opencv(80, 80, 50, 30, np.eye(3), np.zeros(3), WIDTH, HEIGHT)
    count = 200
    scene = Gaussians(
        means=tensor(np.hstack([random.uniform(-8, 8, (count, 2)), random.uniform(8, 12, (count, 1))])),
        quats=tensor(np.tile([1.0, 0, 0, 0], (count, 1))),
        scales=tensor(random.uniform(0.2, 3, (count, 3)) * (1, 1, 1e-6)),
        opacities=torch.ones(count),
        colors=torch.ones(count, 1),
    )
    contained(scene, camera, Settings(eps2d=0.0))


def contained(scene: Gaussians, camera: Camera, settings: Settings) -> tuple[int, int, int]:
    """Check where each Gaussian is drawn; return how many boxes are known, are drawn, and are beside the picture."""
    bounds = boxes_of(scene)
    known = drawn = missed = 0
    for row in range(len(bounds)):
        one = Gaussians(**{key: value[row : row + 1] for key, value in scene.tensors().items()})
        alpha = gaussians.forward(one, [camera], settings, outputs=("alpha",)).outputs["alpha"][0]
        touched = cells_of(alpha.numpy() > 0)
        boxes = ScreenBoxes(bounds[row : row + 1], camera, settings)
        for place in np.argwhere(touched):
            assert boxes.meet(one_cell(touched.shape, tuple(place)))[0], (row, place)
        is_known = boxes.near[0] > 0
        assert is_known or boxes.meet(all_cells(camera))[0]
        known += bool(is_known)
        drawn += bool(touched.any())
        missed += not boxes.meet(all_cells(camera))[0]
    return known, drawn, missed


def layers(random: np.random.Generator, camera: Camera, count: int, depth: float) -> Gaussians:
    """Returns large Gaussians between half a depth and that depth, opaque or not, with some of the picture free."""
    fx, fy, cx, cy = camera.intrinsics(0.5)
    depths = random.uniform(depth / 2, depth * 0.999, count)
    pixels = random.uniform(0, 1, (count, 2)) * (WIDTH, HEIGHT)
    points = np.hstack([(pixels - (cx, cy)) / (fx, fy) * depths[:, None], depths[:, None]])
    return Gaussians(
        means=tensor(in_front(camera, points)),
        quats=tensor(np.tile([1.0, 0, 0, 0], (count, 1))),
        scales=tensor(np.tile(depths[:, None] / max(fx, fy) * random.uniform(3, 15, (count, 1)), (1, 3))),
        opacities=tensor(random.choice([0.5, 0.9, 0.99, 1.0], count)),
        colors=torch.zeros(count, 1),
    )


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("seed", range(2))
def test_boxes_behind_the_closers_of_their_cells_do_not_show(seed: int, name: str) -> None:
    random, settings = np.random.default_rng(seed), Settings(**SETTINGS[name])
    camera = looking(random)
    front, rest = layers(random, camera, 400, 10.0), random_scene(random, camera, 300)

    def drawn(scenes: list[Gaussians], *outputs: str) -> dict[str, torch.Tensor]:
        tensors = {key: torch.cat([scene.tensors()[key] for scene in scenes]) for key in front.tensors()}
        return gaussians.forward(Gaussians(**tensors), [camera], settings, outputs=outputs).outputs

    found = drawn([front], "depths", *VISITS)
    closers, depths = found["closers"][0].numpy(), found["depths"][0].numpy()
    closing = np.where(closers >= 0, depths[np.maximum(closers, 0)], np.inf).astype(np.float64)
    bounds = boxes_of(rest)
    boxes = ScreenBoxes(bounds, camera, settings)
    hidden = boxes.behind(closing)
    shown = Gaussians(**{key: value[torch.from_numpy(~hidden)] for key, value in rest.tensors().items()})
    images = ("color", "transmittance", "contributors")
    whole, without = drawn([front, rest], *images), drawn([front, shown], *images)
    assert all(torch.equal(whole[name], without[name]) for name in images)
    # Boxes that meet cells are hidden if they are behind all of them.
    in_picture = boxes.meet(all_cells(camera))
    met = [np.where(boxes.meet(one_cell(closing.shape, cell)), depth, -1) for cell, depth in np.ndenumerate(closing)]
    np.testing.assert_array_equal(hidden[in_picture], (boxes.near > np.max(met, axis=0))[in_picture])
    assert int((hidden & in_picture).sum()) > 3


def one_cell(shape: tuple[int, ...], cell: tuple[int, ...]) -> np.ndarray:
    cells = np.zeros(shape, bool)
    cells[cell] = True
    return cells


def test_boxes_cover_the_cells_that_they_meet() -> None:
    random = np.random.default_rng(7)
    camera = looking(random)
    bounds = boxes_of(random_scene(random, camera, 40))
    boxes = ScreenBoxes(bounds, camera, Settings())
    some = np.arange(0, len(bounds), 3)
    covered = boxes.covered(some)
    for cell in np.ndindex(*covered.shape):
        assert covered[cell] == boxes.meet(one_cell(covered.shape, cell))[some].any()
    assert covered.sum() > 0
    assert not boxes.covered(some[:0]).any()


def test_what_is_not_known_hides_nothing() -> None:
    camera = looking(np.random.default_rng(0))
    pose = np.eye(3), np.zeros(3)
    assert can_hide(camera, Settings())
    for settings in (
        Settings(primitive="surfel"),
        Settings(transmittance_min=0.0),
        Settings(scale_modifier=2.0),
        Settings(response="ray"),
        Settings(semantics="inria_exact"),
    ):
        assert not can_hide(camera, settings)
    bent = Camera.opencv(50, 50, 32, 24, *pose, 64, 48, distortion=(0.1, 0, 0, 0))
    flat = Camera.opencv(50, 50, 32, 24, *pose, 64, 48, model="orthographic")
    sensor = Camera.sensor(gaussians.PinholeLens(fx=50, fy=50, cx=32, cy=24), *pose, 64, 48)
    inria = Camera.inria(np.eye(4), np.eye(4), np.zeros(3), 0.5, 0.5, 64, 48)
    scaled = Camera.opencv(50, 50, 32, 24, 0.01 * np.eye(3), np.zeros(3), 64, 48)
    assert not any(can_hide(camera, Settings()) for camera in (bent, flat, sensor, inria, scaled))
