"""A call that cannot be done in time is refused at once; one that could be done in time never is."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lumigrad.client import Camera, Client, Spheres
from lumigrad.client.errors import DeadlineExceeded
from lumigrad.kernels._native import Estimates, Outcome, QueuedJob
from lumigrad.protos import details
from lumigrad.server.core.call import Priority
from lumigrad.v1 import errors_pb2
from support.calls.raw_calls import RawClient, detail, failure, sphere_cloud
from support.timed_queue import TimedQueue
from support.workers.slow_render import SIZE, SlowRender, wait_for, wait_until
from support.workers.worker import WorkerProcess

VIEWS = 4


@pytest.fixture
def slow(process: WorkerProcess, client: RawClient) -> Iterator[SlowRender]:
    made = SlowRender(client)
    yield made
    made.cancel()
    wait_for(process, "lumigrad_calls_in_progress", 0)


def known_seconds(slow: SlowRender, size: int = SIZE) -> float:
    """The shortest time of some calls of a kind, which the worker knows too."""
    took = []
    for _ in range(3):
        started = time.perf_counter()
        list(slow.start(VIEWS, size=size))
        took.append(time.perf_counter() - started)
    return min(took)


def refusal(slow: SlowRender, timeout: float, size: int = SIZE) -> tuple[Any, float]:
    """The error of a refused call, and its time limit; None if none is refused.

    It is asked for again, with less time if the machine has become faster, because the deadline may come before the
    refusal on a busy machine.
    """
    for _ in range(20):
        call = slow.start(VIEWS, timeout, size)
        try:
            list(call)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            if details.find(error.trailing_metadata(), errors_pb2.DeadlineTooNear) is not None:
                return error, timeout
        else:
            timeout /= 2
    return None, timeout


def test_a_call_that_cannot_be_done_in_time_is_refused_at_once(process: WorkerProcess, slow: SlowRender) -> None:
    seconds = known_seconds(slow)
    before = process.metric("lumigrad_rejections_total", reason="deadline")
    error, timeout = refusal(slow, seconds / 5)
    near = detail(error, errors_pb2.DeadlineTooNear)
    # gRPC sends a deadline as whole milliseconds, rounded up.
    assert near.left_seconds <= timeout + 0.001
    assert near.left_seconds < near.needed_seconds < seconds
    assert error.details() == (
        f"the call was not begun: it takes {near.needed_seconds:.3g} s at the least, and its deadline is in "
        f"{near.left_seconds:.3g} s"
    )
    assert process.metric("lumigrad_rejections_total", reason="deadline") > before
    wait_for(process, "lumigrad_calls_in_progress", 0)
    rendered = process.metric("lumigrad_batch_views_sum")
    hasty = near.needed_seconds / 2
    assert refusal(slow, hasty)[1] == hasty, "a call was done within less time than it needs"
    assert process.metric("lumigrad_batch_views_sum") == rendered
    list(slow.start(VIEWS))


def needed_behind(process: WorkerProcess, slow: SlowRender, large: int, size: int) -> tuple[float, float]:
    """The time that a refused call needs behind calls of `large` views, 0 if it is not refused, and alone."""
    for _ in range(3):
        list(slow.start(large, size=size))
    seconds = known_seconds(slow, size)
    # A call on the device counts until half of its usual time has passed; those that wait count as long as they do.
    calls = [slow.start(large, size=size) for _ in range(4)]
    do_wait = lambda: process.metric("lumigrad_queue_depth") >= 2 or all(call.done() for call in calls)  # noqa: E731
    wait_until(do_wait, "calls that wait")
    error, _ = refusal(slow, 2 * seconds, size)
    for call in calls:
        call.cancel()
    wait_for(process, "lumigrad_calls_in_progress", 0)
    return (0.0 if error is None else detail(error, errors_pb2.DeadlineTooNear).needed_seconds), seconds


def test_what_waits_before_a_call_counts(process: WorkerProcess, slow: SlowRender) -> None:
    # The calls are so large that delays on a busy machine matter little, and so small that the worker, which remembers
    # calls for 30 s, remembers three of them. Other calls cannot interrupt their single view.
    size = SIZE // 2
    for large in (10 * VIEWS, 5 * VIEWS, 5 * VIEWS, 5 * VIEWS):
        needed, seconds = needed_behind(process, slow, large, size)
        if needed > 2 * seconds:
            break
    assert needed > 2 * seconds
    list(slow.start(VIEWS, size=size))


def test_a_kind_that_nobody_has_seen_is_never_refused(process: WorkerProcess, client: RawClient) -> None:
    slow = SlowRender(client, "gaussians")
    for _ in range(2):
        error = failure(lambda: list(slow.start(timeout=0.2)))
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert details.find(error.trailing_metadata(), errors_pb2.DeadlineTooNear) is None
    wait_for(process, "lumigrad_calls_in_progress", 0)


def test_clients_are_told_what_to_change(process: WorkerProcess) -> None:
    arrays = sphere_cloud(5000, radius=1.0, seed=99)
    camera = Camera.look_at((0, 0, 0), (0, 0, 1), (0, -1, 0), width=256, height=256)
    with Client(process.target) as client:
        handle = client.put(Spheres(arrays["positions"], arrays["colors"], arrays["radii"]))

        def render(timeout_s: float) -> None:
            client.render(handle, [camera] * VIEWS, gamma=1.0, max_depth=20.0, timeout_s=timeout_s)

        started = time.perf_counter()
        for _ in range(3):
            render(60)
        timeout_s, told = (time.perf_counter() - started) / 15, [""]
        # The deadline may come before the refusal on a busy machine, which may become faster, too.
        while not re.search(r"it needs at least .* are left; pass a larger timeout_s", told[-1]):
            assert len(told) < 20, told
            try:
                render(timeout_s)
                timeout_s /= 2
            except DeadlineExceeded as error:
                told.append(str(error))


def knowing(seconds: dict[Any, float]) -> TimedQueue:
    """A queue that has seen kinds of work take these times."""
    queue = TimedQueue(1000, has_tenants=False)
    for kind, each in seconds.items():
        for _ in range(3):
            queue.put(queue.job(kind=kind))
            queue.serve(each)
    return queue


def is_refused(queue: TimedQueue, job: QueuedJob) -> bool:
    return queue.put(job) == Outcome.TOO_NEAR


SECONDS = st.floats(0.01, 100.0)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(SECONDS, SECONDS, st.floats(0.5, 10.0))), SECONDS, SECONDS, st.floats(0.5, 10.0))
def test_none_is_refused_that_would_have_made_it(
    others: list[tuple[float, float, float]], seconds: float, remaining: float, slower: float
) -> None:
    """Holds whatever waits ahead, and although work may be twice as fast as ever before, or slower."""
    queue = knowing({**{number: each[0] for number, each in enumerate(others)}, "mine": seconds})
    now = 0.0
    for number, (usual, left, factor) in enumerate(others):
        if not is_refused(queue, queue.job(kind=number, remaining=left)) and left > now:
            now = min(now + usual * factor, left)
    would_end = now + seconds * slower
    mine = queue.job(kind="mine", remaining=remaining)
    if is_refused(queue, mine):
        # The time left is less than `remaining` by as long as the machine took to put the job.
        assert would_end > mine.refusal.left * (1 - 1e-6) - 1e-3


def test_only_what_must_go_before_a_call_counts() -> None:
    queue = knowing({"dear": 1000.0, "mine": 100.0})
    for _ in range(3):
        assert not is_refused(queue, queue.job(kind="dear", remaining=100_000.0))
    refused = queue.job(kind="mine", remaining=1000.0)
    assert is_refused(queue, refused)
    # Half of the time that each of them took before.
    assert refused.refusal.needed == pytest.approx(1550.0, abs=0.5)
    assert 900.0 < refused.refusal.left <= 1000.0
    assert not is_refused(queue, queue.job(kind="mine", remaining=1700.0))
    assert not is_refused(queue, queue.job(priority=Priority.INTERACTIVE, kind="mine", remaining=100.0))
    assert not is_refused(queue, queue.job(tenant="another", kind="mine", remaining=100.0))


def test_what_may_be_computed_as_one_counts_once() -> None:
    queue = knowing({"dear": 1000.0, "mine": 100.0})
    for _ in range(8):
        assert not is_refused(queue, queue.job(kind="dear", remaining=100_000.0, key="together"))
    assert is_refused(queue, queue.job(kind="mine", remaining=500.0))
    assert not is_refused(queue, queue.job(kind="mine", remaining=600.0))
    assert not is_refused(queue, queue.job(kind="dear", remaining=550.0, key="together"))


def test_what_runs_counts_as_far_as_it_is_not_done_and_no_longer_than_it_is_wanted() -> None:
    for wanted, refused in ((10_000.0, True), (60.0, False)):
        queue = knowing({"mine": 1.0})
        # The jobs wait before the queue knows how long the kind takes, which would get them refused.
        for remaining in (10_000.0, 10_000.0, 10_000.0, wanted):
            assert not is_refused(queue, queue.job(kind="dear", remaining=remaining))
        for _ in range(3):
            queue.serve(1000.0)
        queue.take()
        assert is_refused(queue, queue.job(kind="mine", remaining=200.0)) == refused
        queue.native.finish(1.0, True)


def test_timings_are_forgotten_and_few_tell_nothing() -> None:
    estimates = Estimates()
    for number in range(4):
        assert bool(estimates.least(1, 2.0, 0.0)) == (number >= 3)
        estimates.add(1, 1.0 + number, 0.0)
    assert estimates.least(1, 2.0, 0.0) == 1.0
    assert estimates.typical(1, 2.0, 0.0) == 5.0
    assert estimates.least(1, 2.0, 31.0) == 0.0
    assert estimates.typical(1, 1.0, 31.0) is None
    for number in range(2000):
        estimates.add(number, 1.0, 31.0)
    assert len(estimates) == 1024
