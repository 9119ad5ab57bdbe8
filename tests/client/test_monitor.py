"""Metrics of a real worker as they are read, compared and laid out; no terminal."""

from __future__ import annotations

import io
import math
import random

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from lumigrad.client import Client
from lumigrad.client.monitor.display import page
from lumigrad.client.monitor.exposition import parse
from lumigrad.client.monitor.report import (
    SERVING,
    UNREACHABLE,
    Identity,
    Load,
    MethodLoad,
    Process,
    Report,
    StageLoad,
    Store,
    TenantLoad,
)
from lumigrad.client.monitor.snapshot import Interval, Snapshot
from support.mixed_load import CAMERA, spheres
from support.worker import WorkerProcess


def test_a_workers_page_is_read_as_prometheus_reads_it(worker_process: WorkerProcess, client: Client) -> None:
    client.render(spheres(), CAMERA)
    text = worker_process.metrics()
    expected = [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert sorted(expected, key=str) == sorted(map(tuple, parse(text)), key=str)
    assert len(expected) > 100


def test_labels_are_unescaped_and_keep_terminals_out_of_danger() -> None:
    registry = CollectorRegistry()
    Counter("a", "A.", ["x", "y"], registry=registry).labels('say "{}", \\ and\n', "\x1b[2J\x9b").inc(2)
    (sample,) = (sample for sample in parse(generate_latest(registry).decode()) if sample.name == "a_total")
    assert sample == ("a_total", {"x": 'say "{}", \\ and?', "y": "?[2J?"}, 2.0)


@pytest.mark.parametrize("line", ["<html>", "a{", "a{b=c} d", "a b", "{} 1", 'a{b="c" 1'])
def test_what_is_no_sample_is_passed_over(line: str) -> None:
    assert list(parse(f"{line}\nb 1\n")) == [("b", {}, 1.0)]


def snapshots(before: list[float], after: list[float], seconds: float = 2.0) -> Interval:
    """What a histogram and a counter say before and after observations."""
    registry = CollectorRegistry()
    histogram = Histogram("t_seconds", "T.", ["m"], buckets=(0.001, 0.01, 0.1, 1.0), registry=registry)
    counter = Counter("n", "N.", ["m"], registry=registry)

    def observe(values: list[float], moment: float) -> Snapshot:
        for value in values:
            histogram.labels("x").observe(value)
            counter.labels("x").inc()
        return Snapshot(parse(generate_latest(registry).decode()), moment)

    return Interval(observe(before, 10.0), observe(after, 10.0 + seconds))


def test_rates_are_of_the_interval_alone() -> None:
    interval = snapshots([0.5] * 7, [0.5] * 3)
    assert interval.rate("n_total") == interval.rate("n_total", m="x") == 1.5
    assert interval.rates("n_total", "m") == {("x",): 1.5}
    assert interval.rates("n_total", "m", m="y") == {}
    assert snapshots([0.5], []).rates("n_total", "m") == {}


def test_quantiles_lie_in_the_bucket_of_the_true_ones_and_forget_what_was_before() -> None:
    numbers = random.Random(4)
    for _ in range(50):
        values = sorted(10 ** numbers.uniform(-3.5, -0.01) for _ in range(numbers.randint(1, 40)))
        interval = snapshots([0.9] * 100, values)
        for share in (0.5, 0.95):
            exact = values[max(0, math.ceil(share * len(values)) - 1)]
            found = interval.quantile(share, "t_seconds", m="x")
            lower = max(limit for limit in (0.0, 0.001, 0.01, 0.1) if limit < exact)
            upper = min(limit for limit in (0.001, 0.01, 0.1, 1.0) if limit >= exact)
            assert lower * (1 - 1e-9) <= found <= upper * (1 + 1e-9)


def test_quantiles_without_observations_or_beyond_the_last_limit() -> None:
    assert math.isnan(snapshots([0.5], []).quantile(0.5, "t_seconds"))
    assert math.isnan(snapshots([0.5], [0.5]).quantile(0.5, "absent"))
    assert snapshots([], [5.0]).quantile(0.5, "t_seconds") == 1.0


def busy_report(name: str, methods: int, tenants: int) -> Report:
    numbers = random.Random(1)
    loads = [
        MethodLoad(f"DistanceService.Method{index}", 12345.6, {"INTERNAL": 1.0}, 1234.5, 60000.0, 1e9, 1e10)
        for index in range(methods)
    ]
    kernels = [StageLoad(f"gaussians backward stage{index}", numbers.random(), 123.4) for index in range(30)]
    return Report(
        target=name,
        state=SERVING,
        restarted_s=12.0,
        identity=Identity("0.1.0", "cuda:0", "NVIDIA H200 with a long name", "avx512", 1e6, 12, "device_lost"),
        process=Process(5e9, 12.3, 1234, 1.5e11, 1e10),
        load=Load(
            12345.6, {"INTERNAL": 2.0}, 12.3, 60000.0, 96, 96, {"receive": 96, "queue": 64}, 64, 64, 1.0, 1e9, 1e10
        ),
        stores=[Store(name, 12345, 4e9, 4.3e9) for name in ("scene", "context", "training", "transit")],
        methods=loads,
        stages=[StageLoad(stage, 12.0, 123.0) for stage in ("decode", "queue", "upload", "download", "encode")],
        kernels=kernels,
        tenants=[TenantLoad(f"tenant-{index}", 123.4, 1e9) for index in range(tenants)],
        rejections_per_s={"busy": 12.0, "invalid_argument": 1.0},
        evictions_per_s={"scenes room": 1.0, "contexts idle": 3.0},
        puts_per_s={"stored": 1.0, "present": 2.0},
        contexts_lost_per_s=1.0,
    )


def drawn(reports: list[Report], width: int, height: int | None) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), highlight=False)
    console.print(page(reports, width, height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 23), (100, 30), (132, 43), (200, 60)])
