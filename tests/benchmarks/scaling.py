"""Times of the kernels against the size of scenes, images, views and threads: `python -m tests.benchmarks.scaling`."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes

from lumigrad.kernels import _native
from lumigrad.kernels.device import describe, resolve
from tests.benchmarks.gaussian_kernels import KernelBenchmark as GaussianBenchmark
from tests.benchmarks.gaussian_scene import scene as gaussian_scene
from tests.benchmarks.measure import Measured, write
from tests.benchmarks.meshes.kernels import built, distance_rate
from tests.benchmarks.meshes.scene import points, torus
from tests.benchmarks.page import insert
from tests.benchmarks.scene import scene as sphere_scene
from tests.benchmarks.sphere_kernels import KernelBenchmark as SphereBenchmark

ENGINES = ("gaussians", "spheres, compat", "spheres, exact")
OPS = ("forward", "backward")
PRIMITIVES, PIXELS, VIEWS, THREADS = "primitives", "pixels", "views", "threads"
STEPS: dict[str, tuple[int, ...]] = {
    PRIMITIVES: (1_000, 10_000, 100_000, 1_000_000),
    PIXELS: (128**2, 256**2, 512**2, 1024**2, 2048**2),
    VIEWS: (1, 2, 4, 8, 16),
}
# The constant count and size while another quantity grows.
COUNT, SIDE = 100_000, 512
MESH = "70k"
RESULTS, PICTURE, PAGE = Path("build/bench/scaling.json"), Path("docs/images/scaling.png"), Path("docs/performance.md")


@dataclass(frozen=True)
class Series:
    """Median milliseconds of one engine's operation, one for each value of the growing quantity."""

    engine: str
    op: str
    values: tuple[int, ...]
    times: tuple[float, ...]

    @property
    def slope(self) -> float:
        """The exponent fitted to the three largest values: 1 if twice as much takes twice as long."""
        return float(np.polyfit(np.log(self.values[-3:]), np.log(self.times[-3:]), 1)[0])


def main() -> None:
    """Measures, prints the tables and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", action="store_true", help=f"put the tables into {PAGE} and draw {PICTURE}")
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    rows: list[Measured] = []
    threads = _threads(cores, rows)
    _native.set_thread_count(cores)
    grown = {what: _grown(what, rows) for what in STEPS}
    machine = describe(resolve("cpu"))
    text = f"{machine.device_name}, {machine.instruction_set}, {cores} cores.\n\n{_tables(threads, grown)}"
    print(text)
    write(rows, RESULTS)
    print(f"\nwrote {RESULTS}")
    if arguments.docs:
        insert("benchmark scaling", text, PAGE)
        _draw(grown)


def _measured(engine: str, count: int, side: int, views: int, case: str) -> list[Measured]:
    """Measures forward and backward of one call."""
    if engine == "gaussians":
        return GaussianBenchmark(case, gaussian_scene(count, side, side), views).run()
    return SphereBenchmark(case, sphere_scene(count), side, side, engine.removeprefix("spheres, "), views).run()


def _grown(what: str, rows: list[Measured]) -> list[Series]:
    """Measures every engine as one quantity grows."""
    series = []
    for engine in ENGINES:
        taken = []
        for value in STEPS[what]:
            size = {PRIMITIVES: COUNT, PIXELS: 256**2 if what == VIEWS else SIDE**2, VIEWS: 1} | {what: value}
            side = math.isqrt(size[PIXELS])
            taken.append(_measured(engine, size[PRIMITIVES], side, size[VIEWS], f"{engine}: {value} {what}"))
        rows += [row for both in taken for row in both]
        for place, op in enumerate(OPS):
            series.append(Series(engine, op, STEPS[what], tuple(both[place].median_ms for both in taken)))
    return series


def _threads(cores: int, rows: list[Measured]) -> list[Series]:
    """Measures every engine, and signed distances to a mesh, on up to 16 threads, at most one per core."""
    counts = tuple(count for count in (1, 2, 4, 8, 16) if count <= cores)
    mesh, around = built(torus(MESH)), points(torus(MESH), "near")
    times: dict[tuple[str, str], list[float]] = {}
    for count in counts:
        _native.set_thread_count(count)
        for engine in ENGINES:
            measured = _measured(engine, COUNT, SIDE, 1, f"{engine}: {count} {THREADS}")
            rows += measured
            for row in measured:
                times.setdefault((engine, row.op), []).append(row.median_ms)
        distances = distance_rate(MESH, mesh, around)
        times.setdefault((f"mesh of {MESH} triangles", "distances"), []).append(
            len(around) / distances.per_second * 1e3
        )
    return [Series(engine, op, counts, tuple(taken)) for (engine, op), taken in times.items()]


def _tables(threads: Sequence[Series], grown: dict[str, list[Series]]) -> str:
    counts = threads[0].values
    heads = " | ".join("1 thread, ms" if count == 1 else f"{count} threads, ms" for count in counts)
    lines = [
        f"| {COUNT:,} primitives, {SIDE}² | {heads} | speedup |",
        "|---" * (len(counts) + 2) + "|",
    ]
    for one in threads:
        cells = " | ".join(f"{time:.1f}" for time in one.times)
        speedups = ", ".join(f"{one.times[0] / time:.2f}" for time in one.times[1:])
        lines.append(f"| {one.engine}, {one.op} | {cells} | {speedups} |")
    lines += ["", "| exponent | " + " | ".join(grown) + " |", "|---" * (len(grown) + 1) + "|"]
    for place, first in enumerate(grown[PRIMITIVES]):
        slopes = " | ".join(f"{several[place].slope:.2f}" for several in grown.values())
        lines.append(f"| {first.engine}, {first.op} | {slopes} |")
    return "\n".join(lines)


def _draw(grown: dict[str, list[Series]]) -> None:
    matplotlib.use("Agg")
    figure, panels = pyplot.subplots(1, len(grown), figsize=(12, 4), sharey=True, layout="constrained")
    for axes, (what, several) in zip(panels, grown.items(), strict=True):
        _draw_panel(axes, what, several)
    panels[0].set_ylabel("milliseconds")
    panels[0].legend(fontsize=8, frameon=False)
    figure.savefig(PICTURE, dpi=110)


def _draw_panel(axes: Axes, what: str, several: Sequence[Series]) -> None:
    for place, one in enumerate(several):
        axes.loglog(
            one.values,
            one.times,
            color=f"C{place // len(OPS)}",
            linestyle="-" if one.op == "forward" else "--",
            marker="o",
            markersize=3,
            label=f"{one.engine}, {one.op}",
        )
    fixed = {
        PRIMITIVES: f"{SIDE}² pixels, one view",
        PIXELS: f"{COUNT:,} primitives, one view",
        VIEWS: f"{COUNT:,} primitives, 256² pixels",
    }
    axes.set_xlabel(what)
    axes.set_title(fixed[what], fontsize=10)
    axes.grid(True, which="major", alpha=0.3)


if __name__ == "__main__":
    main()
