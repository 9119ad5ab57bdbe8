"""Trains spheres from a coroutine while another one looks at what they have become, as a viewer would.

The worker renders, compares, differentiates and steps; the training publishes its spheres now and then, and pictures of
the newest version are rendered beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

import numpy as np

import knot
from local_worker import worker
from lumigrad.client import Rate, SceneHandle, Spheres, VersionMismatch
from lumigrad.client.aio import AsyncClient
from lumigrad.client.base.arrays import Array
from lumigrad.client.pictures import write_image

VIEWS, WIDTH, HEIGHT = 24, 200, 150
SPHERES = 3000
PUBLICATIONS = 4
SETTINGS: dict[str, Any] = {"min_depth": knot.NEAREST, "max_depth": knot.FARTHEST, "background": knot.BACKGROUND}


def main() -> int:
    """Runs the fit; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400, help="steps of the optimiser (default: 400)")
    parser.add_argument("--output", type=Path, default=Path("fit_output"), help="(default: fit_output)")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with worker(arguments.output / "worker.log") as target:
        asyncio.run(fit(target, arguments.steps, arguments.output))
    return 0


async def fit(target: str, steps: int, output: Path) -> None:
    """Fits grey spheres to views of the knot."""
    cameras = knot.cameras(VIEWS, WIDTH, HEIGHT)
    truth = knot.knot(SPHERES)
    shift = np.random.default_rng(0).normal(scale=0.05, size=(SPHERES, 3))
    begin = Spheres(truth.positions + shift, np.full((SPHERES, 3), 0.5), np.full(SPHERES, 0.07))
    rates = {"positions": Rate(4e-3, 4e-4, steps), "colors": 3e-2, "radii": 1e-2}
    published: asyncio.Queue[SceneHandle | None] = asyncio.Queue()
    psnr: list[float] = []
    async with AsyncClient(target) as client:
        async with client.stream(knot.knot(), gamma=1e-4, **SETTINGS) as stream:
            photographs = [frame.color async for frame in stream.frames(cameras)]
        watching = asyncio.create_task(watch(client, published))
        async with client.trainer(begin, cameras, photographs, rates=rates, gamma=0.01, **SETTINGS) as trainer:
            for _ in range(PUBLICATIONS):
                async for step in trainer.steps(max(1, steps // PUBLICATIONS)):
                    psnr.append(step.psnr)
                await published.put(await trainer.publish())
        await published.put(None)
        pictures = await watching
    write_image(output / "async_training.png", np.concatenate([*pictures, photographs[0]], axis=1))
    first, last = np.mean(psnr[:VIEWS]), np.mean(psnr[-VIEWS:])
    print(f"{len(psnr)} steps: from {first:.1f} to {last:.1f} dB; see {output}/async_training.png")


async def watch(client: AsyncClient, published: asyncio.Queue[SceneHandle | None]) -> list[Array]:
    """Renders each version while the training goes on."""
    camera = knot.cameras(VIEWS, WIDTH, HEIGHT)[0]
    pictures = []
    while (scene := await published.get()) is not None:
        try:
            pictures.append((await client.render(scene, camera, gamma=1e-4, **SETTINGS)).color)
        except VersionMismatch:
            # The training was faster.
            continue
    return pictures


if __name__ == "__main__":
    sys.exit(main())
