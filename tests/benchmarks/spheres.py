"""Benchmark of the sphere engine: `python -m tests.benchmarks.spheres [--docs] [CASE ...]` from the root."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.device import describe, resolve
from lumigrad.kernels.spheres import Camera, Settings, State, backward, forward
from tests.benchmarks.measure import Measured, measure, write
from tests.benchmarks.page import insert
from tests.benchmarks.scene import CAMERA, GAMMA, MAX_DEPTH, N_TRACK, Scene, output_gradient, scene

CASES = {
    "1k@256x256": (1_000, 256),
    "10k@512x512": (10_000, 512),
    "100k@512x512": (100_000, 512),
    "100k@1024x1024": (100_000, 1024),
    "1M@1024x1024": (1_000_000, 1024),
}
THREADS = 2
OPS = ("forward", "backward")
RESULTS = Path("build/bench/spheres.json")
PAGE = Path("docs/performance.md")

# Milliseconds of PyTorch3D 0.7.9, which uses one thread, measured once on such a machine.
PYTORCH3D = {
    "1k@256x256": {"forward": 29.0, "backward": 18.0},
    "10k@512x512": {"forward": 679.0, "backward": 127.0},
    "100k@512x512": {"forward": 6399.0, "backward": 152.0},
    "100k@1024x1024": {"forward": 19984.0, "backward": 467.0},
    "1M@1024x1024": {"forward": 203486.0, "backward": 1175.0},
}
WANTED = ("positions", "colors", "radii", "cameras")


class KernelBenchmark:
    """A scene on a film of one size; forward keeps what backward needs, as in training."""

    def __init__(self, case: str, scene: Scene, width: int, height: int, semantics: str) -> None:
        self._case, self._semantics = case, semantics
        self._inputs = [torch.from_numpy(values) for values in (scene.positions, scene.colors, scene.radii)]
        self._cameras = [Camera.pulsar(CAMERA, width, height)]
        self._settings = Settings(GAMMA, MAX_DEPTH, semantics=semantics, n_track=N_TRACK)
        self._upstream = {"color": torch.from_numpy(output_gradient(width, height))[None]}

    def run(self) -> list[Measured]:
        """Measures forward, then backward on the state of a forward pass just before it, as in training."""
        forward_times = measure(self._case, "forward", self._semantics, self._forward)
        state = self._state()
        return [forward_times, measure(self._case, "backward", self._semantics, lambda: self._backward(state))]

    def _state(self) -> State:
        state = forward(*self._inputs, self._cameras, self._settings, retain=True).state
        assert state is not None
        return state

    def _forward(self) -> float:
        return sum(forward(*self._inputs, self._cameras, self._settings, retain=True).stages().values())

    def _backward(self, state: State) -> float:
        return sum(backward(state, self._upstream, WANTED).stages().values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", choices=CASES, help="all if none is named")
    parser.add_argument("--docs", action="store_true", help=f"put the table into {PAGE}")
    arguments = parser.parse_args()
    names = arguments.cases or list(CASES)
    _native.set_thread_count(THREADS)
    machine = describe(resolve("cpu"))
    print(f"{machine.device_name}, {machine.instruction_set}, {THREADS} threads; milliseconds: median (least)\n")
    print(f"{'scene':<16}{'':<10}{'compat':>20}{'exact':>20}{'PyTorch3D':>12}{'faster':>8}")
    rows: list[Measured] = []
    table: list[str] = []
    for name in names:
        count, size = CASES[name]
        spheres = scene(count)
        measured = [
            row for kind in ("compat", "exact") for row in KernelBenchmark(name, spheres, size, size, kind).run()
        ]
        for op in OPS:
            print(_line(name, op, [row for row in measured if row.op == op]), flush=True)
        rows += measured
        table.append(_page_row(name, measured))
    write(rows, RESULTS)
    print(f"\nwrote {RESULTS}")
    if arguments.docs:
        insert("benchmark spheres", _page(f"{machine.device_name}, {machine.instruction_set}", table), PAGE)


def _line(name: str, op: str, measured: list[Measured]) -> str:
    compat, exact = measured
    other = PYTORCH3D[name][op]
    cells = [f"{row.median_ms:.2f} ({row.min_ms:.2f})".rjust(20) for row in (compat, exact)]
    return f"{name:<16}{op:<10}{''.join(cells)}{other:>12g}{other / compat.median_ms:>7.0f}x"


def _page_row(name: str, measured: list[Measured]) -> str:
    count, size = name.split("@")
    cells = [f"{count}, {size.split('x')[0]}²", " / ".join(f"{PYTORCH3D[name][op]:,.0f}" for op in OPS)]
    times = {(row.semantics, row.op): row.median_ms for row in measured}
    for kind in ("compat", "exact"):
        several = [times[kind, op] for op in OPS]
        cells.append(" / ".join(f"{time:.0f}" if time >= 20 else f"{time:.1f}" for time in several))
    cells.append(" / ".join(f"{PYTORCH3D[name][op] / times['compat', op]:,.0f}x" for op in OPS))
    return f"| {' | '.join(cells)} |"


def _page(machine: str, table: list[str]) -> str:
    text = [
        f"Medians in milliseconds, forward / backward, in process, on {THREADS} cores ({machine}), warm; a busy "
        "machine is slower. PyTorch3D 0.7.9's CPU build, which uses one thread, was measured once on such a machine.",
        "",
        "| spheres, size | PyTorch3D | `compat` | `exact` | `compat` is faster |",
        "|---|---|---|---|---|",
        *table,
    ]
    return "\n".join(text)


if __name__ == "__main__":
    main()
