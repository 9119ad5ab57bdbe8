"""Sensor images of many small cameras: one call for all of them, in turns with a call for each.

Colours have 8 bits and depths 16. Writes the table in docs/performance.md with `--docs`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from lumigrad.client import Camera, Client, Frame, Gaussians
from support.workers.worker import WorkerProcess, worker
from tests.benchmarks.page import insert

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
CAMERAS = 64
SENSOR: dict[str, Any] = {
    "outputs": ("color", "expected_depth"),
    "image_format": {"color": "uint8", "expected_depth": "float16"},
}
# Gaussians of each scene, number of scenes, width and height of the images.
CASES = ((1_000, 1, 64), (1_000, 8, 64), (1_000, 64, 64), (10_000, 1, 128), (10_000, 8, 128), (10_000, 64, 128))


@dataclass(frozen=True)
class Row:
    """A case, first with one call, then with a call for each camera.

    Medians of the rounds in milliseconds, the median of their ratios, the mean processor time of client and worker in
    milliseconds, and the launches of the one call.
    """

    case: tuple[int, int, int]
    times_ms: tuple[float, float]
    ratio: float
    processor_ms: tuple[float, float]
    launches: int


def scene(count: int, seed: int) -> Gaussians:
    """Small Gaussians in a ball around the origin."""
    random = np.random.default_rng(seed)
    means, quats = random.normal(size=(count, 3)), random.normal(size=(count, 4))
    opacities, colors = random.uniform(0.2, 0.9, count), random.random((count, 3))
    return Gaussians(means, quats, np.full((count, 3), 0.03), opacities, colors=colors)


def compare(process: WorkerProcess, client: Client, case: tuple[int, int, int], rounds: int) -> Row:
    """Measure a case."""
    count, scenes, size = case
    handles = [client.put(scene(count, seed)) for seed in range(scenes)]
    cameras = [
        Camera.orbit((0, 0, 0), 6.0, 360 * number / CAMERAS, 20.0, width=size, height=size) for number in range(CAMERAS)
    ]
    items = [(handles[number % scenes], camera) for number, camera in enumerate(cameras)]

    def one() -> list[Any]:
        return list(client.render_batch(items, **SENSOR))

    def each() -> list[Any]:
        return [client.render(handle, camera, **SENSOR) for handle, camera in items]

    before = process.metric("lumigrad_batch_views_count")
    _check_equal(one(), each())
    launches = process.metric("lumigrad_batch_views_count") - before - CAMERAS
    measured = psutil.Process(process.process.pid)
    turns = [(_spent(one, measured), _spent(each, measured)) for _ in range(rounds)]
    for handle in handles:
        client.delete(handle)
    ratio = statistics.median(of_each[0] / of_one[0] for of_one, of_each in turns)
    of_one, of_each = (list(zip(*spent, strict=True)) for spent in zip(*turns, strict=True))
    medians = 1e3 * statistics.median(of_one[0]), 1e3 * statistics.median(of_each[0])
    means = 1e3 * statistics.mean(of_one[1]), 1e3 * statistics.mean(of_each[1])
    return Row(case, medians, ratio, means, int(launches))


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    lines = ["| Gaussians per scene | scenes | pictures | launches of one call | time, ms | | processor time, ms | |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for row in rows:
        count, scenes, size = row.case
        (one, each), (one_processor, each_processor) = row.times_ms, row.processor_ms
        times = f"{one:.0f} / {each:.0f} | {row.ratio:.1f}x"
        processor = f"{one_processor:.0f} / {each_processor:.0f} | {each_processor / one_processor:.1f}x"
        lines.append(f"| {count:,} | {scenes} | {CAMERAS} of {size}x{size} | {row.launches} | {times} | {processor} |")
    return "\n".join(lines)


def _check_equal(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        if not isinstance(one, Frame):
            raise one
        for name in other:
            np.testing.assert_array_equal(one[name], other[name])


def _spent(call: Callable[[], object], worker_process: psutil.Process) -> tuple[float, float]:
    """Seconds, and seconds of processor time in this process and in the worker."""
    processor = _processor(worker_process)
    began = time.perf_counter()
    call()
    return time.perf_counter() - began, _processor(worker_process) - processor


def _processor(worker_process: psutil.Process) -> float:
    return time.process_time() + sum(worker_process.cpu_times()[:2])


def main() -> None:
    """Measure all cases, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--docs", action="store_true", help="put the table into docs/performance.md")
    arguments = parser.parse_args()
    with worker("--device", "cpu") as process, Client(process.target) as client:
        text = table([compare(process, client, case, arguments.rounds) for case in CASES])
    print(text)
    if arguments.docs:
        insert("benchmark render_batch", text, PAGE)


if __name__ == "__main__":
    main()
