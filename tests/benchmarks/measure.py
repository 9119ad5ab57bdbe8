"""How the benchmarks measure, and what they write."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Measured:
    """A row of the results; milliseconds."""

    case: str
    op: str
    semantics: str
    median_ms: float
    min_ms: float
    # The sum of the kernel's own stage timers.
    kernel_ms: float
    runs: int


def measure(
    case: str, op: str, semantics: str, call: Callable[[], float], *, seconds: float = 1.5, least: int = 9
) -> Measured:
    """Repeats a call until its time is known; `call` returns the kernel's milliseconds. Three calls warm up."""
    for _ in range(3):
        call()
    times: list[float] = []
    kernel: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < least or (time.perf_counter() < until and len(times) < 200):
        start = time.perf_counter()
        inside = call()
        times.append((time.perf_counter() - start) * 1e3)
        kernel.append(inside)
    return Measured(case, op, semantics, statistics.median(times), min(times), statistics.median(kernel), len(times))


def write(rows: Sequence[Any], path: Path) -> None:
    """Writes dataclasses of results as JSON, with three digits behind the decimal point."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tidy = [
        {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(row).items()}
        for row in rows
    ]
    path.write_text(json.dumps(tidy, indent=1) + "\n", encoding="utf-8")
