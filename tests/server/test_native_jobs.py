"""Jobs without Python follow the queue's rules as Python's jobs do, and end however their call ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from lumigrad.kernels._native import Outcome, ProbeJob
from lumigrad.server.core.accounts import Account
from lumigrad.server.core.call import Priority
from lumigrad.server.core.errors import (
    BusyError,
    CancelledError,
    DeadlineError,
    DeadlineTooNearError,
    DeviceMemoryError,
    StoppingError,
)
from lumigrad.server.device.executor import DeviceExecutor
from lumigrad.server.device.jobs import BatchEntry
from lumigrad.server.device.memory import Budget, Cost, DeviceMemory
from lumigrad.server.device.transfer import Delivery
from support.backends.emulated_copies import EmulatedCopies, emulated_transfer
from support.timed_queue import TimedQueue
from support.workers.held_device import Asked, StandInCall, held
from support.workers.slow_render import wait_until

CPU = torch.device("cpu")
ROOM = 1 << 20
# The time of a job that is stopped before; longer than any thread of a test stands still.
LONG = 250.0


@pytest.fixture
def executor() -> Iterator[DeviceExecutor]:
    made = DeviceExecutor(CPU, DeviceMemory(CPU, 1 << 30), queue_size=16, has_tenants=True, limit_seconds=0.05)
    yield made
    made.close()


class Native:
    """A native job, submitted by a thread of its own."""

    def __init__(
        self,
        executor: DeviceExecutor,
        *,
        seconds: float = 0.0,
        asked: int = 0,
        fails: bool = False,
        anywhere: bool = False,
        **demand: Any,
    ) -> None:
        self.job = ProbeJob(**demand)
        self.job.anywhere = anywhere
        self.job.seconds, self.job.asked_bytes, self.job.fails, self.job.room_bytes = seconds, asked, fails, ROOM
        # The system's number of the thread that submits the job.
        self.thread = 0
        self._thread = threading.Thread(target=self._run, args=(executor,))
        depth = executor.queue.depth
        self._thread.start()
        wait_until(lambda: executor.queue.depth > depth or self._has_begun, "a job that waits or runs")

    def _run(self, executor: DeviceExecutor) -> None:
        self.thread = threading.get_native_id()
        executor.queue.run_probe(self.job)

    @property
    def _has_begun(self) -> bool:
        return self.job.started > 0.0 or not self._thread.is_alive()

    def wait_until_it_runs(self) -> Native:
        wait_until(lambda: self._has_begun, "a job that runs")
        return self

    def wait(self) -> Outcome:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.job.outcome


def test_a_native_job_runs_and_its_time_is_the_devices(executor: DeviceExecutor) -> None:
    assert Native(executor, seconds=0.03).wait() == Outcome.DONE
    assert executor.queue.busy_seconds >= 0.03
    assert executor.queue.last_success > 0.0
    assert not executor.is_busy and executor.held_seconds == 0.0


def test_the_time_of_the_device_never_falls() -> None:
    """Prometheus would take a lower value for a new count, and add all of it to its rate."""
    queue, seen = TimedQueue(), [0.0]
    for _ in range(3):
        queue.put(queue.job())
        queue.take()
        seen.append(queue.native.busy_seconds)
        # Time as the kernels measure it, without what their caller does before and after.
        queue.native.finish(0.0, True)
        seen.append(queue.native.busy_seconds)
    assert seen == sorted(seen) and seen[-1] > 0.0


def anywhere(executor: DeviceExecutor, **demand: Any) -> tuple[ProbeJob, Outcome]:
    """Runs a job that may run on this thread; returns it and its outcome."""
    job = ProbeJob(**demand)
    job.anywhere, job.room_bytes = True, ROOM
    return job, executor.queue.run_probe(job)


def test_a_small_job_runs_on_the_thread_that_waits_for_it_while_the_device_is_idle(executor: DeviceExecutor) -> None:
    job, outcome = anywhere(executor)
    assert (outcome, job.thread) == (Outcome.DONE, threading.get_native_id())
    assert executor.queue.last_success > 0.0 and not executor.is_busy
    # Jobs of Python also have a result.
    assert Asked(executor, lambda: 1, StandInCall()).wait().result == 1


def test_a_small_job_waits_its_turn_behind_others(executor: DeviceExecutor) -> None:
    running = Native(executor, seconds=LONG, tenant="a", is_repeatable=True).wait_until_it_runs()
    small = Native(executor, anywhere=True, tenant="b")
    let_go = time.monotonic()
    executor.queue.cancel(running.job)
    assert small.wait() == Outcome.DONE and small.job.thread != small.thread
    assert running.wait() == Outcome.CANCELLED and small.job.started >= let_go


def test_jobs_wait_for_a_small_one_on_another_thread(executor: DeviceExecutor) -> None:
    small = Native(executor, seconds=LONG, anywhere=True, is_repeatable=True).wait_until_it_runs()
    held_seconds = executor.held_seconds
    assert executor.is_busy and held_seconds <= time.monotonic() - small.job.started
    python = Asked(executor, time.monotonic, StandInCall())
    after = Native(executor)
    let_go = time.monotonic()
    executor.queue.cancel(small.job)
    assert small.wait() == Outcome.CANCELLED and after.wait() == Outcome.DONE
    assert small.job.thread == small.thread != after.job.thread
    result = python.wait().result
    assert result is not None and result >= let_go and after.job.started >= let_go


def test_a_small_job_is_stopped_as_others_are(executor: DeviceExecutor) -> None:
    small = Native(executor, seconds=LONG, anywhere=True, is_repeatable=True).wait_until_it_runs()
    executor.queue.cancel(small.job)
    assert small.wait() == Outcome.CANCELLED
    overdue = Native(executor, seconds=LONG, anywhere=True).wait_until_it_runs()
    while overdue.job.outcome == Outcome.PENDING:
        executor.stop_overdue()
        time.sleep(0.01)
    assert overdue.wait() == Outcome.OVERDUE


def test_a_queue_ends_after_a_small_job() -> None:
    executor = DeviceExecutor(CPU, DeviceMemory(CPU, 1 << 30), queue_size=16)
    small = Native(executor, seconds=0.2, anywhere=True).wait_until_it_runs()
    executor.close()
    assert small.job.outcome == Outcome.DONE
    assert anywhere(executor)[1] == Outcome.CLOSED


def test_small_jobs_of_many_threads_run_one_at_a_time_and_all_of_them(executor: DeviceExecutor) -> None:
    def calls() -> list[Outcome]:
        return [anywhere(executor)[1] for _ in range(200)]

    with ThreadPoolExecutor(8) as threads:
        native = [threads.submit(calls) for _ in range(7)]
        python = [Asked(executor, lambda: 1, StandInCall()).wait().result for _ in range(50)]
        assert all(set(each.result()) == {Outcome.DONE} for each in native)
    assert python == [1] * 50 and not executor.is_busy


def test_tenants_take_turns_whichever_kind_of_job_they_have(executor: DeviceExecutor) -> None:
    started: list[tuple[float, str]] = []
    with held(executor):
        native = [Native(executor, seconds=0.02, tenant="native") for _ in range(3)]
        note = lambda: started.append((time.monotonic(), "python"))  # noqa: E731
        python = [Asked(executor, note, StandInCall("python")) for _ in range(3)]
    assert [each.wait() for each in native] == [Outcome.DONE] * 3
    for each in python:
        each.wait()
    order = [kind for _, kind in sorted([*started, *((each.job.started, "native") for each in native)])]
    # The jobs of Python take hardly any time, so that their tenant catches up with one that has had 20 ms.
    assert order[:2] == ["native", "python"] and len(order) == 6


@pytest.mark.parametrize("is_native_urgent", [True, False])
def test_urgent_jobs_go_first_whichever_kind_they_are(executor: DeviceExecutor, is_native_urgent: bool) -> None:
    started: list[float] = []
    priority = Priority.BATCH if is_native_urgent else Priority.INTERACTIVE
    with held(executor):
        if is_native_urgent:
            python = Asked(executor, lambda: started.append(time.monotonic()), StandInCall(priority=priority))
            native = Native(executor, priority=0)
        else:
            native = Native(executor, priority=2)
            python = Asked(executor, lambda: started.append(time.monotonic()), StandInCall(priority=priority))
    assert native.wait() == Outcome.DONE
    python.wait()
    assert (native.job.started < started[0]) == is_native_urgent


def known(executor: DeviceExecutor, key: str, seconds: float = 0.0, times: int = 3) -> int:
    """Runs jobs of Python that take this long; returns the number of their kind of work."""
    for _ in range(times):
        # Even a sleep of no time lets other programs have the processor.
        executor.run(lambda: time.sleep(seconds) if seconds else None, None, Cost(key))
    return executor.numbers.of(key)


def quick(executor: DeviceExecutor) -> int:
    """Returns the number of a kind of work that takes hardly any time, even on a busy machine most of the time."""
    return known(executor, "kind", times=16)


def test_jobs_of_one_batch_run_together_but_not_with_those_of_python(executor: DeviceExecutor) -> None:
    number = quick(executor)
    sizes: list[int] = []

    def run(items: Any) -> Any:
        sizes.append(len(items))
        return items

    with held(executor):
        entry = BatchEntry("kind", 0.25, None, run)
        python = [Asked(executor, lambda: sizes.append(1), StandInCall(), Cost("kind"), entry) for _ in range(2)]
        native = [Native(executor, kind=number, batch=number, fill=0.25) for _ in range(5)]
    assert [each.wait() for each in native] == [Outcome.DONE] * 5
    for each in python:
        assert each.wait().error is None
    assert sizes == [2]
    assert [each.job.together for each in native] == [4, 4, 4, 4, 1]


def test_one_that_fails_fails_its_batch_and_the_next_runs(executor: DeviceExecutor) -> None:
    number = quick(executor)
    with held(executor):
        native = [Native(executor, kind=number, batch=number, fill=0.25, fails=fails) for fails in (False, True)]
    assert [each.wait() for each in native] == [Outcome.FAILED] * 2
    assert executor.queue.last_success == float("-inf")
    assert Native(executor).wait() == Outcome.DONE


def test_a_job_has_the_room_it_was_given_and_a_batch_that_of_all(executor: DeviceExecutor) -> None:
    assert Native(executor, asked=ROOM).wait() == Outcome.DONE
    assert Native(executor, asked=ROOM + 1).wait() == Outcome.FAILED
    number = quick(executor)
    with held(executor):
        pair = [Native(executor, asked=ROOM - 1, bytes=ROOM - 1, kind=number, batch=number) for _ in range(2)]
        assert executor.queue.predicted_bytes == 2 * (ROOM - 1)
    assert [each.wait() for each in pair] == [Outcome.DONE] * 2
    assert [each.job.together for each in pair] == [2, 2]


def test_jobs_that_succeed_show_that_no_memory_leaks() -> None:
    """Native jobs and batches of Python's do; native jobs that need no memory succeed however much has leaked."""
    reasons: list[str] = []
    memory = DeviceMemory(CPU, 1 << 30, on_leak=reasons.append)
    memory.share_with(Budget(100), Budget(100), Account("bytes of trainings", 100, "--training-mib"))
    executor = DeviceExecutor(CPU, memory, queue_size=16)
    quick(executor)

    def fail() -> None:
        raise torch.cuda.OutOfMemoryError

    def fails(times: int) -> None:
        for _ in range(times):
            assert isinstance(Asked(executor, fail, StandInCall(), Cost(bytes=1)).wait().error, DeviceMemoryError)

    fails(4)
    assert Native(executor, bytes=1).wait() == Outcome.DONE
    fails(4)
    with held(executor):
        entry = BatchEntry("kind", 0.25, None, list)
        pair = [Asked(executor, fail, StandInCall(), Cost("kind", bytes=1), entry) for _ in range(2)]
    assert [each.wait().error for each in pair] == [None, None]
    fails(4)
    assert not reasons
    assert Native(executor).wait() == Outcome.DONE
    assert Native(executor, bytes=1, fails=True).wait() == Outcome.FAILED
    fails(1)
    assert len(reasons) == 1
    executor.close()


