"""The recovery report: `python -m tests.benchmarks.recovery` from the root of the repository.

Makes each fault happen several times to real processes and measures, in a client with its own repetitions and default
settings, the time from the fault to the first good reply: a picture, or gradients, that are bit for bit what they were.
"""

from __future__ import annotations

import argparse
import os
import statistics
from dataclasses import dataclass
from pathlib import Path

from lumigrad.kernels.device import describe, resolve
from tests.benchmarks.measure import write
from tests.benchmarks.page import insert
from tests.benchmarks.recovery import links, workers
from tests.benchmarks.recovery.case import Case, recover

RESULTS = Path("build/bench/recovery.json")
PAGE = Path("docs/performance.md")


@dataclass(frozen=True)
class Row:
    """A row of the results.

    Attributes:
        fault: what happened.
        median_s, max_s: from the fault to the first good reply.
        failed: the largest number of calls that failed with an error that the client does not repeat.
        runs: how often it happened.
    """

    fault: str
    median_s: float
    max_s: float
    failed: int
    runs: int


def main() -> None:
    """Measures, prints the table and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="of each fault (default: 5)")
    parser.add_argument("--only", default="", help="faults whose name contains this")
    parser.add_argument("--docs", action="store_true", help=f"put the table into {PAGE}")
    arguments = parser.parse_args()
    rows = []
    for case in (*workers.CASES, *links.CASES):
        if arguments.only in case.fault:
            rows.append(_measured(case, arguments.runs))
            print(_line(rows[-1]), flush=True)
    head = (
        f"{describe(resolve('cpu')).device_name}, client and worker on {len(os.sched_getaffinity(0))} cores.\n\n"
        "| fault | s to the first good reply, median | at the most | calls that failed | times |\n|---|---|---|---|---|"
    )
    text = "\n".join([head, *map(_line, rows)])
    print(f"\n{text}")
    write(rows, RESULTS)
    print(f"\nwrote {RESULTS}")
    if arguments.docs:
        insert("benchmark recovery", text, PAGE)


def _measured(case: Case, runs: int) -> Row:
    with case.stage() as incident:
        found = [recover(incident) for _ in range(runs)]
    seconds = [each.seconds for each in found]
    return Row(case.fault, statistics.median(seconds), max(seconds), max(each.failed for each in found), runs)


def _line(row: Row) -> str:
    return f"| {row.fault} | {row.median_s:.2f} | {row.max_s:.2f} | {row.failed} | {row.runs} |"


if __name__ == "__main__":
    main()
