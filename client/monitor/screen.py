"""One worker on a screen of at least 80 columns and 24 lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lumigrad.client.monitor import bars, quantities
from lumigrad.client.monitor.header import failure_style, headline
from lumigrad.client.monitor.report import UNREACHABLE, MethodLoad, Report, StageLoad, Store

_STORES = {"scene": "scenes", "context": "states", "training": "trainings", "transit": "payloads"}
_HEADING = "bold cyan"
_ALL = "all"
# Lines that the heads of tables take, and the sum below the calls.
_HEADS = 3
_GAUGE_LINES = 5
_PARTS = 4
_LEAST_ROWS = 3
# Of a screen on which parts stand apart.
_ROOMY_LINES = 30


def screen(report: Report, width: int, height: int | None) -> RenderableType:
    """All of a report; tables are cut to what fits below each other. `height` None: nothing is cut."""
    head = headline(report)
    if report.state == UNREACHABLE:
        # What was seen last would look like news.
        return Group(*head)
    footer = _footer(report)
    gap = [Text()] if height is None or height >= _ROOMY_LINES else []
    fixed = len(head) + _GAUGE_LINES + _HEADS + len(footer) + _PARTS * len(gap)
    call_rows, time_rows = _rows(report, math.inf if height is None else height - fixed)
    parts: list[Sequence[RenderableType]] = [
        [_gauges(report, width)],
        [_calls(report, call_rows)],
        [_times(report, width, time_rows)],
        footer,
    ]
    return Group(*head, *(line for part in parts for line in (*gap, *part)))


def _rows(report: Report, room: float) -> tuple[float, float]:
    """How many rows the calls and the times get: each its least, then the calls what they need, then the times."""
    calls, times = len(report.methods), max(len(report.stages), len(report.kernels))
    call_rows = max(_LEAST_ROWS, min(calls, room - min(times, len(report.stages))))
    return call_rows, max(_LEAST_ROWS, room - min(calls, call_rows))


def _gauges(report: Report, width: int) -> Table:
    load, process = report.load, report.process
    bar = max(8, width // 2 - 32)
    device = process.device_memory_bytes
    used = process.device_memory_bytes - process.device_memory_free_bytes
    cells = [
        _gauge("device busy", load.device_busy, quantities.percent(load.device_busy), bar),
        _gauge("queue", _share(load.queue_depth, load.queue_limit), f"{load.queue_depth} of {load.queue_limit}", bar),
        _gauge("memory", _share(used, device), quantities.part(used, device), bar),
        _gauge("calls", _share(load.in_progress, load.calls_limit), f"{load.in_progress} of {load.calls_limit}", bar),
        *(_store(store, bar) for store in report.stores),
        Text.assemble(*_stages(load.stages)),
    ]
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(ratio=1)
    table.add_column(ratio=1)
    for left, right in zip_longest(cells[::2], cells[1::2]):
        table.add_row(left, right)
    return table


def _gauge(name: str, share: float, text: str, bar: int) -> Text:
    return Text.assemble((f"{name:<12}", "bold"), bars.level(share, bar), " ", text, no_wrap=True, overflow="ellipsis")


def _store(store: Store, bar: int) -> Text:
    name = _STORES.get(store.name, store.name)
    counted = f"{name} {store.count}" if store.name != "transit" else name
    text = quantities.part(store.bytes, store.limit_bytes)
    return _gauge(counted, _share(store.bytes, store.limit_bytes), text, bar)


def _stages(stages: Mapping[str, int]) -> list[str | tuple[str, str]]:
    words: list[str | tuple[str, str]] = []
    for stage, count in stages.items():
        words += [(stage, "bold" if count else "dim"), f" {count}  "]
    return words


def _calls(report: Report, rows: float) -> Table:
    table = Table(box=None, padding=0, pad_edge=False, expand=True, header_style=_HEADING)
    table.add_column("calls", ratio=1, no_wrap=True, overflow="ellipsis")
    for name in ("calls/s", "failed/s", "p50 ms", "p95 ms", "in MB/s", "out MB/s"):
        table.add_column(name, justify="right", width=9, no_wrap=True)
    load = report.load
    everything = MethodLoad(
        _ALL, load.calls_per_s, load.failures_per_s, load.p50_ms, load.p95_ms,
        load.received_bytes_per_s, load.sent_bytes_per_s,
    )  # fmt: skip
    shown = report.methods if len(report.methods) <= rows else report.methods[: int(rows) - 1]
    for method in shown:
        table.add_row(*_row(method))
    if len(shown) < len(report.methods):
        table.add_row(f"… {len(report.methods) - len(shown)} more", style="dim")
    table.add_row(*_row(everything), style="bold")
    return table


def _row(method: MethodLoad) -> list[RenderableType]:
    codes = "" if method.method == _ALL else ", ".join(method.failures_per_s)
    style = failure_style(method.failures_per_s)
    return [
        Text.assemble(method.method, (f"  {codes}", style)),
        quantities.rate(method.calls_per_s),
        Text(quantities.rate(sum(method.failures_per_s.values())), style),
        quantities.milliseconds(method.p50_ms),
        quantities.milliseconds(method.p95_ms),
        quantities.megabytes(method.received_bytes_per_s),
        quantities.megabytes(method.sent_bytes_per_s),
    ]


def _times(report: Report, width: int, rows: float) -> Table:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(ratio=2)
    table.add_column(ratio=3)
    bar = max(6, width // 2 - 32)
    most = max((stage.share for stage in (*report.stages, *report.kernels)), default=1.0)
    table.add_row(
        _bars("stage", report.stages, rows, bar // 2, most, "blue"),
        _bars("kernel", report.kernels, rows, bar, most, "magenta"),
    )
    return table


def _bars(title: str, stages: Sequence[StageLoad], rows: float, bar: int, most: float, style: str) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style=_HEADING)
    table.add_column(title, no_wrap=True, overflow="ellipsis")
    table.add_column("mean ms", justify="right", no_wrap=True)
    table.add_column("share", justify="right", width=5, no_wrap=True)
    table.add_column("", width=bar, no_wrap=True)
    shown = stages if len(stages) <= rows else stages[: int(rows)]
    for stage in shown:
        table.add_row(
            stage.name,
            quantities.milliseconds(stage.mean_ms),
            quantities.percent(stage.share),
            bars.length(stage.share / most, bar, style),
        )
    return table


def _footer(report: Report) -> list[Text]:
    lines = []
    if report.tenants:
        told = [
            f"{tenant.tenant} {quantities.rate(tenant.calls_per_s)}/s {quantities.megabytes(tenant.bytes_per_s)} MB/s"
            for tenant in report.tenants
        ]
        lines.append(_line("tenants", ", ".join(told)))
    counters = {
        "refused": report.rejections_per_s,
        "evicted": report.evictions_per_s,
        "scenes put": report.puts_per_s,
        "states": {"lost": report.contexts_lost_per_s} if report.contexts_lost_per_s else {},
    }
    for name, rates in counters.items():
        if rates:
            told = [f"{reason} {quantities.rate(value)}/s" for reason, value in rates.items()]
            lines.append(_line(name, ", ".join(told)))
    return lines


def _line(name: str, text: str) -> Text:
    return Text.assemble((f"{name:<12}", "bold"), text, no_wrap=True, overflow="ellipsis")


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
