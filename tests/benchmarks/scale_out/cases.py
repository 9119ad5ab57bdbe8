"""The calls of several workers' clients, and the rate at which they are answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from lumigrad.client import Camera, Client, Spheres

CAMERA = Camera.look_at(eye=(0, -1, -5), target=(0, 0, 0), up=(0, -1, 0), width=320, height=240)


def scene(seed: int, count: int = 5000) -> Spheres:
    """Spheres whose view takes some tens of milliseconds of one thread."""
    random = np.random.default_rng(seed)
    positions, colors = random.normal(size=(count, 3)), random.random((count, 3))
    return Spheres(positions.astype("f4"), colors.astype("f4"), np.full(count, 0.05, "f4"))


def renders(client: Client, seed: int) -> Callable[[], None]:
    """A call that renders a stored scene and checks the image."""
    handle = client.put(scene(seed))
    expected = client.render(handle, CAMERA).color

    def call() -> None:
        frame = client.render(handle, CAMERA)
        assert np.array_equal(frame.color, expected), "a wrong picture"

    return call


def rate(calls: Sequence[Callable[[], None]], seconds: float) -> tuple[int, float]:
    """The number of calls by callers that repeat theirs as soon as it is answered, and the seconds that they took.

    There is a caller for each of `calls`.
    """
    until = time.perf_counter() + seconds
    made: list[int] = []

    def repeat(call: Callable[[], None]) -> None:
        count = 0
        while time.perf_counter() < until:
            call()
            count += 1
        made.append(count)

    threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(made), time.perf_counter() - began