def test_places_are_counted_for_both_kinds() -> None:
    executor = DeviceExecutor(CPU, DeviceMemory(CPU, 1 << 30), queue_size=2)
    with held(executor):
        native, python = Native(executor), Asked(executor, lambda: 1, StandInCall())
        refused = Native(executor)
        assert refused.wait() == Outcome.FULL
        assert (refused.job.refusal.own, refused.job.refusal.all) == (2, 2)
        assert isinstance(Asked(executor, lambda: 2, StandInCall()).wait().error, BusyError)
    assert native.wait() == Outcome.DONE and python.wait().result == 1
    executor.close()


def test_a_job_that_cannot_end_in_time_is_refused_by_what_was_seen_of_its_kind(executor: DeviceExecutor) -> None:
    number = known(executor, "kind", 0.1)
    refused = Native(executor, kind=number, remaining=0.03)
    for _ in range(20):
        # The deadline may pass before the refusal on a busy machine.
        if refused.wait() != Outcome.LATE:
            break
        refused = Native(executor, kind=number, remaining=0.03)
    assert refused.wait() == Outcome.TOO_NEAR
    assert refused.job.refusal.needed >= 0.05 > 0.03 >= refused.job.refusal.left
    slow = [Native(executor, kind=executor.numbers.of("other"), seconds=0.1).wait() for _ in range(3)]
    assert slow == [Outcome.DONE] * 3
    errors = []
    for _ in range(20):
        errors.append(Asked(executor, lambda: 1, StandInCall(remaining=0.03), Cost("other")).wait().error)
        if not isinstance(errors[-1], DeadlineError):
            break
    assert isinstance(errors[-1], DeadlineTooNearError)


