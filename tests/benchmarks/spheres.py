"""Benchmark of the sphere engine: `python -m tests.benchmarks.spheres [CASE ...]` from the root of the repository."""

from __future__ import annotations

import argparse
from pathlib import Path

from lumigrad.kernels import _native
from lumigrad.kernels.device import describe, resolve
from tests.benchmarks.measure import Measured, write
from tests.benchmarks.scene import scene
from tests.benchmarks.sphere_kernels import KernelBenchmark
from tests.benchmarks.sphere_marks import PYTORCH3D, REMOTE_OVERHEAD, TARGETS
from tests.benchmarks.sphere_remote import remote_render, socket_copy

CASES = {
    "1k@256x256": (1_000, 256),
    "10k@512x512": (10_000, 512),
    "100k@512x512": (100_000, 512),
    "100k@1024x1024": (100_000, 1024),
    "1M@1024x1024": (1_000_000, 1024),
}
REMOTE = "100k@512x512"
THREADS = 2
RESULTS = Path("build/bench/spheres.json")


def main() -> None:
    """Measures, prints the table and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"some of {', '.join(CASES)}; all if none is named")
    names = parser.parse_args().cases or list(CASES)
    unknown = sorted(set(names) - set(CASES))
    if unknown:
        parser.error(f"CASE: expected some of {', '.join(CASES)}, got {', '.join(unknown)}")
    _native.set_thread_count(THREADS)
    machine = describe(resolve("cpu"))
    print(f"{machine.device_name}, {machine.instruction_set}, {THREADS} threads; milliseconds: median (least)\n")
    print(f"{'scene':<16}{'':<10}{'compat':>20}{'target':>8}{'exact':>20}{'target':>8}{'PyTorch3D':>12}{'faster':>8}")
    rows: list[Measured] = []
    for name in names:
        count, size = CASES[name]
        spheres = scene(count)
        measured = [
            row for kind in ("compat", "exact") for row in KernelBenchmark(name, spheres, size, size, kind).run()
        ]
        for op in ("forward", "backward"):
            print(_line(name, op, [row for row in measured if row.op == op]), flush=True)
        rows += measured
    if REMOTE in names:
        rows += _remote()
    write(rows, RESULTS)
    print(f"\nwrote {RESULTS}")


def _line(name: str, op: str, measured: list[Measured]) -> str:
    compat, exact = measured
    targets, other = TARGETS[name, op], PYTORCH3D[name, op]
    cells = [
        f"{row.median_ms:.2f} ({row.min_ms:.2f})".rjust(20) + f"{target:g}".rjust(8)
        for row, target in zip((compat, exact), targets, strict=True)
    ]
    return f"{name:<16}{op:<10}{''.join(cells)}{other:>12g}{other / compat.median_ms:>7.0f}x"


def _remote() -> list[Measured]:
    count, size = CASES[REMOTE]
    rows = remote_render(REMOTE, scene(count), size, size)
    copy = socket_copy(REMOTE, size * size * 3 * 4)
    print(f"\nremote render of {REMOTE}, scene already there; a socket needs {copy.median_ms:.2f} for the same bytes")
    for row in rows:
        added = row.median_ms - row.kernel_ms
        print(
            f"  {row.semantics:<8}{row.median_ms:.2f} ({row.min_ms:.2f}), of which the kernel {row.kernel_ms:.2f}; "
            f"added {added:.2f} (may be {REMOTE_OVERHEAD:g}), {added / copy.median_ms:.1f} times the socket"
        )
    return rows


if __name__ == "__main__":
    main()
