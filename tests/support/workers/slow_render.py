"""A render that keeps the device busy for as long as a test needs: seconds unless it is cancelled."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from lumigrad.protos.wire import Frame
from lumigrad.v1 import render_pb2
from support.calls.gaussian_calls import gaussian_cloud, gaussian_spec
from support.calls.raw_calls import Array, RawClient, opencv_camera, spec_of, sphere_cloud
from support.workers.worker import WorkerProcess

VIEWS, SIZE, COUNT = 100, 256, 5000
# Fewer Gaussians than spheres, since their lists grow with their number times that of the tiles.
GAUSSIANS = 1000


def large_gaussians(count: int = GAUSSIANS) -> dict[str, Array]:
    """Nearly transparent primitives, one behind another, which all contribute."""
    cloud = gaussian_cloud(count, seed=99)
    cloud["scales"] = np.full_like(cloud["scales"], 1.0)
    cloud["opacities"] = np.full_like(cloud["opacities"], 0.005)
    return cloud


class SlowRender:
    """Calls of a scene in which every pixel blends thousands of spheres or Gaussians.

    Each call has one large view that takes the time of several small ones, because other calls run between views. With
    `apart`, it has the small ones.
    """

    def __init__(
        self, client: RawClient, kind: str = "spheres", count: int | None = None, *, apart: bool = False
    ) -> None:
        self._client = client
        self._started: list[Any] = []
        self._kind = kind
        self._apart = apart
        spheres, gaussians = count or COUNT, count or (COUNT if apart else GAUSSIANS)
        cloud = large_gaussians(gaussians) if kind == "gaussians" else sphere_cloud(spheres, radius=1.0, seed=99)
        self._scene_id = client.put(cloud).scene.scene_id

    def request(self, views: int = VIEWS, size: int = SIZE) -> Frame[Any]:
        """The request of one square image with the pixels of `views` images of `size`, or of those if `apart`."""
        make, settings = (gaussian_spec, {}) if self._kind == "gaussians" else (spec_of, {"gamma": 1.0})
        side = size if self._apart else round(size * math.sqrt(views))
        cameras = [opencv_camera(side, side)] * (views if self._apart else 1)
        spec = make(*cameras, scene_id=self._scene_id, outputs=["alpha"], **settings)
        return Frame(render_pb2.RenderRequest(spec=spec))

    def start(self, views: int = VIEWS, timeout: float = 120.0, size: int = SIZE) -> Any:
        """Start a call; it runs until its replies are read, or until it is cancelled."""
        call = self._client.render_stub.Render(iter([self.request(views, size)]), timeout=timeout)
        self._started.append(call)
        return call

    def start_alone(self, process: WorkerProcess, views: int = VIEWS, size: int = SIZE) -> Any:
        """Start a call once no other is in progress, and wait until it is on the device, or even over.

        A call in progress could be counted there in its place until it is recorded, even if its reply has arrived.
        """
        wait_for(process, "lumigrad_calls_in_progress", 0)
        before = process.metric("lumigrad_calls_total")

        def has_begun() -> bool:
            is_at_work = process.metric("lumigrad_calls_in_stage", stage="device") == 1
            return is_at_work or process.metric("lumigrad_calls_total") > before

        call = self.start(views, size=size)
        wait_until(has_begun, "a call on the device")
        return call

    def cancel(self) -> None:
        """End every call that was started here."""
        for call in self._started:
            call.cancel()

    def seconds_per_view(self) -> float:
        """The current time of a small view on this machine, seconds."""
        started = time.perf_counter()
        list(self.start(2))
        return (time.perf_counter() - started) / 2


def wait_until(is_true: Callable[[], bool], what: str = "a condition", seconds: float = 150.0) -> None:
    """Wait until a condition is true."""
    until = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > until:
            raise TimeoutError(f"{what} did not come about")
        time.sleep(0.02)


def wait_for(process: WorkerProcess, metric: str, value: float, seconds: float = 150.0, **labels: str) -> None:
    """Wait until a gauge of the worker has a value."""
    until = time.monotonic() + seconds
    while process.metric(metric, **labels) != value:
        if time.monotonic() > until:
            actual, end = process.metric(metric, **labels), process.log[-3000:]
            raise TimeoutError(f"{metric} is {actual}, not {value}; the log ends:\n{end}")
        time.sleep(0.02)


def worked_seconds(process: WorkerProcess) -> float:
    """The worker's processor time so far, in seconds of work of all processors."""
    return process.processor_seconds() / len(os.sched_getaffinity(0))


def wait_for_work(process: WorkerProcess) -> None:
    """Wait until the one call in progress has kept the device busy for a while."""
    wait_for(process, "lumigrad_calls_in_progress", 1)
    _wait_for_seconds(process)


def wait_for_device(process: WorkerProcess) -> None:
    """Wait until the one call on the device, besides open streams, has kept it busy for a while.

    An earlier call counts there until it is recorded, even if its reply has arrived.
    """
    wait_for(process, "lumigrad_calls_in_stage", 1, stage="device")
    _wait_for_seconds(process)


def _wait_for_seconds(process: WorkerProcess) -> None:
    before = worked_seconds(process)
    wait_until(lambda: worked_seconds(process) > before + 0.05, "work of the device")