def test_a_busy_worker_fits_into_the_terminal(width: int, height: int) -> None:
    lines = drawn([busy_report("gpu-host-17.example.org:50051", 20, 64)], width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for word in (
        "SERVING",
        "restarted 12 s ago",
        "device busy",
        "64 of 64",
        "all ",
        "queue ",
        "tenants",
        "refused",
        "lost",
    ):
        assert word in text, word
    assert "… " in text


def test_a_quiet_worker_and_one_that_is_gone_fit_too() -> None:
    quiet = drawn([Report("localhost:50051", SERVING, identity=Identity(version="0.1.0"))], 80, 23)
    assert len(quiet) <= 23
    assert any(line.startswith("all ") for line in quiet)
    gone = drawn([Report("localhost:50051", UNREACHABLE, "no metrics at " + "x" * 300, since_s=7.0)], 80, 23)
    assert gone[0] == "localhost:50051  UNREACHABLE"
    assert gone[1].startswith("for 7 s: no metrics at ")
    assert max(map(len, gone)) <= 80


def test_without_a_screen_nothing_is_left_out() -> None:
    text = "\n".join(drawn([busy_report("localhost:50051", 20, 3)], 80, None))
    assert text.count("DistanceService.Method") == 20
    assert text.count("gaussians backward stage") == 30


def test_several_workers_take_a_line_each() -> None:
    reports = [busy_report(f"gpu-{index}:50051", 5, 3) for index in range(4)]
    reports.append(Report("gpu-4:50051", UNREACHABLE, "no metrics at http://gpu-4:9464/metrics: refused", since_s=3.0))
    lines = drawn(reports, 80, 23)
    assert [line.split()[:2] for line in lines[1:6]] == [*([f"gpu-{index}:50051", "SERVING"] for index in range(4)),
                                                         ["gpu-4:50051", "UNREACHABLE"]]  # fmt: skip
    assert "gpu-4:50051: for 3 s: no metrics at http://gpu-4:9464/metrics: refused" in lines
    assert max(map(len, lines)) <= 80
