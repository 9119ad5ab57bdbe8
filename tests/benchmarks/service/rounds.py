"""Rounds of calls of the worker and the bare server in turns, so that other work on the machine affects both."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.service.callers import Callers
from tests.benchmarks.service.cases import Case
from tests.benchmarks.service.servers import Servers


@dataclass(frozen=True)
class Figures:
    """Figures per call of one server; medians of the rounds.

    Attributes:
        rate: calls per second of all clients together.
        p50_ms: from request to reply.
        processor_us: of the server's process.
        gil_us: processor time with the GIL; None if unknown.
        takes: how often the GIL was taken; None if unknown.
    """

    rate: float
    p50_ms: float
    processor_us: float
    gil_us: float | None
    takes: float | None


@dataclass(frozen=True)
class Row:
    """A case: the worker's figures, the bare server's, medians of their ratios in each round, and their goals."""

    case: str
    ours: Figures
    bare: Figures
    ratios: Figures
    goals: Mapping[str, float]


def compare(case: Case, servers: Servers, rounds: int) -> Row:
    """Measures a case in `rounds` rounds."""
    found = []
    with Callers(case.clients, (case.ours, case.bare)) as callers:
        for _ in range(rounds):
            # Only the GIL is measured with the meter, which makes taking it more expensive.
            plain = [_round(case, servers, callers, way) for way in (0, 1)]
            metered = [_round(case, servers, callers, way, metered=True) for way in (0, 1)]
            found.append([_both(*pair) for pair in zip(plain, metered, strict=True)])
    ours, bare = zip(*found, strict=True)
    return Row(case.name, _median(ours), _median(bare), _median([_ratio(*pair) for pair in found]), case.goals)


def p50_ratio(first: Case, second: Case, rounds: int) -> float:
    """The ratio of the worker's times in two cases, whose calls are made in turns."""
    with Callers(first.clients, (first.ours, second.ours)) as callers:
        times = [
            [statistics.median(callers.round(way, case.calls).times) for way, case in enumerate((first, second))]
            for _ in range(rounds)
        ]
    return statistics.median(one / other for one, other in times)


def _round(case: Case, servers: Servers, callers: Callers, way: int, *, metered: bool = False) -> Figures:
    watch = servers.watches[way]
    watch.turn(on=metered)
    before = watch.spent()
    done = callers.round(way, case.calls)
    spent = watch.spent() - before
    watch.turn(on=False)
    calls = len(done.times)
    return Figures(
        calls / done.seconds,
        statistics.median(done.times) * 1e3,
        spent.processor / calls / 1e3,
        spent.held / calls / 1e3,
        spent.takes / calls,
    )


def _both(plain: Figures, metered: Figures) -> Figures:
    known = bool(metered.takes)
    gil = (metered.gil_us, metered.takes) if known else (None, None)
    return Figures(plain.rate, plain.p50_ms, plain.processor_us, *gil)


def _ratio(ours: Figures, bare: Figures) -> Figures:
    return _each((ours, bare), lambda pair: pair[0] / pair[1])


def _median(figures: Sequence[Figures]) -> Figures:
    return _each(figures, statistics.median)


def _each(figures: Sequence[Figures], reduce: Callable[[Sequence[float]], float]) -> Figures:
    """Reduces each field; None if a value is unknown."""
    columns = zip(*(vars(each).values() for each in figures), strict=True)
    reduced: list[Any] = [None if None in column else reduce(column) for column in columns]
    return Figures(*reduced)
