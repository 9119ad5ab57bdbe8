"""Times the calls of `lumigrad bench`: their scenes, the calls and statistics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.timings import Timings
from lumigrad.client.calls.scenes import stored
from lumigrad.client.client import Client
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.spheres import Spheres

_MOST = 200
_LEAST = 3


@dataclass(frozen=True)
class Measurement:
    """One line of the result.

    Attributes:
        what: the name of the line, e.g. "render 512x512".
        calls: number of timed calls.
        median_ms: median time that the client waits for a call.
        p90_ms: 90th percentile of the time that the client waits for a call.
        kernel_ms: median time of the worker's kernels in a call; None: the call runs no kernels.
        rest_ms: median of the rest: the network, queues, copies and conversions; None: the call runs no kernels.
        bytes: payload of a call; None if throughput is not measured.
        mib_per_s: throughput of the payload at the median time; None if it is not measured.
    """

    what: str
    calls: int
    median_ms: float
    p90_ms: float
    kernel_ms: float | None = None
    rest_ms: float | None = None
    bytes: int | None = None
    mib_per_s: float | None = None


def measure(what: str, call: Callable[[], Timings | None], seconds: float, nbytes: int | None = None) -> Measurement:
    """Times repetitions of a call.

    Args:
        what: the line's name.
        call: makes one call; returns the worker's timings, if there are any.
        seconds: how long to repeat the call: at least three times, at most 200 times, after one untimed call.
        nbytes: payload of a call, to measure throughput; None: it is not measured.
    """
    call()
    waited: list[float] = []
    kernels: list[float] = []
    until = time.perf_counter() + seconds
    while len(waited) < _LEAST or (len(waited) < _MOST and time.perf_counter() < until):
        began = time.perf_counter()
        timings = call()
        waited.append((time.perf_counter() - began) * 1e3)
        if timings is not None:
            kernels.append(timings.kernel_ms)
    median, p90 = (float(value) for value in np.percentile(waited, (50, 90)))
    rest = [whole - kernel for whole, kernel in zip(waited, kernels, strict=False)]
    return Measurement(
        what,
        len(waited),
        median,
        p90,
        float(np.median(kernels)) if kernels else None,
        float(np.median(rest)) if kernels else None,
        nbytes,
        None if nbytes is None else nbytes / 2**20 / (median / 1e3),
    )


# The numbers of steps around the ring and around its tube; each step makes two triangles.
_RING, _TUBE = 64, 40


def cloud(count: int) -> Gaussians:
    """Returns `count` Gaussians in a ball of radius 1, which cover about as much of a picture as a trained scene."""
    generator = np.random.default_rng(0)
    means = generator.normal(size=(count, 3))
    means *= np.cbrt(generator.random((count, 1))) / np.linalg.norm(means, axis=1, keepdims=True)
    quats = generator.normal(size=(count, 4))
    scales = 0.6 / np.cbrt(count) * np.exp(generator.normal(-1.0, 0.4, (count, 3)))
    return Gaussians(means, quats, scales, generator.random(count), colors=generator.random((count, 3)))


def ring() -> Mesh:
    """Returns a torus with radii of 0.7 and 0.3 m and 5,120 triangles, in the unit ball."""
    around, across = np.meshgrid(np.arange(_RING), np.arange(_TUBE), indexing="ij")
    angle, tilt = 2 * np.pi * around / _RING, 2 * np.pi * across / _TUBE
    reach = 0.7 + 0.3 * np.cos(tilt)
    vertices = np.stack([reach * np.cos(angle), reach * np.sin(angle), 0.3 * np.sin(tilt)], axis=-1)
    first, second = around * _TUBE, (around + 1) % _RING * _TUBE
    after = (across + 1) % _TUBE
    corners = first + across, second + across, second + after, first + after
    faces = np.stack([corners[index] for index in (0, 1, 2, 0, 2, 3)], axis=-1)
    return Mesh(vertices.reshape(-1, 3), faces.reshape(-1, 3))


def spheres(count: int) -> npt.NDArray[np.float32]:
    """Returns spheres [count, 4] in and around the ring, with radii of 2 cm; metres."""
    places = np.random.default_rng(0).uniform(-1.2, 1.2, (count, 3))
    return np.concatenate([places, np.full((count, 1), 0.02)], axis=1).astype(np.float32)


_QUERIED = 10_000
_MIB = 1 << 20


def measurements(
    client: Client, camera_of: dict[str, Camera], scene: Gaussians | Spheres, seconds: float
) -> Iterator[Measurement]:
    """Measures round trips, renderings and their gradients, and distances.

    Args:
        client: the client of the worker.
        camera_of: the cameras to render, by the names of their lines.
        scene: the scene; it stays on the worker afterwards if another program has put it.
        seconds: time to measure each line.
    """

    def trip() -> None:
        client.info()

    yield measure("round trip", trip, seconds)
    with stored(client, scene) as handle:
        for name, camera in camera_of.items():
            yield from _rendering(client, handle, name, camera, seconds)
    mesh, queried = ring(), spheres(_QUERIED)
    with stored(client, mesh) as handle:
        for what, outputs in {"distance": ("distance",), "closest": ("distance", "normal", "closest")}.items():

            def query(outputs: Sequence[str] = outputs) -> Timings:
                return client.query(handle, queried, outputs=outputs).timings

            yield measure(f"query {what}, {_QUERIED:,} spheres", query, seconds)


def _rendering(client: Client, handle: SceneHandle, name: str, camera: Camera, seconds: float) -> Iterator[Measurement]:
    yield measure(f"render {name}", lambda: client.render(handle, camera).timings, seconds)
    frame = client.render(handle, camera, retain=True)
    upstream = np.ones_like(frame.color)
    try:
        yield measure(f"backward {name}", lambda: frame.backward(color=upstream).timings, seconds)
    finally:
        frame.release()


def throughputs(client: Client, mebibytes: int, seconds: float) -> Iterator[Measurement]:
    """Measures the throughput of tensors of a stored scene, to the worker and back, through the client's lane."""
    count = mebibytes * _MIB // 28
    way = "shared memory" if client.lane == "shared" else "stream"
    # The content is random, so that the scene is not one that is already stored: it is updated below.
    generator = np.random.default_rng()
    cloud = Spheres(generator.random((count, 3)), generator.random((count, 3)), np.ones(count))
    with stored(client, cloud) as handle:
        size, current = 12 * count, handle

        def send() -> None:
            nonlocal current
            current = client.update(current, positions=cloud.positions)

        def receive() -> None:
            client.get(current.scene_id, with_tensors=True)

        yield measure(f"update, {way}", send, seconds, size)
        yield measure(f"get, {way}", receive, seconds, 28 * count)
