"""Benchmark of the sphere engine: `python -m tests.benchmarks.spheres [--docs] [CASE ...]` from the root."""

from __future__ import annotations

import argparse
from pathlib import Path

from lumigrad.kernels import _native
from lumigrad.kernels.device import describe, resolve
from tests.benchmarks.measure import Measured, write
from tests.benchmarks.page import insert
from tests.benchmarks.scene import scene
from tests.benchmarks.sphere_kernels import KernelBenchmark

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
PYTORCH3D: dict[tuple[str, str], float] = {
    ("1k@256x256", "forward"): 29.0,
    ("1k@256x256", "backward"): 18.0,
    ("10k@512x512", "forward"): 679.0,
    ("10k@512x512", "backward"): 127.0,
    ("100k@512x512", "forward"): 6399.0,
    ("100k@512x512", "backward"): 152.0,
    ("100k@1024x1024", "forward"): 19984.0,
    ("100k@1024x1024", "backward"): 467.0,
    ("1M@1024x1024", "forward"): 203486.0,
    ("1M@1024x1024", "backward"): 1175.0,
}


def main() -> None:
    """Measures, prints the table and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"some of {', '.join(CASES)}; all if none is named")
    parser.add_argument("--docs", action="store_true", help=f"put the table into {PAGE}")
    arguments = parser.parse_args()
    names = arguments.cases or list(CASES)
    unknown = sorted(set(names) - set(CASES))
    if unknown:
        parser.error(f"CASE: expected some of {', '.join(CASES)}, got {', '.join(unknown)}")
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
    other = PYTORCH3D[name, op]
    cells = [f"{row.median_ms:.2f} ({row.min_ms:.2f})".rjust(20) for row in (compat, exact)]
    return f"{name:<16}{op:<10}{''.join(cells)}{other:>12g}{other / compat.median_ms:>7.0f}x"


def _page_row(name: str, measured: list[Measured]) -> str:
    count, size = name.split("@")
    cells = [f"{count}, {size.split('x')[0]}²", " / ".join(f"{PYTORCH3D[name, op]:,.0f}" for op in OPS)]
    times = {(row.semantics, row.op): row.median_ms for row in measured}
    for kind in ("compat", "exact"):
        several = [times[kind, op] for op in OPS]
        cells.append(" / ".join(f"{time:.0f}" if time >= 20 else f"{time:.1f}" for time in several))
    cells.append(" / ".join(f"{PYTORCH3D[name, op] / times['compat', op]:,.0f}x" for op in OPS))
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
