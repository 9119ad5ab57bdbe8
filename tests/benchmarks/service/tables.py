"""The benchmark's tables and goals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.benchmarks import client_calls
from tests.benchmarks.service.rounds import Row

_NAMES = {"rate": "rate", "p50_ms": "p50", "processor_us": "processor time", "gil_us": "time with the GIL"}


@dataclass(frozen=True)
class Goal:
    """A goal.

    Attributes:
        what: what is measured.
        measured: the figure.
        goal: the least or the largest good figure.
        at_least: whether `goal` is the least.
    """

    what: str
    measured: float
    goal: float
    at_least: bool = False

    @property
    def is_met(self) -> bool:
        """Whether the goal is reached."""
        return self.measured >= self.goal if self.at_least else self.measured <= self.goal


def goals(rows: Sequence[Row], client: client_calls.Row, levels: float | None, jpeg_share: float | None) -> list[Goal]:
    """All goals; those of the GIL, and of `levels` to floats, only where they were measured."""
    found = [
        Goal(f"{row.case}: {_NAMES[name]}", measured, goal, at_least=name == "rate")
        for row in rows
        for name, goal in row.goals.items()
        if (measured := getattr(row.ratios, name)) is not None
    ]
    if levels is not None:
        found.append(Goal("1920x1080, lane: p50 of uint8 to that of float32", levels, 1.0))
    if jpeg_share is not None:
        found.append(Goal("part of the time of a JPEG file that has the GIL", jpeg_share, 0.1))
    return [*found, Goal("`Client.render`: our own code, us", client.own_us, 150)]


def tables(rows: Sequence[Row], client: client_calls.Row, reached: Sequence[Goal]) -> str:
    """All tables as Markdown."""
    lines = [
        "| calls | per second | p50, ms | processor, us | with the GIL, us | acquisitions of the GIL |",
        "|---|---|---|---|---|---|",
        *map(_row, rows),
        "",
        f"A `Client.render` of 32x24 uint8 takes {client.client_us:.0f} us of the calling thread, a call of bare gRPC "
        f"{client.bare_us:.0f}, so our own code {client.own_us:.0f}.",
        "",
        "| what | measured | goal | met |",
        "|---|---|---|---|",
        *map(_goal, reached),
    ]
    return "\n".join(lines)


def _row(row: Row) -> str:
    columns = zip(*(vars(figures).values() for figures in (row.ours, row.bare, row.ratios)), strict=True)
    return f"| {row.case} | {' | '.join(map(_cell, columns))} |"


def _cell(column: tuple[float | None, ...]) -> str:
    ours, bare, ratio = column
    if ours is None or bare is None or ratio is None:
        return "-"
    return f"{_short(ours)} / {_short(bare)} = {ratio:.2f}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _goal(goal: Goal) -> str:
    sign = "at least" if goal.at_least else "at most"
    return f"| {goal.what} | {goal.measured:.3g} | {sign} {goal.goal:g} | {'yes' if goal.is_met else 'no'} |"
