"""Renders the pictures of the gallery in the documents, each from a scene that is made here, through a worker.

Each picture is a strip of panels. `python examples/gallery.py fit` renders one of them, without a name come all.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import knot
import obstacles
from arm import arm
from local_worker import worker
from lumigrad.client import AdaptiveDensity, Camera, Client, Gaussians, Loss, SceneHandle
from lumigrad.client.base.arrays import Array
from lumigrad.client.pictures import ramp_colors, write_image
from planner import GOAL, START
from portrait import ball, draw, surface

WIDTH, HEIGHT = 400, 300
BACKGROUND = np.array(knot.BACKGROUND)
# Standard deviations of the knot's Gaussians, and of the initial Gaussians of a fit; scene units.
SPOT, BLOB = 0.018, 0.05


@dataclass(frozen=True)
class Request:
    """The options: the folder for files, and the length of the fit."""

    folder: Path
    steps: int


def gaussian_knot(count: int = 60_000) -> Gaussians:
    """Returns the demo's knot made of small round Gaussians."""
    spheres = knot.knot(count)
    upright = np.tile([1.0, 0, 0, 0], (count, 1))
    return Gaussians(
        spheres.positions, upright, np.full((count, 3), SPOT), np.full(count, 0.9), colors=np.asarray(spheres.colors)
    )


def gaussians(client: Client, _: Request) -> list[Array]:
    """Renders colour, expected depth (light is close) and alpha in one call."""
    camera = knot.camera(20.0, 20.0, WIDTH, HEIGHT)
    outputs = ("color", "expected_depth", "alpha")
    frame = client.render(gaussian_knot(), camera, outputs=outputs, background=BACKGROUND)
    depth, alpha = frame.expected_depth, frame.alpha
    near, far = np.quantile(depth[alpha > 0.5], (0.01, 0.99))
    shown = ramp_colors((far - depth) / (far - near)) * alpha[..., None]
    return [frame.color, shown, np.repeat(alpha[..., None], 3, axis=2)]


def lenses(client: Client, _: Request) -> list[Array]:
    """Renders with a pinhole, a fisheye and an orthographic camera at one place, close to the knot."""
    scene = client.put(gaussian_knot())
    seen = Camera.orbit((0, 0, 0), 2.0, 20.0, 15.0, width=WIDTH, height=HEIGHT).model
    middle = (WIDTH / 2, HEIGHT / 2)
    focal: dict[Any, float] = {"pinhole": 110.0, "fisheye": 130.0, "orthographic": 80.0}
    pictures = []
    for model, length in focal.items():
        camera = Camera.opencv(length, length, *middle, seen.rotation, seen.translation, WIDTH, HEIGHT, model=model)
        pictures.append(client.render(scene, camera, background=BACKGROUND).color)
    return pictures


def softness(client: Client, _: Request) -> list[Array]:
    """Renders spheres from hard to soft: gamma 1e-4, 0.03 and 0.3."""
    scene = client.put(knot.knot(3000, radius=0.08))
    settings: dict[str, Any] = {"min_depth": knot.NEAREST, "max_depth": knot.FARTHEST, "background": BACKGROUND}
    camera = knot.camera(20.0, 20.0, WIDTH, HEIGHT)
    return [client.render(scene, camera, gamma=gamma, **settings).color for gamma in (1e-4, 0.03, 0.3)]


