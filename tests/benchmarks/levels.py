"""The time of a view of ever larger cities of Gaussians: `python -m tests.benchmarks.levels [--docs]`.

The cities are random, and made page by page while they are sent. All are seen by the same cameras above their middle:
one looks down, the other at the horizon. Rounds go through all cities in turn. Then a camera flies around a city of
which only a part fits into the memory for scenes: once with packed pages and once, as for gradients, with float32.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lumigrad.client import Camera, Client, Frame, SceneHandle
from support.gaussians.levels import EDGE, city
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
PAGE, MARK, FLIGHT_MARK = Path("docs/performance.md"), "benchmark levels", "benchmark flight"
MIB = 1 << 20
# The city of the flight: pages along an edge, rows of a page, degree of harmonics, and memory for scenes in MiB.
FLIGHT_SIDE, FLIGHT_ROWS, FLIGHT_DEGREE, FLIGHT_MIB = 8, 16384, 3, 192
STEPS, TURNS = 24, 3
FLIGHT_ERROR_PX = 0.25


@dataclass(frozen=True)
class View:
    """The view of one city; medians of times in milliseconds, as the worker measures them.

    Attributes:
        camera: A name in `CAMERAS`.
        total: Gaussians of the finest level.
        drawn: Gaussians that the view shows.
        first_ms: The first call, whose pages come from the spool.
        view_ms: Later calls.
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
    parser.add_argument("--flight", action="store_true", help="measure the flight alone")
    arguments = parser.parse_args()
    views = [] if arguments.flight else measured([side for side in SIDES if side <= arguments.most])
    flights = flown()
    texts = {MARK: table(views), FLIGHT_MARK: flight_table(flights)}
    if arguments.flight:
        del texts[MARK]
    for mark, text in texts.items():
        print(text)
        if arguments.docs:
            insert(mark, text, PAGE)
    write([*views, *flights], RESULTS)


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
    """Calls for one view of one city."""

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
        """Measures the calls once more."""
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


@dataclass(frozen=True)
class Flight:
    """A flight around a city; medians over the frames after the first turn.

    Attributes:
        pages: The form of pages in memory.
        drawn: Gaussians of a frame.
        read_mb: Read from the spool for a frame, on average.
        pages_ms: The time in which a frame's pages were gathered, on average.
        frame_ms: The worker's time of a frame.
        still_ms: The same for a camera that stands still.
    """

    pages: str
    drawn: int
    read_mb: float
    pages_ms: float
    frame_ms: float
    still_ms: float


class _Flying:
    """A worker of its own, with one form of pages, and a camera that flies around the city."""

    def __init__(self, pages: str, stack: ExitStack) -> None:
        self.pages = pages
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        memory = "--scene-mib", str(FLIGHT_MIB), "--max-payload-mib", str(FLIGHT_MIB)
        self._process = stack.enter_context(worker("--device", "cpu", "--spool", folder, *memory))
        self._client = stack.enter_context(Client(self._process.target, timeout_s=3600))
        levels = city(FLIGHT_SIDE, FLIGHT_ROWS, sh_degree=FLIGHT_DEGREE)
        self._scene = self._client.get(self._client.put(levels).scene_id)
        self._drawn: list[int] = []
        self._read_mb: list[float] = []
        self._pages_ms: list[float] = []
        self._frame_ms: list[float] = []
        self._still_ms: list[float] = []

    def step(self, step: int) -> None:
        """Draw a frame of the flight, and the same again."""
        read, gathered = self._read(), self._gathered()
        frame = self._draw(step)
        assert frame.levels is not None
        assert not frame.levels.coarse_pages
        if step >= STEPS:
            self._drawn.append(sum(frame.levels.counts))
            self._read_mb.append((self._read() - read) / 1e6)
            self._pages_ms.append((self._gathered() - gathered) * 1e3)
            self._frame_ms.append(frame.timings.worker_ms)
            self._still_ms.append(self._draw(step).timings.worker_ms)

    def flight(self) -> Flight:
        """The figures of the frames that were drawn."""
        median, mean = statistics.median, statistics.mean
        times = mean(self._pages_ms), median(self._frame_ms), median(self._still_ms)
        return Flight(self.pages, int(median(self._drawn)), mean(self._read_mb), *times)

    def _draw(self, step: int) -> Frame:
        angle, radius = 2 * math.pi * step / STEPS, EDGE * (FLIGHT_SIDE / 2 - 1.5)
        x, z = radius * math.cos(angle), radius * math.sin(angle)
        ahead = (x - 2 * EDGE * math.sin(angle), 0, z + 2 * EDGE * math.cos(angle))
        camera = Camera.look_at((x, -2, z), ahead, (0, -1, 0), **_SIZE)
        retain = self.pages == "float32"
        return self._client.render(self._scene, camera, max_error_px=FLIGHT_ERROR_PX, retain=retain)

    def _gathered(self) -> float:
        return self._process.metric("lumigrad_stage_seconds_sum", stage="pages")

    def _read(self) -> int:
        """Bytes that the worker has read, which are those of files: sockets are received from."""
        text = Path(f"/proc/{self._process.process.pid}/io").read_text()
        return int(text.split("rchar:")[1].split()[0])


def flown() -> list[Flight]:
    """Flights with both forms of pages, frame by frame in turn."""
    with ExitStack() as stack:
        flying = [_Flying(pages, stack) for pages in ("float32", "packed")]
        for step in range(STEPS * (TURNS + 1)):
            for each in flying if step % 2 else reversed(flying):
                each.step(step)
        return [each.flight() for each in flying]


def flight_table(flights: list[Flight]) -> str:
    """The results as a table."""
    lines = [
        "| pages in memory | drawn | read for a frame, MB | gathering pages, ms | frame, ms | the same again, ms |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {each.pages} | {each.drawn:,} | {each.read_mb:.1f} | {each.pages_ms:.0f} | {each.frame_ms:.0f} | "
        f"{each.still_ms:.0f} |"
        for each in flights
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