def test_a_job_whose_deadline_passes_while_it_waits_leaves_the_queue_at_once(executor: DeviceExecutor) -> None:
    with held(executor):
        # The job without a deadline comes first, so that none leaves the queue while it enters.
        other = Native(executor)
        late, python = Native(executor, remaining=0.05), Asked(executor, lambda: 1, StandInCall(remaining=0.05))
        assert late.wait() == Outcome.LATE
        assert isinstance(python.wait().error, DeadlineError)
        assert executor.queue.depth == 1
    assert other.wait() == Outcome.DONE and late.job.together == 0


def test_a_job_that_is_cancelled_while_it_waits_leaves_the_queue(executor: DeviceExecutor) -> None:
    with held(executor):
        native = Native(executor)
        executor.queue.cancel(native.job)
        assert native.wait() == Outcome.CANCELLED
        assert executor.queue.depth == 0
    assert native.job.together == 0
    again = ProbeJob()
    executor.queue.cancel(again)
    assert executor.queue.run_probe(again) == Outcome.CANCELLED


@pytest.mark.parametrize("is_repeatable", [True, False])
def test_a_job_that_is_cancelled_while_it_runs_is_stopped_if_it_changes_nothing(
    executor: DeviceExecutor, is_repeatable: bool
) -> None:
    native = Native(executor, seconds=LONG if is_repeatable else 0.2, is_repeatable=is_repeatable).wait_until_it_runs()
    executor.queue.cancel(native.job)
    assert native.wait() == (Outcome.CANCELLED if is_repeatable else Outcome.DONE)


