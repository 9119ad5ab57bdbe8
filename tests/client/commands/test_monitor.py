"""Metrics of a worker as they are read, compared and laid out; no terminal."""

from __future__ import annotations

import io
import math
import random

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from rich.console import Console

from lumigrad.client.monitor.metrics import UNREACHABLE, Page, Report, report
from lumigrad.client.monitor.screen import page


def test_labels_are_unescaped_and_keep_terminals_out_of_danger() -> None:
    registry = CollectorRegistry()
    Counter("a", "A.", ["x", "y"], registry=registry).labels('say "{}", \\ and\n', "\x1b[2J\x9b").inc(2)
    read = Page(generate_latest(registry).decode())
    assert read.by("a_total", "x", "y") == {'say "{}", \\ and? ?[2J?': 2.0}


@pytest.mark.parametrize("text", ["<html>", "a{", "a{b=c} d", "a b"])
def test_what_is_no_page_of_metrics_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Page(f"{text}\n")


def rates_of(before: list[float], after: list[float], seconds: float = 2.0) -> Page:
    """What a histogram and a counter say of the observations between two pages."""
    registry = CollectorRegistry()
    histogram = Histogram("t_seconds", "T.", ["m"], buckets=(0.001, 0.01, 0.1, 1.0), registry=registry)
    counter = Counter("n", "N.", ["m"], registry=registry)

    def observe(values: list[float]) -> Page:
        for value in values:
            histogram.labels("x").observe(value)
            counter.labels("x").inc()
        return Page(generate_latest(registry).decode())

    first = observe(before)
    return observe(after).rates(first, seconds)


def test_rates_are_of_the_interval_alone() -> None:
    rates = rates_of([0.5] * 7, [0.5] * 3)
    assert rates.value("n_total") == rates.value("n_total", m="x") == 1.5
    assert rates.by("n_total", "m") == {"x": 1.5}
    assert rates.by("n_total", "m", m="y") == rates_of([0.5], []).by("n_total", "m") == {}


def test_quantiles_lie_in_the_bucket_of_the_true_ones_and_forget_what_was_before() -> None:
    numbers = random.Random(4)
    for _ in range(50):
        values = sorted(10 ** numbers.uniform(-3.5, -0.01) for _ in range(numbers.randint(1, 40)))
        rates = rates_of([0.9] * 100, values)
        for share in (0.5, 0.95):
            exact = values[max(0, math.ceil(share * len(values)) - 1)]
            found = rates.quantile(share, "t_seconds", m="x")
            lower = max(limit for limit in (0.0, 0.001, 0.01, 0.1) if limit < exact)
            upper = min(limit for limit in (0.001, 0.01, 0.1, 1.0) if limit >= exact)
            assert lower * (1 - 1e-9) <= found <= upper * (1 + 1e-9)


def test_quantiles_without_observations_or_beyond_the_last_limit() -> None:
    assert math.isnan(rates_of([0.5], []).quantile(0.5, "t_seconds"))
    assert math.isnan(rates_of([0.5], [0.5]).quantile(0.5, "absent"))
    assert rates_of([], [5.0]).quantile(0.5, "t_seconds") == 1.0


def loads(rate: float) -> Report:
    volumes = {"received_bytes_per_s": 1e9, "sent_bytes_per_s": 1e10}
    return {"calls_per_s": rate, "failures_per_s": {"INTERNAL": 1.0}, "p50_ms": 1234.5, "p95_ms": 60000.0, **volumes}


def quiet_report(name: str, **parts: object) -> Report:
    nothing = report(Page(), Page())
    nothing["identity"] |= {"version": "0.1.0", "device": "cpu", "device_name": "CPU", "instruction_set": "avx2"}
    return {"target": name, **nothing, "state": "SERVING", "why": "", "since_s": 7.0, "restarted_s": None, **parts}


def busy_report(name: str, methods: int, tenants: int) -> Report:
    numbers = random.Random(1)
    quiet = quiet_report(name)
    kernels = [f"gaussians backward stage{index}" for index in range(30)]
    return quiet | {
        "restarted_s": 12.0,
        "identity": quiet["identity"] | {"restarts": 12, "last_exit": "device_lost", "uptime_s": 1e6},
        "load": quiet["load"] | loads(12345.6) | {"queue_depth": 64, "queue_limit": 64, "device_busy": 1.0},
        "methods": [{"method": f"DistanceService.Method{index}", **loads(12345.6)} for index in range(methods)],
        "stages": [{"name": name, "share": 12.0, "mean_ms": 123.0} for name in ("decode", "queue", "upload", "encode")],
        "kernels": [{"name": name, "share": numbers.random(), "mean_ms": 123.4} for name in kernels],
        "tenant_calls_per_s": {f"tenant-{index}": 123.4 for index in range(tenants)},
        "rejections_per_s": {"busy": 12.0, "invalid_argument": 1.0},
        "evictions_per_s": {"scenes room": 1.0, "contexts idle": 3.0},
        "puts_per_s": {"stored": 1.0, "present": 2.0},
        "contexts_lost_per_s": 1.0,
    }


def drawn(reports: list[Report], width: int, height: int = 1000) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), highlight=False)
    console.print(page(reports, height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 23), (100, 30), (132, 43), (200, 60)])
def test_a_busy_worker_fits_into_the_terminal(width: int, height: int) -> None:
    lines = drawn([busy_report("gpu-host-17.example.org:50051", 20, 64)], width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    told = (
        "SERVING",
        "restarted 0:00:12 ago",
        "device busy",
        "64 of 64",
        "all ",
        "queue ",
        "tenants",
        "refused",
        "lost",
    )
    for word in told:
        assert word in text, word
    assert ("… " in text) == (height < 60)


def test_a_quiet_worker_and_one_that_is_gone_fit_too() -> None:
    quiet = drawn([quiet_report("localhost:50051")], 80, 23)
    assert len(quiet) <= 23
    assert any(line.startswith("all ") for line in quiet)
    gone = drawn([quiet_report("localhost:50051", state=UNREACHABLE, why="no metrics at " + "x" * 300)], 80, 23)
    assert gone[1].split() == ["localhost:50051", "UNREACHABLE"]
    assert gone[2].startswith("localhost:50051: for 0:00:07: no metrics at ")
    assert max(map(len, gone)) <= 80


def test_without_a_screen_nothing_is_left_out() -> None:
    text = "\n".join(drawn([busy_report("localhost:50051", 20, 3)], 80))
    assert text.count("DistanceService.Method") == 20
    assert text.count("gaussians backward") == 30


def test_several_workers_take_a_line_each() -> None:
    reports = [busy_report(f"gpu-{index}:50051", 5, 3) for index in range(4)]
    reports.append(
        quiet_report("gpu-4:50051", state=UNREACHABLE, why="no metrics at http://gpu-4:9464/metrics: refused")
    )
    lines = drawn(reports, 80, 23)
    serving = [[f"gpu-{index}:50051", "SERVING"] for index in range(4)]
    assert [line.split()[:2] for line in lines[1:6]] == [*serving, ["gpu-4:50051", "UNREACHABLE"]]
    assert "gpu-4:50051: for 0:00:07: no metrics at http://gpu-4:9464/metrics: refused" in lines
    assert max(map(len, lines)) <= 80
