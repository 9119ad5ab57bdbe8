"""gpu-profile: Nsight Compute's counts for the slowest kernels, and what their warps wait for.

python -m tests.gpu.profiling ENGINE     runs its kernels
"""

from __future__ import annotations

import argparse
import csv
import shutil
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cuda_budgets.usage import plain
from tests.gpu.context import STARTED, Context, copy, environment, python

METRICS = {
    "gpu__time_duration.sum": "duration",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_pct",
    "dram__bytes.sum": "dram_bytes",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "l2_pct",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "sm_pct",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy_pct",
    "smsp__inst_executed.sum": "instructions",
    "smsp__inst_executed_op_shared_atom.sum": "shared_atomics",
    "launch__registers_per_thread": "registers",
    "launch__grid_size": "blocks",
}
# Reasons for which a warp that issues nothing waits.
REASONS = (
    "barrier", "long_scoreboard", "short_scoreboard", "mio_throttle", "lg_throttle", "math_pipe_throttle", "wait",
    "not_selected",
)  # fmt: skip
_STALLS = {f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio": reason for reason in REASONS}


@dataclass(frozen=True)
class Engine:
    """The profiled kernels of an engine, and its part of the remaining time."""

    kernels: str
    share: float


# Kernels of sorts and sums are left out: they are many, and limited by their launches.
ENGINES = {
    "gaussians": Engine("project_kernel|list_tiles_kernel|draw_kernel|pixels_kernel|gaussians_kernel", 0.5),
    "spheres": Engine("setup_kernel|list_tiles_kernel|draw_kernel|pairs_kernel|finish_kernel", 0.5),
    "meshes": Engine("rows_kernel|leaves_kernel", 0.5),
    "training": Engine("map_kernel|gradient_kernel|adam_kernel|sums_kernel", 1.0),
}
# The profiler runs each launch several times, and in between restores the memory that it writes.
_MOST_LAUNCHES = 16


def run(context: Context) -> dict[str, Any]:
    """Profiles one pass of each engine with ncu; writes ncu.csv and a summary, which grow with each engine."""
    ncu = shutil.which("ncu")
    if ncu is None:
        return {"status": "not here", "why": "no ncu"}
    table, part = context.out / "ncu.csv", context.out / "ncu.part"
    table.unlink(missing_ok=True)
    found: dict[str, Any] = {"engines": {}, "kernels": {}}
    for engine, what in ENGINES.items():
        found["engines"][engine] = {"status": STARTED}
        context.write("profile", found)
        found["engines"][engine] = _profiled(context, ncu, engine, part, what.share * context.left())
        if part.is_file():
            append(part, table)
        found["kernels"] = summary(table) if table.is_file() else {}
        context.write("profile", found)
    part.unlink(missing_ok=True)
    bad = [f"{engine}: {each['status']}" for engine, each in found["engines"].items() if each["status"] != "ok"]
    return {**found, "status": "; ".join(bad) or ("ok" if found["kernels"] else "no kernels were profiled")}


def _profiled(context: Context, ncu: str, engine: str, part: Path, seconds: float) -> dict[str, Any]:
    part.unlink(missing_ok=True)
    options = [
        "--clock-control", "none", "--target-processes", "all", "--profile-from-start", "off", "--csv",
        "--page", "raw", "--print-units", "base", "--kernel-name-base", "function",
        "--kernel-name", f"regex:^({ENGINES[engine].kernels})$", "--launch-count", str(_MOST_LAUNCHES),
        "--metrics", ",".join([*METRICS, *_STALLS]), "--log-file", str(part),
    ]  # fmt: skip
    program = python("-m", "tests.gpu.profiling", engine, "--device", context.device)
    done = context.run([ncu, *options, *program], limit=seconds, environment=environment())
    found = {"status": done.status, "seconds": done.seconds}
    return found if done.code == 0 else {**found, "output": done.tail()}


def append(part: Path, table: Path) -> None:
    """Appends the rows of a table to another table without other lines; the first row has the names of the columns."""
    rows = [line for line in part.read_text(encoding="utf-8").splitlines() if line.startswith('"')]
    before = table.read_text(encoding="utf-8") if table.is_file() else ""
    kept = [row for row in rows if not before or not row.startswith('"ID"')]
    table.write_text(before + "".join(f"{row}\n" for row in kept), encoding="utf-8")
    copy(table)


def summary(table: Path) -> dict[str, dict[str, Any]]:
    """The number of launches and the medians of the counts of each kernel, those that take longest first.

    "stalls" has, by reason, how many warps wait for it while one instruction is issued.
    """
    columns = {**METRICS, **_STALLS}
    launches: dict[str, list[dict[str, float]]] = {}
    for row in csv.DictReader(table.read_text(encoding="utf-8").splitlines()):
        # A row without a number contains the units.
        if row["ID"]:
            counted = {short: _number(row.get(long)) for long, short in columns.items()}
            launches.setdefault(plain(row["Kernel Name"]), []).append(counted)
    kernels: dict[str, dict[str, Any]] = {}
    for name, rows in launches.items():
        medians = {short: statistics.median(row[short] for row in rows) for short in columns.values()}
        stalls = {reason: medians.pop(reason) for reason in REASONS}
        kernels[name] = {"launches": len(rows), **medians, "stalls": stalls}
    return dict(sorted(kernels.items(), key=lambda kernel: -kernel[1]["launches"] * kernel[1]["duration"]))


def _number(text: str | None) -> float:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return 0.0


def main() -> None:
    """Runs one pass of an engine between the profiler's start and stop, after a pass that warms up."""
    import torch

    from tests.gpu.device import Device

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    device = Device(arguments.device)
    with device.engines():
        for call in _calls(device, arguments.engine):
            call(0)
            device.synchronize()
            if not device.on_host:
                torch.cuda.profiler.start()
            call(1)
            device.synchronize()
            if not device.on_host:
                torch.cuda.profiler.stop()


def _calls(device: Any, engine: str) -> Iterator[Callable[[int], object]]:
    """Calls one after another, so that only the profiled data is in memory."""
    from tests.benchmarks.gaussian_scene import scene
    from tests.gpu import cases

    film, many = cases.film_of(device), device.size(1_000_000, 300)
    if engine == "gaussians":
        calls = cases.Splats(device, scene(many, *film)).calls()
        yield from (calls["forward"], calls["backward"])
    elif engine == "spheres":
        for semantics in ("exact", "compat"):
            yield from cases.sphere_calls(device, device.size(100_000, 200), *film, semantics).values()
    elif engine == "meshes":
        yield from cases.mesh_calls(device, device.size("70k", "1k")).values()
    else:
        yield from cases.loss_calls(device, *film).values()
        yield cases.Adam(device, many).step


if __name__ == "__main__":
    main()
