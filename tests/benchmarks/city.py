"""Views of cities of up to 100 million Gaussians from ten cameras: `python -m tests.benchmarks.city [--docs]`.

Times are processor times of the worker, which other programs on the machine hardly change. Each view is compared with
an image of all Gaussians in view, and both with the truth: an image of all Gaussians with four samples per pixel.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

import matplotlib
import numpy as np
from matplotlib import pyplot

from lumigrad.client import Camera, Client, GaussianSettings, SceneHandle
from lumigrad.client.base.arrays import Float32
from support.workers.worker import WorkerProcess, worker
from tests.benchmarks.city_pages import blocks
from tests.benchmarks.measure import write
from tests.benchmarks.page import insert

# The cameras see no end of the smaller city except at the horizon.
TOTALS = (10_000_000, 100_000_000)
ROUNDS = 3
# Scene units by which the camera of each new view has moved.
STEP = 0.003
# Eye, target and vertical field of view in degrees; z is up, and blocks have 24 units.
PLACES: dict[str, tuple[tuple[float, float, float], tuple[float, float, float], float]] = {
    "street": ((12, -12, 2), (12, 48, 6), 36),
    "crossing": ((12, 12, 2), (60, 60, 8), 20),
    "vase": ((0, -14, 2.5), (0, -9, 0.5), 36),
    "windows": ((9, -30, 10), (3, -6, 8), 20),
    "corner": ((-12, -30, 12), (0, 0, 0), 36),
    "house": ((0, -40, 60), (0, 10, 0), 36),
    "map": ((0, -1, 150), (0, 0, 0), 36),
    "slope": ((40, -80, 120), (0, 20, 0), 36),
    "roofs": ((-30, -30, 45), (30, 30, 20), 20),
    "quarter": ((0, -110, 140), (0, 15, 0), 36),
}
WIDTH, HEIGHT = 1920, 1080
# Allowed errors of levels, in pixels.
ERRORS = (0.5, 1.0, 4.0)
# All Gaussians are level 0, the only one without an error.
ALL = GaussianSettings(antialiased=True, max_error_px=1e-6)
RESULTS, PICTURE = Path("build/bench/city.json"), Path("docs/images/levels.png")
PAGE, MARK = Path("docs/performance.md"), "benchmark city"


@dataclass(frozen=True)
class View:
    """A view of a city from a camera; times in milliseconds of a processor.

    Attributes:
        camera: A name in `PLACES`.
        error_px: The allowed error of levels.
        total: Gaussians of the finest level.
        drawn: Gaussians that are drawn.
        blended: Drawn Gaussians that contribute to a pixel.
        view_ms: A call of a view that was drawn at least three times.
        new_ms: A call from a camera that has moved a little, whose pages are in memory.
        gradients_ms: A call of Backward.
        in_view: Gaussians of level 0 in view and not hidden, 0 if they were too many to be drawn.
        apart_db: PSNR of the view against that of all Gaussians.
        levels_db: PSNR of the view against the truth.
        all_db: PSNR of the view of all Gaussians against the truth.
    """

    camera: str
    error_px: float
    total: int
    drawn: int
    blended: int
    view_ms: float
    new_ms: float
    gradients_ms: float
    in_view: int = 0
    apart_db: float = 0.0
    levels_db: float = 0.0
    all_db: float = 0.0


def main() -> None:
    """Measures, prints the table and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", action="store_true", help=f"put the table into {PAGE} and draw {PICTURE}")
    parser.add_argument("--spool", help="a folder that keeps the cities for the next time")
    parser.add_argument("--most", type=int, default=TOTALS[-1], help="Gaussians of the largest city")
    parser.add_argument("--in-view", type=int, default=16_000_000, help="compare views of at most so many; 0: none")
    arguments = parser.parse_args()
    totals = [total for total in TOTALS if total <= arguments.most]
    with nullcontext(arguments.spool) if arguments.spool else tempfile.TemporaryDirectory() as folder:
        views, note = measured(totals, folder, arguments.in_view)
    text = f"{table(views)}\n\n{note}"
    print(text)
    write(views, RESULTS)
    if arguments.docs:
        insert(MARK, text, PAGE)
        draw(views)


def measured(totals: Sequence[int], folder: str, most: int) -> tuple[list[View], str]:
    """All views of all cities, and a sentence about the worker's memory."""
    options = "--device", "cpu", "--spool", folder, "--scene-mib", "2560", "--max-call-seconds", "7200"
    views = []
    with worker(*options) as process, Client(process.target, timeout_s=7200) as client:
        for total in sorted(totals, reverse=True):
            scene = client.get(client.put(blocks(total)).scene_id)
            for camera in PLACES:
                every = Every.of(client, scene, camera, most)
                for error_px in ERRORS:
                    views.append(_view(client, process, scene, camera, error_px, every))
                    print(views[-1], flush=True)
        pool = process.metric("lumigrad_scene_bytes") / (1 << 20)
        # The peak memory of the process, "VmHWM: N kB".
        status = Path(f"/proc/{process.process.pid}/status").read_text()
        resident = int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024
    return views[::-1], f"The pool held {pool:,.0f} MiB at the end, and the worker had {resident:,.0f} MiB at most."


