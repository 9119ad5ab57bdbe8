"""Time of a whole remote render of stored Gaussians; `kernel_ms` is what the worker's kernel took in the same calls."""

from __future__ import annotations

from lumigrad.client import Camera, Client, Gaussians
from support.workers.worker import worker
from tests.benchmarks.gaussians.kernels import SEMANTICS
from tests.benchmarks.gaussians.scene import Scene
from tests.benchmarks.measure import Measured, measure


def remote_render(case: str, scene: Scene) -> Measured:
    """A worker of its own, which has the scene already."""
    with worker("--device", "cpu") as process, Client(process.target) as client:
        handle = client.put(Gaussians(**scene.tensors))
        pose = (scene.rotation, scene.translation)
        camera = Camera.opencv(*scene.intrinsics, *pose, scene.width, scene.height)

        def call() -> float:
            return client.render(handle, camera).timings.kernel_ms

        return measure(case, "remote_render", SEMANTICS, call, seconds=3.0)
