"""The costs of the service itself: `python -m tests.benchmarks.service` from the root of the repository.

Calls of a worker whose kernels have little to do take turns with calls of a bare gRPC server, which hands each request
to one thread and replies with messages of the same sizes. Clients send recorded bytes and do not parse replies, so that
they cost little. The GIL is measured in CPython 3.10 to 3.13 if there are a C compiler and Python's headers.
"""

from __future__ import annotations

import argparse
import os
from contextlib import closing
from pathlib import Path

from lumigrad.kernels.device import describe, resolve
from tests.benchmarks import client_calls
from tests.benchmarks.measure import write
from tests.benchmarks.page import insert
from tests.benchmarks.service import jpeg_files
from tests.benchmarks.service.cases import IMAGES_BY_LANE, Cases
from tests.benchmarks.service.gil_meter import GilMeter, Unknown
from tests.benchmarks.service.rounds import compare, p50_ratio
from tests.benchmarks.service.servers import servers
from tests.benchmarks.service.tables import goals, tables

RESULTS = Path("build/bench/service.json")
PAGE = Path("docs/performance.md")


def main() -> None:
    """Measures, prints the tables and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21, help="of each case (default: 21)")
    parser.add_argument("--calls", type=int, default=40, help="small ones of a client in a round (default: 40)")
    parser.add_argument("--clients", type=int, default=8, help="that make small calls at a time (default: 8)")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"the file to write (default: {RESULTS})")
    parser.add_argument("--docs", action="store_true", help=f"put the tables into {PAGE}")
    arguments = parser.parse_args()
    meter = _meter(arguments.results.parent / "gil_meter")
    with servers(meter) as both:
        cases = Cases(both.worker.target, both.bare_target, arguments.clients, arguments.calls)
        chosen = [case for case in cases.all() if arguments.only in case.name]
        rows = [compare(case, both, arguments.rounds) for case in chosen]
        lanes = [case for case in chosen if case.name in IMAGES_BY_LANE]
        levels = p50_ratio(*lanes, arguments.rounds) if len(lanes) == len(IMAGES_BY_LANE) else None
        cases.close()
    with closing(client_calls.rows(arguments.rounds)) as calls:
        client = next(calls)
    reached = goals(rows, client, levels, jpeg_files.gil_share(meter, arguments.calls // 8 + 1) if meter else None)
    text = f"{_machine()}\n\n{tables(rows, client, reached)}"
    print(text)
    write([*rows, client, *reached], arguments.results)
    print(f"\nwrote {arguments.results}")
    if arguments.docs:
        insert("benchmark service", text, PAGE)


def _meter(folder: Path) -> GilMeter | None:
    try:
        return GilMeter(folder)
    except Unknown as error:
        print(error)
        return None


def _machine() -> str:
    return (
        f"{describe(resolve('cpu')).device_name}, all processes on {len(os.sched_getaffinity(0))} cores. Each cell has "
        "the worker's figure, the bare server's, and the median of their ratios in the same rounds."
    )


if __name__ == "__main__":
    main()
