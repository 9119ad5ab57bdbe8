"""The calls that the benchmark measures: large payloads with next to no work, and one with next to no payload."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lumigrad.client import Camera, Client, Frame, Gaussians, Gradients, Spheres
from tests.benchmarks.gaussian_scene import scene as gaussian_scene

WIDTH, HEIGHT = 1920, 1080
IMAGE_BYTES = WIDTH * HEIGHT * 3 * 4
GAUSSIANS = 1_000_000
GRADIENT_BYTES = GAUSSIANS * 59 * 4


@dataclass(frozen=True)
class Case:
    """A call to measure.

    Attributes:
        name: its payload.
        direction: "down" or "up", as for its reference; "unary" for a small call.
        payload_bytes: the size of the measured payload.
        call: makes it; returns its milliseconds without the kernels.
    """

    name: str
    direction: str
    payload_bytes: int
    call: Callable[[], float]


def image_cases(client: Client) -> list[Case]:
    """An image of a few spheres is received, and the gradient of a loss with respect to one is sent."""
    spheres, camera = _spheres(10), _camera(WIDTH, HEIGHT)
    handle = client.put(spheres)
    retained = client.render(spheres, camera, retain=True)
    gradient = np.random.default_rng(1).standard_normal((HEIGHT, WIDTH, 3)).astype(np.float32)
    return [
        Case("image", "down", IMAGE_BYTES, lambda: _apart(lambda: client.render(handle, camera))),
        Case(
            "image gradient", "up", IMAGE_BYTES, lambda: _apart(lambda: retained.backward(gradient, wanted=("gamma",)))
        ),
    ]


def gradient_cases(client: Client) -> list[Case]:
    """The gradients of a million Gaussians, few of which a small image shows."""
    tensors = gaussian_scene(GAUSSIANS, 16, 16).tensors
    handle = client.put(Gaussians(**tensors))
    frame = client.render(handle, _camera(16, 16), retain=True)
    gradient = np.ones((16, 16, 3), np.float32)
    return [Case("gradients", "down", GRADIENT_BYTES, lambda: _apart(lambda: frame.backward(gradient)))]


def small_case(client: Client) -> Case:
    """A render of a hundred spheres on 16x16 pixels."""
    handle, camera = client.put(_spheres(100)), _camera(16, 16)
    size = client.render(handle, camera).color.nbytes
    return Case("small render", "unary", size, lambda: _apart(lambda: client.render(handle, camera)))


def _apart(call: Callable[[], Frame | Gradients]) -> float:
    """The milliseconds of a call without the kernels."""
    start = time.perf_counter()
    result = call()
    return (time.perf_counter() - start) * 1e3 - result.timings.kernel_ms


def _camera(width: int, height: int) -> Camera:
    return Camera.opencv(width, width, width / 2, height / 2, np.eye(3), (0, 0, 0), width, height)


def _spheres(count: int) -> Spheres:
    random = np.random.default_rng(0)
    positions = random.uniform((-1, -1, 4), (1, 1, 8), (count, 3))
    return Spheres(positions, random.random((count, 3)), np.full(count, 0.05))
