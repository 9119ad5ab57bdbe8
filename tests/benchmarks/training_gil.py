"""The steps' time with the GIL by kind of training: `python -m tests.benchmarks.training_gil [KIND ...]`.

The worker runs with the meter of tests.benchmarks.service. Scene and images are small, since kernels do not count,
except for one kind whose steps should take little longer than their kernels.
"""

from __future__ import annotations

import itertools
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lumigrad.client import Camera, Client, Gaussians, Loss, PinholeLens, Rate, Spheres
from support.workers.worker import WorkerProcess, worker
from tests.benchmarks.gaussian_scene import scene
from tests.benchmarks.service.gil_meter import GilMeter, Spent

WIDTH, HEIGHT, COUNT, VIEWS = 96, 72, 500, 4
TURNS, BURST = 9, 48
RATE = Rate(1e-4)
_SEEDS = itertools.count()


def main() -> None:
    """Measures the named kinds, or all, in turns, and prints a table."""
    chosen = {name: KINDS[name] for name in sys.argv[1:] or KINDS}
    with tempfile.TemporaryDirectory() as folder:
        meter = GilMeter(Path(folder))
        with worker("--device", "cpu", environment={**os.environ, **meter.environment}) as process:
            watch = meter.watch(process.process.pid)
            with Client(process.target) as client:
                steps = {name: begin(client) for name, begin in chosen.items()}
                turns: dict[str, list[Turn]] = {name: [] for name in steps}
                for _ in range(1 + TURNS):
                    for name, step in steps.items():
                        kernels = kernel_seconds(process)
                        watch.turn(on=True)
                        before, start = watch.spent(), time.perf_counter()
                        step()
                        seconds, spent = time.perf_counter() - start, watch.spent() - before
                        watch.turn(on=False)
                        turns[name].append(Turn(spent, seconds, kernel_seconds(process) - kernels))
    print("| steps of | GIL, ms | processor, ms | ms | of its kernels |\n|---|---|---|---|---|")
    for name, taken in turns.items():
        held, processor, seconds = (
            statistics.median(value(turn) for turn in taken[1:]) / BURST
            for value in (lambda turn: turn.spent.held, lambda turn: turn.spent.processor, lambda turn: turn.seconds)
        )
        ratio = statistics.median(turn.seconds / turn.kernel_seconds for turn in taken[1:])
        print(f"| {name} | {held / 1e6:.2f} | {processor / 1e6:.2f} | {1e3 * seconds:.2f} | {ratio:.3f} |")


class Turn(NamedTuple):
    """Times of some steps: by the meter, in total, and in the kernels by their own timers."""

    spent: Spent
    seconds: float
    kernel_seconds: float


def kernel_seconds(process: WorkerProcess) -> float:
    """The time that the worker's kernels have taken."""
    found = re.findall(r"^lumigrad_kernel_seconds_sum\{.*\} (\S+)$", process.metrics(), re.MULTILINE)
    return sum(map(float, found))


def _gaussians() -> Gaussians:
    # A new scene, since a scene is trained by one client at a time.
    random = np.random.default_rng(next(_SEEDS))
    return Gaussians(
        random.normal(size=(COUNT, 3)),
        np.tile([1.0, 0, 0, 0], (COUNT, 1)),
        np.full((COUNT, 3), 0.1),
        np.full(COUNT, 0.5),
        colors=random.random((COUNT, 3)),
    )


def _cameras(shutter: Any = None) -> list[Camera]:
    cameras = [Camera.orbit((0, 0, 0), 6.0, 90.0 * k, 20.0, width=WIDTH, height=HEIGHT) for k in range(VIEWS)]
    if shutter is None:
        return cameras
    lens = PinholeLens(fx=90, fy=90, cx=48, cy=36, radial=(0.0,))
    poses: list[Any] = [(each.model.rotation, each.model.translation) for each in cameras]
    made = []
    for rotation, translation in poses:
        ends = {} if shutter == "global" else {"end_rotation": rotation, "end_translation": translation + 0.01}
        made.append(Camera.sensor(lens, rotation, translation, WIDTH, HEIGHT, shutter=shutter, **ends))
    return made


def _trained(options: Mapping[str, Any], *, shutter: str | None = None) -> Callable[[Client], Callable[[], object]]:
    def begin(client: Client) -> Callable[[], object]:
        random = np.random.default_rng(1)
        images = [random.random((HEIGHT, WIDTH, 3), np.float32) for _ in range(VIEWS)]
        trainer = client.trainer(_gaussians(), _cameras(shutter), images, **options)
        return lambda: list(trainer.steps(BURST))

    return begin


def _large(client: Client) -> Callable[[], object]:
    made = scene(100_000, 400, 300)
    camera = Camera.opencv(*made.intrinsics, made.rotation, made.translation, made.width, made.height)
    image = np.random.default_rng(1).random((made.height, made.width, 3), np.float32)
    trainer = client.trainer(Gaussians(**made.tensors), [camera], [image])
    return lambda: list(trainer.steps(BURST))


def _spheres(client: Client) -> Callable[[], object]:
    random = np.random.default_rng(0)
    scene = Spheres(random.normal(size=(COUNT, 3)), random.random((COUNT, 3)), np.full(COUNT, 0.1))
    images = [random.random((HEIGHT, WIDTH, 3), np.float32) for _ in range(VIEWS)]
    trainer = client.trainer(scene, _cameras(), images, rates={"positions": RATE, "colors": RATE})
    return lambda: list(trainer.steps(BURST))


def _own_loss(client: Client) -> Callable[[], object]:
    trainer = client.trainer(_gaussians(), _cameras())
    gradient = np.full((1, HEIGHT, WIDTH, 3), 1e-6, np.float32)

    def batches() -> Iterator[object]:
        for batch in trainer.batches(BURST, in_flight=2):
            yield batch.apply(color=gradient)

    return lambda: list(batches())


_SURFELS = {"primitive": "surfel"}
KINDS: Mapping[str, Callable[[Client], Callable[[], object]]] = {
    "the native path": _trained({}),
    "100,000 Gaussians at 400 x 300": _large,
    "poses": _trained({"refine_poses": RATE}),
    "surfels": _trained(_SURFELS),
    "surfels with distortion": _trained({**_SURFELS, "loss": Loss(distortion=1.0)}),
    "surfels with normals and distortion": _trained({**_SURFELS, "loss": Loss(normal=0.05, distortion=1.0)}),
    "intrinsics": _trained({"refine_intrinsics": RATE}),
    "sensors": _trained({}, shutter="global"),
    "intrinsics and lenses of sensors": _trained({"refine_intrinsics": RATE, "refine_lenses": RATE}, shutter="global"),
    "poses of sensors": _trained({"refine_poses": RATE}, shutter="global"),
    "end poses of sensors": _trained({"refine_end_poses": RATE}, shutter="top_to_bottom"),
    "spheres": _spheres,
    "your own loss": _own_loss,
}

if __name__ == "__main__":
    main()
