"""Several small workers, and operations of a client of all of them: storing many scenes, and finding their workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np

from lumigrad.client import Camera, Client, SceneHandle, Spheres
from support.workers.worker import WorkerProcess

CAMERA = Camera.look_at(eye=(0, -1, -5), target=(0, 0, 0), up=(0, -1, 0), width=32, height=24)
SETTINGS = {"max_depth": 10.0}


def cloud(seed: int, count: int = 40) -> Spheres:
    """A small scene, different for each seed."""
    random = np.random.default_rng(seed)
    positions, colors = random.normal(size=(count, 3)), random.random((count, 3))
    return Spheres(positions.astype("f4"), colors.astype("f4"), np.full(count, 0.15, "f4"))


@contextmanager
def fleet(count: int, *options: str) -> Iterator[list[WorkerProcess]]:
    """Independent workers; those that still run at the end are killed."""
    arguments = ("--device", "cpu", "--lame-duck-seconds", "0.5", *options)
    with ExitStack() as stack, ThreadPoolExecutor(count) as starters:
        workers = list(starters.map(lambda _: WorkerProcess(*arguments), range(count)))
        for worker in workers:
            stack.callback(end, worker)
        yield workers


def end(worker: WorkerProcess) -> None:
    """Kill the worker if it still runs, without waiting for its calls."""
    if worker.process.poll() is None:
        worker.process.kill()
    worker.wait()


def targets(workers: Sequence[WorkerProcess]) -> list[str]:
    return [worker.target for worker in workers]


def homes(client: Client, handles: Sequence[SceneHandle]) -> list[str]:
    """The worker of each scene, found by the forward state that a render retains."""
    found = []
    for handle in handles:
        frame = client.render(handle, CAMERA, retain=True, **SETTINGS)
        found.append(frame._context._kept.worker.target)
        frame.release()
    return found


def puts(worker: WorkerProcess) -> float:
    """The number of scenes that were newly stored on a worker."""
    return worker.metric("lumigrad_scene_puts_total", result="stored")


def right(client: Client, handle: SceneHandle, expected: np.ndarray) -> Callable[[], None]:
    """A call that renders a scene and checks the image."""

    def call() -> None:
        assert np.array_equal(client.render(handle, CAMERA, **SETTINGS).color, expected), "a wrong picture"

    return call
