"""Metrics of a worker as they are read and compared."""

from __future__ import annotations

import math
import random

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from lumigrad.client.monitor.metrics import Page


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
