"""The host's costs of calls of the CUDA engines, without a GPU: `python -m tests.benchmarks.host_costs`.

The engines run on the emulated device, on small inputs, with kernels that do nothing. This leaves the processor time of
Python, the binding and the engine's host code, with an emulated runtime in place of CUDA's. Needs `make emulation`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks import measure
from tests.gpu import cases
from tests.gpu.device import Call, Device

# Milliseconds that a call of each kind may cost.
GOALS = {"forward": 0.12, "forward, not retained": 0.12, "backward": 0.08, "adam": 0.08, "query": 0.06}
_FILM = 32, 16


@dataclass(frozen=True)
class Row:
    """Host time of one kind of call; milliseconds."""

    call: str
    host_ms: float
    goal_ms: float | None


def calls_of(device: Device) -> dict[str, Call]:
    """Calls of each engine, as trainers and planners make them."""
    splats = cases.Splats(device, cases.gaussian_scene.scene(4, *_FILM))
    spheres = cases.sphere_calls(device, 4, *_FILM, "exact")
    queries = cases.mesh_calls(device, "1k")
    return {
        **splats.calls(),
        "adam": cases.Adam(device, 4).step,
        "image loss": cases.loss_calls(device, *_FILM)["loss and gradient"],
        "query": next(call for name, call in queries.items() if name.endswith("near")),
        "spheres forward": spheres["forward"],
        "spheres backward": spheres["backward"],
    }


def host_ms(call: Callable[[int], Any], runs: int) -> float:
    """The median time of calls."""
    taken = []
    for number in range(runs + 5):
        start = time.thread_time()
        call(number)
        taken.append(time.thread_time() - start)
    return 1e3 * statistics.median(taken[5:])


def rows(runs: int) -> list[Row]:
    """Measures all calls."""
    from support.backends import emulation

    native = emulation.load("_emulation")
    device = Device("emulation")
    native.set_stubbed(True)
    try:
        with device.engines():
            return [Row(name, host_ms(call, runs), GOALS.get(name)) for name, call in calls_of(device).items()]
    finally:
        native.set_stubbed(False)


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("build/bench/host_costs.json"))
    arguments = parser.parse_args()
    found = rows(arguments.runs)
    measure.write(found, arguments.out)
    print("| call | host, ms | goal |\n|---|---|---|")
    for row in found:
        print(f"| {row.call} | {row.host_ms:.3f} | {row.goal_ms or ''} |")


if __name__ == "__main__":
    main()
