"""The load generator reports latencies as callers would have felt them, including calls that a slow answer delays."""

from __future__ import annotations

import itertools
import threading
import time

from support.workers.load import Load


def test_calls_that_are_held_up_count_from_when_they_were_due() -> None:
    numbers = itertools.count()

    def call() -> None:
        if next(numbers) == 5:
            time.sleep(1)

    with Load([call], rate=100, most_at_once=1) as load:
        load.wait_for_progress(120)
    # A hundred calls came due in that second, eighty of which waited for a fifth of it or longer.
    assert load.latencies.quantile(1 - 60 / load.latencies.count) > 0.2
    assert load.failed == 0


def test_a_call_that_is_held_up_does_not_hold_up_others() -> None:
    numbers, others_are_done = itertools.count(), threading.Event()

    def call() -> None:
        if next(numbers) % 10 == 5:
            assert others_are_done.wait(60)

    # 15 of its 32 threads are blocked.
    with Load([call], rate=100) as load:
        until = time.monotonic() + 60
        while load.done < 120:
            assert time.monotonic() < until
            time.sleep(0.01)
        others_are_done.set()
    assert load.failed == 0
    assert load.latencies.quantile(0.5) < load.latencies.max
