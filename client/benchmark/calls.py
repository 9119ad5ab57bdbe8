"""What is measured: calls of each kind, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from lumigrad.client.benchmark import scenes
from lumigrad.client.benchmark.measure import Measurement, measure
from lumigrad.client.camera import Camera
from lumigrad.client.client import Client
from lumigrad.client.gaussians import Gaussians
from lumigrad.client.scene import Scene, SceneHandle
from lumigrad.client.spheres import Spheres
from lumigrad.client.timings import Timings

_QUERIED = 10_000
_MIB = 1 << 20


def measurements(
    client: Client, camera_of: dict[str, Camera], scene: Gaussians | Spheres, seconds: float
) -> Iterator[Measurement]:
    """Round trips, renderings and their gradients, and distances.

    Args:
        client: of the worker.
        camera_of: what to render, by the names of the lines.
        scene: is not deleted from the worker if it is there already.
        seconds: for each line.
    """

    def trip() -> None:
        client.info()

    yield measure("round trip", trip, seconds)
    with _stored(client, scene) as handle:
        for name, camera in camera_of.items():
            yield from _rendering(client, handle, name, camera, seconds)
    mesh, spheres = scenes.ring(), scenes.spheres(_QUERIED)
    with _stored(client, mesh) as handle:
        for what, outputs in {"distance": ("distance",), "closest": ("distance", "normal", "closest")}.items():

            def query(outputs: Sequence[str] = outputs) -> Timings:
                return client.query(handle, spheres, outputs=outputs).timings

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
    """Tensors of a stored scene to the worker and back, by the client's lane."""
    count = mebibytes * _MIB // 28
    generator = np.random.default_rng(1)
    cloud = Spheres(generator.random((count, 3)), generator.random((count, 3)), np.ones(count))
    with _stored(client, cloud) as handle:
        size, current = 12 * count, handle

        def send() -> None:
            nonlocal current
            current = client.update(current, positions=cloud.positions)

        def receive() -> None:
            client.get(current.scene_id, with_tensors=True)

        yield measure(f"update, {client.lane} lane", send, seconds, size)
        yield measure(f"get, {client.lane} lane", receive, seconds, 28 * count)


@contextmanager
def _stored(client: Client, scene: Scene) -> Iterator[SceneHandle]:
    """On the worker, and afterwards only if it was there before."""
    before = {handle.scene_id for handle in client.list()}
    handle = client.put(scene)
    try:
        yield handle
    finally:
        if handle.scene_id not in before:
            client.delete(handle)
