"""The load generator tells what callers would have felt, also of the calls that a slow answer holds up."""

from __future__ import annotations

import itertools
import threading
import time

import grpc
import pytest

from support.histogram import Histogram
from support.workers.load import Load


def test_quantiles() -> None:
    times = Histogram()
    assert times.quantile(0.5) == 0
    for milliseconds in range(1, 1001):
        times.add(milliseconds / 1e3)
    other = Histogram()
    other.add(3.0)
    times.merge(other)
    assert times.count == 1001
    for share in (0.1, 0.5, 0.9, 0.99):
        assert times.quantile(share) == pytest.approx(share, rel=0.06)
    assert times.quantile(1) == times.max == 3.0
    assert str(times).startswith("1001 calls, ms: p50 ")


def test_calls_that_are_held_up_count_from_when_they_were_due() -> None:
    numbers = itertools.count()

    def call() -> None:
        if next(numbers) == 5:
            time.sleep(1)

    with Load([call], rate=100, most_at_once=1) as load:
        load.wait_for_progress(120)
    # A hundred calls came due in that second, and waited for half of it on average.
    assert load.latencies.quantile(0.5) > 0.2
    assert load.failed == 0


def test_a_call_that_is_held_up_does_not_hold_up_others() -> None:
    numbers, others_are_done = itertools.count(), threading.Event()

    def call() -> None:
        if next(numbers) % 10 == 5:
            assert others_are_done.wait(60)

    # Of its 32 threads, 15 are held up.
    with Load([call], rate=100) as load:
        until = time.monotonic() + 60
        while load.done < 120:
            assert time.monotonic() < until
            time.sleep(0.01)
        others_are_done.set()
    assert load.failed == 0
    assert load.latencies.quantile(0.5) < load.latencies.max


def test_failures_are_counted_by_what_they_are() -> None:
    class Status(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.UNAVAILABLE

    def fail(error: Exception) -> None:
        raise error

    errors = AssertionError("a wrong picture"), ValueError(), Status()
    with Load([lambda error=error: fail(error) for error in errors], rate=500) as load:
        time.sleep(0.2)
    assert set(load.outcomes) == {"wrong", "ValueError", "UNAVAILABLE"}
    assert load.failed == sum(load.outcomes.values())
    assert load.done == 0 and len(load.failures) == 10
