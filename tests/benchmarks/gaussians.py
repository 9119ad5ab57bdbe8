"""Benchmark of the Gaussian engine: `python -m tests.benchmarks.gaussians [--docs] [CASE ...]` from the root."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.device import describe, resolve
from tests.benchmarks.gaussian_kernels import SEMANTICS, KernelBenchmark, memory_copy
from tests.benchmarks.gaussian_scene import Scene, scene, trained, trained_path
from tests.benchmarks.measure import Measured, write
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
OPENSPLAT: dict[tuple[str, str], float] = {
    ("10k@512x512", "forward"): 33.0,
    ("10k@512x512", "backward"): 29.0,
    ("100k@512x512", "forward"): 123.0,
    ("100k@512x512", "backward"): 96.0,
    ("100k@1920x1080", "forward"): 906.0,
    ("100k@1920x1080", "backward"): 551.0,
    ("500k@1920x1080", "forward"): 2196.0,
    ("500k@1920x1080", "backward"): 1310.0,
}


def main() -> None:
    """Measures, prints the table and writes the results."""
    available = [*CASES, TRAINED] if trained_path() else list(CASES)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", action="store_true", help=f"put the table into {PAGE}")
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"some of {', '.join(available)}; all if none is named"
    )
    arguments = parser.parse_args()
    names = arguments.cases or available
    unknown = sorted(set(names) - set(available))
    if unknown:
        parser.error(f"CASE: expected some of {', '.join(available)}, got {', '.join(unknown)}")
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
    if (name, "forward") in OPENSPLAT:
        theirs = [OPENSPLAT[name, row.op] for row in measured]
        other = " / ".join(f"{value:g}" for value in theirs)
        faster = " / ".join(f"{value / row.median_ms:.0f}x" for value, row in zip(theirs, measured, strict=True))
    return f"{name:<16}{''.join(cells)}{other:>14}{faster:>16}"


def _page_row(name: str, measured: list[Measured]) -> str:
    known = (name, "forward") in OPENSPLAT
    other = " / ".join(f"{OPENSPLAT[name, row.op]:,.0f}" for row in measured) if known else "-"
    ours = " / ".join(f"{row.median_ms:.0f}" if row.median_ms >= 20 else f"{row.median_ms:.1f}" for row in measured)
    faster = " / ".join(f"{OPENSPLAT[name, row.op] / row.median_ms:.0f}x" for row in measured) if known else "-"
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
