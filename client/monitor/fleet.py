"""Several workers on one screen, a line each."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lumigrad.client.monitor import quantities
from lumigrad.client.monitor.header import failure_style, notes, one_line, state
from lumigrad.client.monitor.report import UNREACHABLE, Report


def fleet(reports: Sequence[Report]) -> RenderableType:
    """A table of workers, and below it what is wrong with them."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=True, header_style="bold cyan")
    table.add_column("worker", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column("state", no_wrap=True)
    for name in ("up", "calls/s", "failed/s", "p95 ms", "queue", "busy", "MB/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for report in reports:
        table.add_row(*_row(report))
    told = [one_line(Text(f"{_name(report)}: {note}", "yellow")) for report in reports for note in notes(report)]
    return Group(table, *([Text(), *told] if told else []))


def _row(report: Report) -> list[RenderableType]:
    load = report.load
    if report.state == UNREACHABLE:
        return [_name(report), state(report)]
    return [
        _name(report),
        state(report),
        quantities.duration(report.identity.uptime_s),
        quantities.rate(load.calls_per_s),
        Text(quantities.rate(sum(load.failures_per_s.values())), failure_style(load.failures_per_s)),
        quantities.milliseconds(load.p95_ms),
        f"{load.queue_depth}/{load.queue_limit}",
        quantities.percent(load.device_busy),
        quantities.megabytes(load.received_bytes_per_s + load.sent_bytes_per_s),
    ]


def _name(report: Report) -> str:
    return report.target.rpartition("://")[2]