def fit(client: Client, request: Request) -> list[Array]:
    """Renders grey Gaussians, the same after some steps of training on the worker, and the target image."""
    cameras, steps = knot.cameras(24, 240, 180), request.steps
    truth = client.put(gaussian_knot())
    photographs = [client.render(truth, camera, background=BACKGROUND).color for camera in cameras]
    generator, count = np.random.default_rng(0), 3000
    begin = Gaussians(
        knot.knot(count).positions + generator.normal(scale=0.1, size=(count, 3)),
        np.tile([1.0, 0, 0, 0], (count, 1)),
        np.full((count, 3), BLOB),
        np.full(count, 0.5),
        colors=np.full((count, 3), 0.5),
    )
    density = AdaptiveDensity(start=steps // 6, stop=5 * steps // 6, every=max(1, steps // 12), reset_every=0)
    options: dict[str, Any] = {"loss": Loss(l1=0.8, dssim=0.2), "density": density, "background": BACKGROUND}
    with client.trainer(begin, cameras, photographs, total_steps=steps, **options) as trainer:
        made = list(trainer.steps(steps))
        fitted = trainer.publish()
    print(f"fit: {made[0].psnr:.1f} to {made[-1].psnr:.1f} dB, {count} to {made[-1].count} Gaussians")
    camera = knot.camera(20.0, 20.0, WIDTH, HEIGHT)
    return [client.render(scene, camera, background=BACKGROUND).color for scene in (begin, fitted, truth)]


def distances(client: Client, _: Request) -> list[Array]:
    """Draws cuts through the planner's obstacles: distance in bands of 2 cm, red inside; direction away from them."""
    world = client.put(obstacles.world())
    across = np.stack(np.meshgrid(np.linspace(-0.35, 1.25, WIDTH), np.linspace(0.95, -0.25, HEIGHT)), axis=-1)
    points = np.concatenate([across, np.full((HEIGHT, WIDTH, 1), 0.4), np.zeros((HEIGHT, WIDTH, 1))], axis=2)
    # The same from the side, x to the right and z up.
    side = np.stack([points[..., 0], np.full((HEIGHT, WIDTH), 0.2), points[..., 1] + 0.25, points[..., 3]], axis=2)
    level, upright = (client.query(world, rows, outputs=("distance", "normal")) for rows in (points, side))
    return [_bands(level.distance), _bands(upright.distance), 0.5 + 0.5 * level.normal]


def clearance(client: Client, request: Request) -> list[Array]:
    """Draws an arm among obstacles, with its spheres coloured by distance: red inside, dark at 0, light at 15 cm."""
    robot, world = arm(request.folder), obstacles.world()
    handle = client.put(world)
    dots = ball(3000)
    scenery = [surface(obstacle) for obstacle in world.obstacles]
    return [draw(client, [*scenery, *_colored(client, handle, robot.spheres(q), dots)]) for q in _poses()]


def _poses() -> list[torch.Tensor]:
    return [torch.lerp(torch.tensor(START), torch.tensor(GOAL), fraction) for fraction in (0.0, 0.62, 1.0)]


def _colored(client: Client, world: SceneHandle, spheres: torch.Tensor, dots: Array) -> list[tuple[Array, ...]]:
    rows = spheres.double().numpy()
    free = client.query(world, rows).distance - rows[:, 3]
    colors = np.where((free < 0)[:, None], (0.85, 0.1, 0.1), ramp_colors(free / 0.15))
    return [
        (row[:3] + row[3] * dots, dots, np.broadcast_to(color, dots.shape))
        for row, color in zip(rows, colors, strict=True)
    ]


def _bands(distance: Array) -> Array:
    """Returns colours [H, W, 3] of signed distances, metres: lighter with the distance, a darker line every 2 cm."""
    line = 0.8 + 0.2 * np.clip(np.abs(distance / 0.02 % 1 - 0.5) * -8 + 4, 0, 1)
    inside = np.array([0.85, 0.25, 0.2]) * np.clip(1 + 8 * distance, 0.3, 1)[..., None]
    return np.asarray(np.where(distance[..., None] < 0, inside, ramp_colors(0.15 + distance / 0.6)) * line[..., None])


PICTURES: dict[str, Callable[[Client, Request], list[Array]]] = {
    picture.__name__: picture for picture in (gaussians, lenses, softness, fit, distances, clearance)
}


def main() -> int:
    """Renders pictures; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(PICTURES)} (default: all)")
    parser.add_argument("--output", type=Path, default=Path("gallery_output"), help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=600, help="of the fit (default: %(default)s)")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(PICTURES)
    if unknown:
        parser.error(f"expected one of {', '.join(PICTURES)}, got {', '.join(sorted(unknown))}")
    arguments.output.mkdir(parents=True, exist_ok=True)
    with worker(arguments.output / "worker.log") as target, Client(target) as client:
        for name in arguments.names or PICTURES:
            began = time.perf_counter()
            panels = PICTURES[name](client, Request(arguments.output, arguments.steps))
            path = arguments.output / f"{name}.jpg"
            write_image(path, np.concatenate(panels, axis=1))
            print(f"{path}: {path.stat().st_size // 1024} KiB, {time.perf_counter() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
