"""A full queue, deadlines and cancellations: nothing is computed that is no longer wanted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from lumigrad.v1 import worker_pb2
from support.calls.raw_calls import RawClient, detail, failure, spec_of, sphere_cloud
from support.workers.slow_render import SlowRender, wait_for, wait_for_work, wait_until
from support.workers.worker import WorkerProcess, worker_fixture

QUEUE = 2
# The largest number of views of a call: all these calls are cancelled.
LONG_VIEWS = 256
process = worker_fixture("--queue-size", str(QUEUE))


@pytest.fixture
def slow(process: WorkerProcess, client: RawClient) -> Iterator[SlowRender]:
    made = SlowRender(client)
    yield made
    made.cancel()
    wait_for(process, "lumigrad_calls_in_progress", 0)


def at_work(process: WorkerProcess, slow: SlowRender) -> Any:
    """A call that keeps the device busy for longer than a test takes."""
    running = slow.start(LONG_VIEWS)
    wait_for_work(process)
    return running


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(
    process: WorkerProcess, client: RawClient, slow: SlowRender
) -> None:
    refused = process.metric("lumigrad_rejections_total", reason="busy")
    running = at_work(process, slow)
    waiting = [slow.start() for _ in range(QUEUE)]
    wait_for(process, "lumigrad_queue_depth", QUEUE)
    error = failure(lambda: client.render(spec_of(), cloud=sphere_cloud(3)))
    assert running.is_active()
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details() == (
        f"{QUEUE} of {QUEUE} places of the queue are taken (--queue-size), and 1 more is needed; try again later"
    )
    delay = detail(error, error_details_pb2.RetryInfo).retry_delay
    assert delay.ToTimedelta().total_seconds() > 0
    assert process.metric("lumigrad_rejections_total", reason="busy") == refused + 1
    info = client.worker_stub.Info(worker_pb2.InfoRequest(), timeout=60)
    assert info.queue_depth == QUEUE
    assert process.health() == 1
    for call in [*waiting, running]:
        call.cancel()
    wait_for(process, "lumigrad_calls_in_progress", 0)
    client.render(spec_of(), cloud=sphere_cloud(3))


@pytest.mark.parametrize("how", ["cancelled", "overdue"])
def test_a_call_that_ends_while_it_waits_gives_its_place_up_and_reaches_no_kernel(
    process: WorkerProcess, slow: SlowRender, how: str
) -> None:
    running = at_work(process, slow)
    ended = lambda: sum(process.log.count(f"code={code}") for code in ("CANCELLED", "DEADLINE_EXCEEDED"))  # noqa: E731
    before = ended()
    launches = process.metric("lumigrad_kernel_seconds_count", engine="spheres", op="forward", stage="blend")
    waiting = slow.start(timeout=0.5 if how == "overdue" else 60)
    if how == "cancelled":
        wait_for(process, "lumigrad_queue_depth", 1)
        waiting.cancel()
    error = failure(lambda: next(waiting))
    expected = grpc.StatusCode.CANCELLED if how == "cancelled" else grpc.StatusCode.DEADLINE_EXCEEDED
    assert error.code() == expected
    wait_for(process, "lumigrad_queue_depth", 0)
    assert running.is_active(), "the place was given up before the device was free"
    # The deadline passes later for the worker than for the caller, who then cancels the call.
    wait_until(lambda: ended() > before, "its line in the log")
    running.cancel()
    wait_for(process, "lumigrad_calls_in_progress", 0)
    after = process.metric("lumigrad_kernel_seconds_count", engine="spheres", op="forward", stage="blend")
    assert after == launches


def test_a_deadline_that_has_passed_reaches_no_kernel(process: WorkerProcess, slow: SlowRender) -> None:
    before = process.metric("lumigrad_kernel_seconds_count", engine="spheres", op="forward", stage="blend")
    for seconds in (1e-6, 1e-4, 1e-3):
        error = failure(lambda seconds=seconds: list(slow.start(timeout=seconds)))
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_for(process, "lumigrad_calls_in_progress", 0)
    after = process.metric("lumigrad_kernel_seconds_count", engine="spheres", op="forward", stage="blend")
    assert after == before