def _view(
    client: Client, process: WorkerProcess, scene: SceneHandle, name: str, error_px: float, every: Every | None
) -> View:
    """Measures the view of one camera in one city."""
    camera, settings = _camera(name), GaussianSettings(antialiased=True, max_error_px=error_px)
    image = client.render(scene, camera, settings=settings)
    for _ in range(2):
        client.render(scene, camera, settings=settings)
    assert image.levels is not None
    assert not image.levels.coarse_pages
    upstream = np.ones_like(image.color)
    repeated, new, gradients = list[float](), list[float](), list[float]()
    blended = 0
    for turn in range(ROUNDS):
        repeated.append(_taken(process, lambda: client.render(scene, camera, settings=settings)))
        moved = _camera(name, forward=(turn + 1) * STEP)
        new.append(_taken(process, partial(client.render, scene, moved, settings=settings)))
        client.render(scene, camera, settings=settings)
    for _ in range(ROUNDS):
        frame = client.render(scene, camera, settings=settings, retain=True)
        before = process.processor_seconds()
        blended = len(frame.backward(upstream, release=True).index)
        gradients.append((process.processor_seconds() - before) * 1e3)
    view = View(
        name, error_px, scene.count, sum(image.levels.counts), blended, *map(median, (repeated, new, gradients))
    )
    if every is None:
        return view
    decibels = psnr(image.color, every.color), psnr(image.color, every.truth), psnr(every.color, every.truth)
    return replace(view, in_view=every.count, apart_db=decibels[0], levels_db=decibels[1], all_db=decibels[2])


@dataclass(frozen=True)
class Every:
    """Images of all Gaussians that are in view and not hidden, with one and with four samples per pixel."""

    count: int
    color: Float32
    truth: Float32

    @staticmethod
    def of(client: Client, scene: SceneHandle, name: str, most: int) -> Every | None:
        """Renders both images; None if more than `most` Gaussians are in view."""
        if not most:
            return None
        room = replace(ALL, max_gaussians=most)
        drawn = client.render(scene, _camera(name), settings=room)
        assert drawn.levels is not None
        if drawn.levels.coarse_pages:
            return None
        fine = client.render(scene, _camera(name, 2), settings=room).color
        return Every(sum(drawn.levels.counts), drawn.color, fine.reshape(HEIGHT, 2, WIDTH, 2, 3).mean(axis=(1, 3)))


def _camera(name: str, scale: float = 1, forward: float = 0) -> Camera:
    place, target, fov = PLACES[name]
    eye = np.array(place) + forward * np.sign(np.subtract(target, place))
    size = {"width": round(WIDTH * scale), "height": round(HEIGHT * scale)}
    return Camera.look_at(eye.tolist(), target, (0, 0, 1), fov_degrees=fov, **size)


def _taken(process: WorkerProcess, call: Callable[[], object]) -> float:
    """The processor time, in milliseconds, that a call takes the worker."""
    before = process.processor_seconds()
    call()
    return (process.processor_seconds() - before) * 1e3


def psnr(image: Float32, truth: Float32) -> float:
    """Decibels between two images with values from 0 to 1."""
    return float(-10 * np.log10(np.square(image.clip(0, 1) - truth.clip(0, 1)).mean() + 1e-12))


def exponent(views: Sequence[View], name: str) -> float:
    """The slope of a value against the total on logarithmic axes."""
    if len(views) < 2:
        return float("nan")
    return float(np.polyfit(np.log([v.total for v in views]), np.log([getattr(v, name) for v in views]), 1)[0])


def table(views: Sequence[View]) -> str:
    """A row for each camera: Gaussians drawn and times in all cities, and PSNR in the largest."""
    totals = sorted({view.total for view in views})
    sizes = ", ".join(f"{total / 1e6:.0f}M" for total in totals)
    lines = [
        f"| camera | error, px | drawn, thousands, of {sizes} | blended | view, ms | exponent | new view, ms "
        "| exponent | gradients, ms | exponent | compared in | all, dB | levels, dB |",
        "|---" * 13 + "|",
    ]
    for camera, error_px in product(PLACES, ERRORS):
        mine = [view for view in views if (view.camera, view.error_px) == (camera, error_px)]
        rows = " | ".join(
            " / ".join(f"{getattr(view, name) / 1e3:.0f}" for view in mine) for name in ("drawn", "blended")
        )
        times = " | ".join(
            f"{' / '.join(f'{getattr(view, name):.0f}' for view in mine)} | {exponent(mine, name):.2f}".replace(
                "nan", "-"
            )
            for name in ("view_ms", "new_ms", "gradients_ms")
        )
        last = next((view for view in reversed(mine) if view.in_view), None)
        compared = (
            "- | - | -"
            if last is None
            else f"{last.total / 1e6:.0f}M | {last.all_db:.1f} | {last.levels_db - last.all_db:+.1f}"
        )
        lines.append(f"| {camera} | {error_px:g} | {rows} | {times} | {compared} |")
    return "\n".join(lines)


def draw(views: Sequence[View]) -> None:
    """Plots the times against the sizes of the cities, with a line for each camera."""
    matplotlib.use("Agg")
    figure, panels = pyplot.subplots(len(ERRORS), 3, figsize=(12, 10), sharex=True, sharey="col", layout="constrained")
    titles = {"drawn": "Gaussians drawn", "view_ms": "view, processor ms", "gradients_ms": "gradients, processor ms"}
    for row, error_px in zip(panels, ERRORS, strict=True):
        for axes, (name, title) in zip(row, titles.items(), strict=True):
            for camera in PLACES:
                mine = [view for view in views if (view.camera, view.error_px) == (camera, error_px)]
                values = [getattr(view, name) for view in mine]
                axes.loglog([view.total for view in mine], values, marker="o", markersize=3, label=camera)
            axes.set_title(f"{title}, error {error_px:g} px", fontsize=10)
            axes.grid(True, which="major", alpha=0.3)
    for axes in panels[-1]:
        axes.set_xlabel("Gaussians of the city")
    panels[0, 0].legend(fontsize=8, frameon=False, ncols=2)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    main()
