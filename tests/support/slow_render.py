"""A render that keeps the device busy for as long as a test needs: ten seconds or more unless it is cancelled."""

from __future__ import annotations

import time
from typing import Any

from lumigrad.protos.wire import Frame
from lumigrad.v1 import render_pb2
from support.raw_calls import RawClient, opencv_camera, spec_of, sphere_cloud
from support.worker import WorkerProcess

VIEWS = 100


class SlowRender:
    """Calls of many views of a scene in which every pixel blends thousands of spheres."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        self._started: list[Any] = []
        self._scene_id = client.put(sphere_cloud(5000, radius=1.0, seed=99)).scene.scene_id

    def request(self, views: int = VIEWS) -> Frame[Any]:
        """The one message of the call."""
        spec = spec_of(*[opencv_camera(256, 256)] * views, scene_id=self._scene_id, gamma=1.0, outputs=["alpha"])
        return Frame(render_pb2.RenderRequest(spec=spec))

    def start(self, views: int = VIEWS, timeout: float = 120.0) -> Any:
        """Start a call; it goes on until it is read to its end, or cancelled."""
        call = self._client.render_stub.Render(iter([self.request(views)]), timeout=timeout)
        self._started.append(call)
        return call

    def cancel(self) -> None:
        """End every call that was started here."""
        for call in self._started:
            call.cancel()

    def seconds_per_view(self) -> float:
        """What one view takes here and now."""
        started = time.perf_counter()
        list(self.start(2))
        return (time.perf_counter() - started) / 2


def wait_for(process: WorkerProcess, metric: str, value: float, seconds: float = 20.0) -> None:
    """Wait until a gauge of the worker has a value."""
    until = time.monotonic() + seconds
    while process.metric(metric) != value:
        if time.monotonic() > until:
            raise TimeoutError(f"{metric} is {process.metric(metric)}, not {value}; the log:\n{process.log}")
        time.sleep(0.02)