def test_a_batch_is_stopped_once_all_its_calls_have_ended(executor: DeviceExecutor) -> None:
    number = quick(executor)
    with held(executor):
        demand = {"kind": number, "batch": number, "fill": 0.25, "is_repeatable": True}
        first, second = (Native(executor, seconds=seconds, **demand) for seconds in (0.2, LONG))
    first.wait_until_it_runs()
    executor.queue.cancel(second.job)
    time.sleep(0.05)
    assert second.job.outcome == Outcome.PENDING
    executor.queue.cancel(first.job)
    assert (first.wait(), second.wait()) == (Outcome.CANCELLED, Outcome.CANCELLED)


@pytest.mark.parametrize("is_own", [False, True])
def test_a_job_that_takes_longer_than_a_call_may_is_stopped(executor: DeviceExecutor, is_own: bool) -> None:
    native = Native(executor, seconds=0.3 if is_own else LONG, is_own=is_own).wait_until_it_runs()
    while native.job.outcome == Outcome.PENDING:
        executor.stop_overdue()
        time.sleep(0.01)
    assert native.wait() == (Outcome.DONE if is_own else Outcome.OVERDUE)


def test_what_a_job_of_python_has_left_ends_before_a_native_job() -> None:
    copies = EmulatedCopies()
    transfer = emulated_transfer(copies)
    executor = DeviceExecutor(CPU, DeviceMemory(CPU, 1 << 30, transfer=transfer), queue_size=16)
    copies.go.clear()

    def leave() -> Delivery[None]:
        download = transfer.start_download([torch.ones(1000)])
        executor.leave(download, "steps")
        return Delivery(None, download)

    executor.run(leave, StandInCall(), Cost(sequence="steps"))  # type: ignore[arg-type]
    native = Native(executor)
    of_sequence = ProbeJob(sequence=executor.numbers.of("steps"))
    wait_until(lambda: executor.held_seconds > 0.05, "a device that is held")
    assert native.job.outcome == Outcome.PENDING
    copies.go.set()
    assert native.wait() == Outcome.DONE
    assert executor.queue.run_probe(of_sequence) == Outcome.DONE
    executor.close()
    assert copies.mistakes == []


def test_a_closed_queue_refuses_and_a_lost_device_is_not_waited_for() -> None:
    executor = DeviceExecutor(CPU, DeviceMemory(CPU, 1 << 30), queue_size=16)
    running = Native(executor, seconds=LONG, is_repeatable=True).wait_until_it_runs()
    waiting, python = Native(executor), Asked(executor, lambda: 1, StandInCall())
    assert executor.queue.depth == 2
    executor.abandon()
    assert (running.wait(), waiting.wait()) == (Outcome.LOST, Outcome.CLOSED)
    assert isinstance(python.wait().error, StoppingError)
    assert Native(executor).wait() == Outcome.CLOSED
    # The device is still at work.
    assert executor.is_busy
    executor.queue.cancel(running.job)
    executor.close()
    assert running.job.outcome == Outcome.LOST
    with pytest.raises(CancelledError):
        executor.run(lambda: 1, None)
