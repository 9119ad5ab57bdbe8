"""The time of one view of cities of more and more Gaussians: `python -m tests.benchmarks.levels [--docs]`.

The cities are random, and made page by page while they are sent. All are seen by the same cameras above their middle;
one looks down and the other at the horizon. Rounds go through all cities in turn.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lumigrad.client import Camera, Client, SceneHandle
from support.gaussians.levels import city
from support.workers.worker import WorkerProcess, worker
from tests.benchmarks.measure import write
from tests.benchmarks.page import insert

# Pages along an edge of each city, of 65,536 Gaussians each: 0.26 to 105 million. The last takes minutes to send.
SIDES = (2, 4, 8, 16, 40)
PAGE_ROWS = 65536
_SIZE = {"width": 1280, "height": 720, "fov_degrees": 60}
CAMERAS = {
    "down": Camera.look_at((0, -4, 0), (0, 0, 0), (0, 0, 1), **_SIZE),
    "horizon": Camera.look_at((0, -2, 0), (8, 0, 8), (0, -1, 0), **_SIZE),
}
ROUNDS = 7
RESULTS = Path("build/bench/levels.json")
PAGE, MARK = Path("docs/performance.md"), "benchmark levels"
MIB = 1 << 20


@dataclass(frozen=True)
class View:
    """The view of one city; times in milliseconds as the worker measures them, medians.

    Attributes:
        camera: A name in `CAMERAS`.
        total: Gaussians of the finest level.
        drawn: Gaussians that the view shows.
        first_ms: The first call, whose pages come from the spool.
        view_ms: Calls after it.
        gradients_ms: Calls of Backward.
        pool_mib: Memory of pages and cut that the first call has added.
    """

    camera: str
    total: int
    drawn: int
    first_ms: float
    view_ms: float
    gradients_ms: float
    pool_mib: float


def main() -> None:
    """Measures, prints the table and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", action="store_true", help=f"put the table into {PAGE}")
    parser.add_argument("--most", type=int, default=SIDES[-1], help="pages along the edge of the largest city")
    arguments = parser.parse_args()
    views = measured([side for side in SIDES if side <= arguments.most])
    text = table(views)
    print(text)
    write(views, RESULTS)
    if arguments.docs:
        insert(MARK, text, PAGE)


def measured(sides: list[int]) -> list[View]:
    """The views of all cities."""
    with (
        tempfile.TemporaryDirectory() as folder,
        worker("--device", "cpu", "--spool", folder) as process,
        Client(process.target, timeout_s=3600) as client,
    ):
        scenes = [client.get(client.put(city(side, PAGE_ROWS, sh_degree=0)).scene_id) for side in sides]
        calls = [_Call(client, process, scene, name) for name in CAMERAS for scene in scenes]
        for _ in range(ROUNDS):
            for call in calls:
                call.repeat()
        return [call.view() for call in calls]


class _Call:
    """One camera above one city."""

    def __init__(self, client: Client, process: WorkerProcess, scene: SceneHandle, name: str) -> None:
        self._client, self._scene, self._name = client, scene, name
        before = process.metric("lumigrad_scene_bytes")
        frame = client.render(scene, CAMERAS[name])
        assert frame.levels is not None
        assert not frame.levels.coarse_pages
        self._first_ms, self._drawn = frame.timings.worker_ms, sum(frame.levels.counts)
        self._bytes = process.metric("lumigrad_scene_bytes") - before
        self._view_ms: list[float] = []
        self._gradients_ms: list[float] = []

    def repeat(self) -> None:
        """Measures it once more."""
        camera = CAMERAS[self._name]
        self._view_ms.append(self._client.render(self._scene, camera).timings.worker_ms)
        frame = self._client.render(self._scene, camera, retain=True)
        gradients = frame.backward(np.ones_like(frame.color), release=True)
        self._gradients_ms.append(gradients.timings.worker_ms)

    def view(self) -> View:
        """The medians."""
        medians = statistics.median(self._view_ms), statistics.median(self._gradients_ms)
        return View(self._name, self._scene.count, self._drawn, self._first_ms, *medians, self._bytes / MIB)


def exponent(views: list[View], name: str) -> float:
    """The slope of a value against the total on logarithmic axes."""
    totals = np.log([view.total for view in views])
    return float(np.polyfit(totals, np.log([getattr(view, name) for view in views]), 1)[0])


def table(views: list[View]) -> str:
    """The results as a table, with exponents against the number of Gaussians in all."""
    lines = [
        "| camera | Gaussians in all | drawn | first view, ms | view, ms | gradients, ms | pages and cut, MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for camera in CAMERAS:
        mine = [view for view in views if view.camera == camera]
        lines += [
            f"| {camera} | {view.total:,} | {view.drawn:,} | {view.first_ms:.0f} | {view.view_ms:.0f} | "
            f"{view.gradients_ms:.0f} | {view.pool_mib:.0f} |"
            for view in mine
        ]
        if len(mine) > 1:
            slopes = [f"{exponent(mine, name):.2f}" for name in ("drawn", "view_ms", "gradients_ms")]
            lines.append(f"| {camera} | exponent | {slopes[0]} | | {slopes[1]} | {slopes[2]} | |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
