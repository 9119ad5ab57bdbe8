"""Reports as pages of a terminal of at least 80 columns and 24 lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import timedelta

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lumigrad.client.monitor.metrics import UNREACHABLE, Report

_COUNTS = {"tenant_calls_per_s": "tenants", "rejections_per_s": "refused"}
_COUNTS |= {"evictions_per_s": "evicted", "puts_per_s": "scenes put"}
_WORKERS = ("worker", "state", "up", "calls/s", "failed/s", "p95 ms", "queue", "busy")
_RATES = ("calls/s", "failed/s", "p50 ms", "p95 ms", "in MB/s", "out MB/s")
# Lines of a page without notes, counts and rows of tables.
_LINES = 9


def page(reports: Sequence[Report], height: int = 1000) -> RenderableType:
    """One worker in full, or several with one line each; tables are cut to the height."""
    notes = [_line(f"{it['target']}: {_note(it)}", "yellow") for it in reports if _note(it)]
    if len(reports) > 1 or reports[0]["state"] == UNREACHABLE:
        return Group(_table(_WORKERS, map(_worker, reports)), *notes)
    (it,) = reports
    counts = {name: it[key] for key, name in _COUNTS.items()} | {"states": {"lost": it["contexts_lost_per_s"]}}
    rates = {name: [f"{key} {_number(rate)}/s" for key, rate in of.items() if rate] for name, of in counts.items()}
    footer = [_line(f"{name:<12}{', '.join(parts)}") for name, parts in rates.items() if parts]
    room = max(6, height - _LINES - len(notes) - len(footer))
    rows = [_calls(each["method"], each) for each in it["methods"]]
    cut = min(len(rows), room // 2)
    if len(rows) > cut:
        rows[cut - 1 :] = [[f"… {len(rows) - cut + 1} more"]]
    times = Table.grid(padding=(0, 2), expand=True)
    times.add_row(*(_times(name, it[f"{name}s"][: room - cut]) for name in ("stage", "kernel")))
    return Group(*_head(it), *notes, _table(("calls", *_RATES), [*rows, _calls("all", it["load"])]), times, *footer)


def _note(it: Report) -> str:
    if it["state"] == UNREACHABLE:
        return f"for {_age(it['since_s'])}: {it['why']}"
    restarted, before = it["restarted_s"], it["identity"]["last_exit"]
    return "" if restarted is None else f"restarted {_age(restarted)} ago; the one before ended: {before}"


def _head(it: Report) -> list[RenderableType]:
    who, process, load, free = it["identity"], it["process"], it["load"], it["process"]["device_memory_free_bytes"]
    state = f"{it['target']}  {it['state']}  up {_age(who['uptime_s'])}"
    used = f"{process['resident_bytes'] / 2**30:.2f} GiB, {process['processors']:.1f} cores, {process['open_fds']} fds"
    memory = {"bytes": process["device_memory_bytes"] - free, "limit_bytes": process["device_memory_bytes"]}
    queue, calls = ("queue_depth", "queue_limit"), ("calls_in_progress", "calls_limit")
    gauges = [("device busy", f"{load['device_busy']:.0%}")]
    gauges += [(name, f"{load[part]} of {load[whole]}") for name, (part, whole) in (("queue", queue), ("calls", calls))]
    for each in ({"name": "memory", "count": "", **memory}, *it["stores"]):
        limits = f"{each['bytes'] / 2**30:.2f} of {each['limit_bytes'] / 2**30:.2f} GiB"
        gauges.append((f"{each['name']} {each['count']}", limits))
    grid = Table.grid(padding=(0, 2), expand=True)
    cells = [_line(f"{name:<13}{value}") for name, value in gauges]
    for left, right in zip(cells[::2], cells[1::2], strict=True):
        grid.add_row(left, right)
    return [
        _line(f"{state}  restarts {who['restarts']}, last exit {who['last_exit']}  v{who['version']}", "bold green"),
        _line(f"{who['device']}: {who['device_name']}, {who['instruction_set']}  process {used}", "dim"),
        grid,
    ]


def _calls(name: str, it: Report) -> list[str]:
    codes = "" if name == "all" else ", ".join(it["failures_per_s"])
    rates = [it["calls_per_s"], sum(it["failures_per_s"].values()), it["p50_ms"], it["p95_ms"]]
    return [f"{name}  {codes}", *map(_number, (*rates, it["received_bytes_per_s"] / 1e6, it["sent_bytes_per_s"] / 1e6))]


def _worker(it: Report) -> list[str]:
    load, first = it["load"], [it["target"].rpartition("://")[2], it["state"]]
    calls, failed, _, p95, *_ = _calls("all", load)[1:]
    queue, busy = f"{load['queue_depth']}/{load['queue_limit']}", f"{load['device_busy']:.0%}"
    rest = [_age(it["identity"]["uptime_s"]), calls, failed, p95, queue, busy]
    return first if it["state"] == UNREACHABLE else first + rest


def _times(title: str, times: Sequence[Report]) -> Table:
    most, shown = max((it["share"] for it in times), default=1.0), [(it["share"], it) for it in times]
    rows = [(it["name"], _number(it["mean_ms"]), f"{share:.0%}", Bar(most, 0, share, width=6)) for share, it in shown]
    return _table((title, "mean ms", "share", ""), rows)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str | Bar]]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=True, header_style="bold cyan")
    for index, name in enumerate(columns):
        table.add_column(name, ratio=None if index else 1, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_line(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def _line(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.{0 if value >= 100 or not value else 1 if value >= 10 else 2}f}"


def _age(seconds: float) -> str:
    return str(timedelta(seconds=int(seconds))) if seconds < 86400 else f"{seconds / 86400:.1f} d"
