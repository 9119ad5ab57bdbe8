"""Benchmark of the Gaussian engine: `python -m tests.benchmarks.gaussians [--docs] [CASE ...]` from the root."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from lumigrad.kernels import _native
from lumigrad.kernels.device import describe, resolve
from lumigrad.kernels.gaussians import Camera, Gaussians, Settings, State, backward, forward
from tests.benchmarks.gaussian_scene import DISTANCE, Scene, output_gradient, scene, trained, trained_path
from tests.benchmarks.measure import Measured, measure, write
from tests.benchmarks.page import insert

CASES = {
    "10k@512x512": (10_000, 512, 512),
    "100k@512x512": (100_000, 512, 512),
    "100k@1920x1080": (100_000, 1920, 1080),
    "500k@1920x1080": (500_000, 1920, 1080),
}
TRAINED, TRAINED_LABEL = "biker@960x720", "a trained person, 153k"
THREADS = 2
RESULTS = Path("build/bench/gaussians.json")
PAGE, MARK = Path("docs/performance.md"), "benchmark gaussians"

# Milliseconds of OpenSplat's CPU rasterizer of August 2026 on two threads, measured once on such a machine.
OPENSPLAT = {
    "10k@512x512": {"forward": 33.0, "backward": 29.0},
    "100k@512x512": {"forward": 123.0, "backward": 96.0},
    "100k@1920x1080": {"forward": 906.0, "backward": 551.0},
    "500k@1920x1080": {"forward": 2196.0, "backward": 1310.0},
}
SEMANTICS = "exact"


class KernelBenchmark:
    """A scene on a film of one size; forward keeps what backward needs, as in training."""

    def __init__(self, case: str, scene: Scene, views: int = 1) -> None:
        """Each view is moved sideways by a hundredth of the distance."""
        self._case = case
        self._settings = Settings()
        self.gaussians = Gaussians(**{name: torch.from_numpy(value) for name, value in scene.tensors.items()})
        aside = np.array([0.01 * DISTANCE, 0.0, 0.0], np.float32)
        self.cameras = [
            Camera.opencv(
                *scene.intrinsics, scene.rotation, scene.translation + view * aside, scene.width, scene.height
            )
            for view in range(views)
        ]
        gradient = torch.from_numpy(output_gradient(scene.width, scene.height))
        self._upstream = {"color": gradient.repeat(views, 1, 1, 1)}

    def run(self) -> list[Measured]:
        """Measures forward, then backward on the state of a forward pass just before it, as in training."""
        forward_times = measure(self._case, "forward", SEMANTICS, self.forward)
        state = self.state()
        return [forward_times, measure(self._case, "backward", SEMANTICS, lambda: self.backward(state))]

    def state(self) -> State:
        state = forward(self.gaussians, self.cameras, self._settings, retain=True).state
        assert state is not None
        return state

    def forward(self) -> float:
        """Milliseconds in the kernel's stages."""
        return sum(forward(self.gaussians, self.cameras, self._settings, retain=True).stages().values())

    def backward(self, state: State) -> float:
        """Milliseconds in the kernel's stages, for gradients of every tensor of the scene."""
        return sum(backward(state, self._upstream).stages().values())


def memory_copy() -> Measured:
    """Copies 64 MiB with as many threads as torch has: the limit of the memory bandwidth."""
    source = torch.from_numpy(np.ones(1 << 24, np.float32))
    target = torch.empty_like(source)

    def call() -> float:
        target.copy_(source)
        return 0.0

    return measure("64 MiB", "memory_copy", "none", call, seconds=0.5)


def main() -> None:
    available = [*CASES, TRAINED] if trained_path() else list(CASES)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", action="store_true", help=f"put the table into {PAGE}")
    parser.add_argument(
        "cases",
        nargs="*",
        choices=available,
        metavar="CASE",
        help=f"some of {', '.join(available)}; all if none is named",
    )
    arguments = parser.parse_args()
    names = arguments.cases or available
    _native.set_thread_count(THREADS)
    torch.set_num_threads(THREADS)
    machine = describe(resolve("cpu"))
    copy = memory_copy()
    print(
        f"{machine.device_name}, {machine.instruction_set}, {THREADS} threads, {2 * 64 / 1024 / copy.min_ms * 1e3:.0f} "
        "GiB/s copying; milliseconds: median (least)\n"
    )
    print(f"{'scene':<16}{'forward':>18}{'backward':>18}{'OpenSplat':>14}{'faster':>16}")
    rows, table = [copy], []
    for name in names:
        one = _scene(name)
        measured = KernelBenchmark(name, one).run()
        rows += measured
        print(_line(name, measured), flush=True)
        table.append(_page_row(name, measured))
    write(rows, RESULTS)
    print(f"\nwrote {RESULTS}")
    if arguments.docs:
        insert(MARK, _page(machine.device_name, machine.instruction_set, table), PAGE)


def _scene(name: str) -> Scene:
    path = trained_path()
    if name == TRAINED and path is not None:
        return trained(path)
    return scene(*CASES[name])


def _line(name: str, measured: list[Measured]) -> str:
    cells = [f"{row.median_ms:.1f} ({row.min_ms:.1f})".rjust(18) for row in measured]
    other, faster = "", ""
    if name in OPENSPLAT:
        theirs = [OPENSPLAT[name][row.op] for row in measured]
        other = " / ".join(f"{value:g}" for value in theirs)
        faster = " / ".join(f"{value / row.median_ms:.0f}x" for value, row in zip(theirs, measured, strict=True))
    return f"{name:<16}{''.join(cells)}{other:>14}{faster:>16}"


def _page_row(name: str, measured: list[Measured]) -> str:
    known = name in OPENSPLAT
    other = " / ".join(f"{OPENSPLAT[name][row.op]:,.0f}" for row in measured) if known else "-"
    ours = " / ".join(f"{row.median_ms:.0f}" if row.median_ms >= 20 else f"{row.median_ms:.1f}" for row in measured)
    faster = " / ".join(f"{OPENSPLAT[name][row.op] / row.median_ms:.0f}x" for row in measured) if known else "-"
    count, size = name.split("@")
    label = TRAINED_LABEL if name == TRAINED else count
    return f"| {label}, {size.replace('x', ' x ')} | {other} | {ours} | {faster} |"


def _page(device: str, instructions: str, table: list[str]) -> str:
    exception = " (the trained person: 0)" if any(TRAINED_LABEL in row for row in table) else ""
    text = [
        f"Medians in milliseconds, forward / backward to every tensor of the scene, `{SEMANTICS}`, degree 3{exception}"
        f", in process, on {THREADS} cores ({device}, {instructions}), warm; a busy machine is slower. "
        "OpenSplat's CPU rasterizer of August 2026 was measured once, on two cores of another machine.",
        "",
        "| Gaussians, size | OpenSplat | Lumigrad | faster |",
        "|---|---|---|---|",
        *table,
    ]
    return "\n".join(text)


if __name__ == "__main__":
    main()
