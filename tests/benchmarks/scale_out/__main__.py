"""Several workers: `python -m tests.benchmarks.scale_out` as root, from the root of the repository.

Each worker has a network namespace and a link of its own. Measures the renders per second of 1, 2 and 4 workers, and
what clients see when one of three workers is behind a slow link, behind a link that is cut, or killed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from lumigrad.client import Client
from lumigrad.kernels.device import describe, resolve
from support.workers.namespaces import Network, network, obstacle
from support.workers.worker import WorkerProcess
from tests.benchmarks.measure import write
from tests.benchmarks.page import insert
from tests.benchmarks.scale_out.cases import rate, renders
from tests.benchmarks.scale_out.simulation import measured_machine
from tests.benchmarks.scale_out.watched_calls import Seen, WatchedCalls

RESULTS = Path("build/bench/scale_out.json")
PAGE = Path("docs/scaling.md")
COUNTS = (1, 2, 4)
CALLERS = 8
SCENES = 24
PATIENT = {"timeout_s": 120.0, "retry_s": 60.0}


@dataclass(frozen=True)
class Throughput:
    """Renders per second of some workers, and the processor time of one render in the workers and in the client."""

    workers: int
    per_second: float
    worker_ms: float
    client_ms: float


@dataclass(frozen=True)
class Fault:
    """A fault, and the calls that clients made meanwhile."""

    fault: str
    ok: int
    failed: int
    repeated: int
    p50_ms: float
    p99_ms: float
    recovered_s: float


def main() -> int:
    """Measures, prints the tables and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="for each number of workers (default: 6)")
    parser.add_argument("--docs", action="store_true", help=f"put the tables into {PAGE}")
    arguments = parser.parse_args()
    if why := obstacle():
        print(f"cannot be measured here: {why}", file=sys.stderr)
        return 1
    with network() as net:
        machines = [net.add() for _ in range(max(COUNTS))]
        with ThreadPoolExecutor() as pool:
            workers = list(pool.map(net.worker, machines))
        try:
            throughputs = [_throughput(workers[:count], arguments.seconds) for count in COUNTS]
            faults = _faults(net, workers[:3])
        finally:
            for worker in workers:
                worker.stop()
    text = _tables(throughputs, faults)
    print(text)
    write([*throughputs, *faults], RESULTS)
    print(f"\nwrote {RESULTS}")
    if arguments.docs:
        insert("benchmark scale_out", text, PAGE)
    return 0


def _throughput(workers: list[WorkerProcess], seconds: float) -> Throughput:
    with Client([worker.target for worker in workers], **PATIENT) as client:
        calls = [renders(client, seed) for seed in range(CALLERS)]
        rate(calls, 1.0)
        before = _processor_s(workers), time.process_time()
        count, elapsed = rate(calls, seconds)
        after = _processor_s(workers), time.process_time()
    inside, here = (1e3 * (end - start) / count for start, end in zip(before, after, strict=True))
    return Throughput(len(workers), count / elapsed, inside, here)


def _processor_s(workers: list[WorkerProcess]) -> float:
    times = [psutil.Process(worker.process.pid).cpu_times() for worker in workers]
    return sum(each.user + each.system for each in times)


def _predicted(measured: Throughput, workers: int) -> float:
    """The simulation's renders per second, from the measured processor times of one render."""
    return measured_machine(workers, measured.worker_ms / 1e3, measured.client_ms / 1e3, CALLERS, len(_cores()))


def _cores() -> set[int]:
    return os.sched_getaffinity(0)


def _faults(net: Network, workers: list[WorkerProcess]) -> list[Fault]:
    with Client([worker.target for worker in workers], **PATIENT) as client:
        calls = [renders(client, seed) for seed in range(SCENES)]
        with WatchedCalls(calls, rate=10) as watched:
            watched.settle()
            seen = {"nothing happens": watched.during(5, lambda: None)}
            seen["its link is slowed to 50 Mbit/s"] = watched.during(8, lambda: net.slow(0, 50))
            net.mend(0)
            watched.settle()
            seen["its link is cut"] = watched.during(25, lambda: net.cut(1))
            seen["its link works again"] = watched.during(8, lambda: net.mend(1))
            watched.settle()
            seen["it is killed (SIGKILL)"] = watched.during(8, workers[2].process.kill)
    return [_fault(name, each) for name, each in seen.items()]


def _fault(name: str, seen: Seen) -> Fault:
    return Fault(name, **vars(seen))


def _tables(throughputs: list[Throughput], faults: list[Fault]) -> str:
    cores = len(_cores())
    foretold = {each.workers: _predicted(throughputs[0], each.workers) for each in throughputs}
    lines = [
        f"{describe(resolve('cpu')).device_name}: workers of one thread each and a client with {CALLERS} callers share "
        f"{cores} cores with other programs.",
        "",
        "| workers | renders/s | vs one worker | simulated renders/s | processor ms per render: worker, client |",
        "|---|---|---|---|---|",
    ]
    for each in throughputs:
        share = each.per_second / throughputs[0].per_second
        times = f"{each.worker_ms:.1f}, {each.client_ms:.1f}"
        lines.append(
            f"| {each.workers} | {each.per_second:.1f} | {share:.2f} | {foretold[each.workers]:.0f} | {times} |"
        )
    lines += [
        "",
        f"Three workers, {SCENES} scenes, 10 renders a second; every image is checked:",
        "",
        "| one worker | calls answered | failed | attempts repeated | p50, ms | p99, ms | s until no call is late |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in faults:
        times = f"{each.p50_ms:.0f} | {each.p99_ms:.0f} | {each.recovered_s:.1f}"
        lines.append(f"| {each.fault} | {each.ok} | {each.failed} | {each.repeated} | {times} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
