"""Benchmark of the mesh engine beside Open3D and libigl: `python -m tests.benchmarks.meshes [--docs]`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

from lumigrad.kernels import _native
from lumigrad.kernels.device import describe, resolve
from tests.benchmarks import page
from tests.benchmarks.meshes.kernels import Rate, build_rates, built, cost_rates, distance_rate, robot_rates
from tests.benchmarks.meshes.peer_runs import Rates, peer_rates
from tests.benchmarks.meshes.scene import RINGS, points, torus, trajectories

THREADS = 2
RESULTS = Path("build/bench/meshes.json")
PAGE = Path("docs/performance.md")
KINDS = ("near", "box")


def main() -> None:
    """Measures, prints the table and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-peers", action="store_true", help="without Open3D and libigl")
    parser.add_argument("--docs", action="store_true", help=f"put the table into {PAGE}")
    arguments = parser.parse_args()
    _native.set_thread_count(THREADS)
    machine = describe(resolve("cpu"))
    head = f"{machine.device_name}, {machine.instruction_set}, {THREADS} threads"
    print(f"{head}; per second: median (best)\n", flush=True)
    rates = []
    for name in RINGS:
        for row in _measured(name, with_peers=not arguments.no_peers):
            rates.append(row)
            print(_line(row), flush=True)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps([asdict(row) for row in rates], indent=1) + "\n", encoding="utf-8")
    print(f"\nwrote {RESULTS}")
    if arguments.docs:
        page.insert("benchmark meshes", _table(rates, head), PAGE)


def _measured(name: str, *, with_peers: bool) -> list[Rate]:
    scene = torus(name)
    mesh = built(scene)
    around = {kind: points(scene, kind) for kind in KINDS}
    peers: Rates = peer_rates(vertices=scene.vertices, faces=scene.faces, **around) if with_peers else {}
    rates = []
    for kind in KINDS:
        row = distance_rate(f"{name} {kind}", mesh, around[kind])
        rates.append(replace(row, peer={peer: reached[kind] for peer, reached in peers.items()}))
    if name == "70k":
        spheres = trajectories()
        rates += [*cost_rates(name, mesh, spheres), *robot_rates(name, mesh, spheres)]
    if name == "1M":
        build, refit = build_rates(name, scene, mesh)
        rates += [replace(build, peer={peer: 1e3 / reached["build_ms"] for peer, reached in peers.items()}), refit]
    return rates


def _shown(row: Rate, per_second: float) -> str:
    """A rate in its usual unit: milliseconds of builds, microseconds of one robot, otherwise millions per second."""
    if row.op in ("build", "refit"):
        return f"{1e3 / per_second:.0f} ms"
    return f"{61e6 / per_second:.1f} us" if row.op.startswith("robot") else f"{per_second / 1e6:.2f} M"


def _cells(row: Rate) -> tuple[str, str, str]:
    peers = ", ".join(f"{peer} {_shown(row, reached)}" for peer, reached in row.peer.items())
    faster = f"{row.per_second / max(row.peer.values()):.1f}x" if row.peer else ""
    return (
        f"{_shown(row, row.per_second)} ({_shown(row, row.best_per_second)})",
        peers,
        faster,
    )


def _line(row: Rate) -> str:
    reached, peers, faster = _cells(row)
    return f"{row.case:<10}{row.op:<22}{reached:>22}   {peers:<36}{faster:>7}"


def _table(rates: list[Rate], head: str) -> str:
    rows = [
        "| mesh, points | what | median (best) | peers | faster than the best peer |",
        "|---|---|---|---|---|",
    ]
    rows += [f"| {row.case} | {row.op.replace('_', ' ')} | {' | '.join(_cells(row))} |" for row in rates]
    note = (
        f"{head}. 100,000 points in random order; signed distance, gradient, closest point and face. "
        "Costs with gradients: 62,464 spheres, maximum distance 0.1 m, swept with the speed metric. "
        "robot: the 61 spheres of one robot on one thread. "
        "Open3D (closest points and one ray) and libigl (pseudo-normals), where shown, were measured in the same run."
    )
    return "\n".join([note, "", *rows])


if __name__ == "__main__":
    main()
