"""gpu-profile: what Nsight Compute counts for each kernel.

python -m tests.gpu.profiling     runs the kernels that are profiled
"""

from __future__ import annotations

import argparse
import csv
import shutil
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.gpu.context import Context, environment, python

METRICS = {
    "gpu__time_duration.sum": "duration",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_pct",
    "dram__bytes.sum": "dram_bytes",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "l2_pct",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "sm_pct",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy_pct",
    "smsp__inst_executed.sum": "instructions",
    "launch__registers_per_thread": "registers",
    "launch__grid_size": "blocks",
}
# Of this project and of the library that sorts for it.
_KERNELS = "regex:lumigrad|cub::|Radix|Scan"
_MOST_LAUNCHES = 150


def run(context: Context) -> dict[str, Any]:
    """One pass of each engine under ncu, as a table ncu.csv and in short."""
    ncu = shutil.which("ncu")
    if ncu is None:
        return {"status": "not here", "why": "no ncu"}
    table = context.out / "ncu.csv"
    table.unlink(missing_ok=True)
    command = [
        ncu, "--clock-control", "none", "--target-processes", "all", "--profile-from-start", "off", "--csv",
        "--page", "raw", "--print-units", "base", "--kernel-name-base", "demangled", "--kernel-name", _KERNELS,
        "--launch-count", str(_MOST_LAUNCHES), "--metrics", ",".join(METRICS), "--log-file", str(table),
    ]  # fmt: skip
    done = context.run(
        [*command, *python("-m", "tests.gpu.profiling", "--device", context.device)], environment=environment()
    )
    kernels = summary(table) if table.is_file() else {}
    status = done.status if kernels or done.code != 0 else "no kernels were profiled"
    found = {"status": status, "seconds": done.seconds, "kernels": kernels}
    return found if status == "ok" else {**found, "output": done.tail()}


def summary(table: Path) -> dict[str, dict[str, Any]]:
    """By kernel the number of launches, and the medians of what was counted; those that take longest come first."""
    lines = [line for line in table.read_text(encoding="utf-8").splitlines() if line.startswith('"')]
    launches: dict[str, list[dict[str, float]]] = {}
    for row in csv.DictReader(lines):
        # The first row has the units.
        if row["ID"]:
            name = row["Kernel Name"].split("(")[0].removeprefix("void ")
            launches.setdefault(name, []).append({short: _number(row.get(long)) for long, short in METRICS.items()})
    kernels = {
        name: {"launches": len(rows), **{short: statistics.median(row[short] for row in rows) for short in rows[0]}}
        for name, rows in launches.items()
    }
    return dict(sorted(kernels.items(), key=lambda kernel: -kernel[1]["launches"] * kernel[1]["duration"]))


def _number(text: str | None) -> float:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return 0.0


def main() -> None:
    """Runs one pass of each engine between the profiler's start and stop, after one that warms up."""
    import torch

    from tests.gpu.device import Device

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    device = Device(parser.parse_args().device)
    with device.engines():
        for call in _calls(device):
            call(0)
            device.synchronize()
            if not device.on_host:
                torch.cuda.profiler.start()
            call(1)
            device.synchronize()
            if not device.on_host:
                torch.cuda.profiler.stop()


def _calls(device: Any) -> Iterator[Callable[[int], object]]:
    """One engine after the other, so that only what is profiled is in memory."""
    from tests.benchmarks.gaussian_scene import scene
    from tests.gpu import cases

    film, many = cases.film_of(device), device.size(1_000_000, 300)
    yield from cases.Splats(device, scene(many, *film)).calls().values()
    for semantics in ("exact", "compat"):
        yield from cases.sphere_calls(device, device.size(100_000, 200), *film, semantics).values()
    yield from cases.mesh_calls(device, device.size("70k", "1k")).values()
    yield from cases.loss_calls(device, *film).values()
    yield cases.Adam(device, many).step


if __name__ == "__main__":
    main()
