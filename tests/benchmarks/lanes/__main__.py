"""Benchmark of the lanes between client and worker: `python -m tests.benchmarks.lanes` from the repository's root.

Each call takes turns with its references, so that other work on the machine affects all: a copy of as many bytes
through a bare loopback socket into an existing buffer, and a bare gRPC stream of such bytes; or, for a small call, a
bare gRPC call. The other end is always another process. Times of the worker's kernels, by their own timers, are
subtracted; everything else counts, from the client's method to the arrays that it returns.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

from lumigrad.client import Client
from lumigrad.kernels.device import describe, resolve
from support.workers.worker import LUMIGRAD, worker
from tests.benchmarks.lanes.cases import GRADIENT_BYTES, Case, gradient_cases, image_cases, small_case
from tests.benchmarks.lanes.formats import format_rows
from tests.benchmarks.lanes.references import References
from tests.benchmarks.lanes.tables import Row, tables
from tests.benchmarks.measure import write
from tests.benchmarks.page import insert

RESULTS = Path("build/bench/lanes.json")
PAGE = Path("docs/performance.md")
_WARM_UP = 3
# The log goes to a file, since reading it would take this process time.
_COMMAND = ("sh", "-c", 'mkdir -p build/bench && exec "$0" serve "$@" 2> build/bench/worker.log', LUMIGRAD)


def main() -> None:
    """Measures, prints the tables and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", action="store_true", help=f"put the tables into {PAGE}")
    arguments = parser.parse_args()
    rows: list[Row] = []
    with (
        References(GRADIENT_BYTES) as references,
        worker("--device", "cpu", command=_COMMAND) as process,
        Client(process.target, lane="stream") as streaming,
        Client(process.target, lane="shared") as sharing,
    ):
        lanes = {"stream": streaming, "shared": sharing}
        rows += _compare({"stream": [small_case(streaming)]}, references, 1000)
        rows += _compare({name: image_cases(client) for name, client in lanes.items()}, references, 40)
        rows += _compare({name: gradient_cases(client) for name, client in lanes.items()}, references, 10)
        formats = format_rows(streaming)
    text = f"{describe(resolve('cpu')).device_name}, client and worker on its two cores.\n\n{tables(rows, formats)}"
    print(text)
    write([*rows, *formats], RESULTS)
    print(f"\nwrote {RESULTS}")
    if arguments.docs:
        insert("benchmark lanes", text, PAGE)


def _compare(cases: dict[str, list[Case]], references: References, runs: int) -> list[Row]:
    """Measures all cases by their lane, each followed by its references, in several rounds."""
    calls = [
        (lane, case, (case.call, *_references(case, references))) for lane, several in cases.items() for case in several
    ]
    times: list[list[tuple[float, ...]]] = [[] for _ in calls]
    for run in range(_WARM_UP + runs):
        for (_, _, functions), measured in zip(calls, times, strict=True):
            taken = tuple(function() for function in functions)
            if run >= _WARM_UP:
                measured.append(taken)
    return [_row(lane, case, measured) for (lane, case, _), measured in zip(calls, times, strict=True)]


def _references(case: Case, references: References) -> tuple[Callable[[], float], Callable[[], float]]:
    """The bare copy or call to compare with, and the bare gRPC stream."""
    if case.direction == "unary":
        request = bytes(case.payload_bytes)
        return lambda: references.unary(request), lambda: 0.0
    down = case.direction == "down"
    copy = references.down if down else references.up
    stream = references.grpc_down if down else references.grpc_up
    return lambda: copy(case.payload_bytes), lambda: stream(case.payload_bytes)


def _row(lane: str, case: Case, measured: list[tuple[float, ...]]) -> Row:
    taken, bare, stream = zip(*measured, strict=True)
    median, reference = statistics.median(taken), statistics.median(bare)
    return Row(
        lane=lane,
        case=case.name,
        direction=case.direction,
        payload_bytes=case.payload_bytes,
        median_ms=median,
        p99_ms=_p99(taken),
        reference_ms=reference,
        reference_p99_ms=_p99(bare),
        stream_ms=statistics.median(stream),
        ratio=reference / median,
        runs=len(taken),
    )


def _p99(times: tuple[float, ...]) -> float:
    return sorted(times)[int(0.99 * (len(times) - 1))]


if __name__ == "__main__":
    main()
