"""The order of work: fair to tenants by device time, a tenant's urgent work first but not forever; and places."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lumigrad.kernels._native import Outcome
from lumigrad.server.core.call import Priority
from lumigrad.server.device.executor import DeviceExecutor
from lumigrad.server.device.memory import DeviceMemory
from support.calls.raw_calls import RawClient, failure, spec_of, sphere_cloud, violation
from support.timed_queue import TimedQueue
from support.workers.held_device import StandInCall, held
from support.workers.slow_render import wait_until

INTERACTIVE, NORMAL, BATCH = Priority


@dataclass(eq=False)
class Work:
    tenant: str
    priority: Priority = NORMAL
    seconds: float = 1.0


class WorkQueue(TimedQueue):
    """The queue, with work in place of jobs."""

    def __init__(self, size: int = 100, *, has_tenants: bool = True) -> None:
        super().__init__(size, has_tenants=has_tenants)
        self._works: dict[Any, Work] = {}

    def put_work(self, work: Work) -> bool:
        """Returns False if there is no place."""
        job = self.job(work.tenant, work.priority)
        outcome = self.put(job)
        assert outcome in {Outcome.PENDING, Outcome.FULL}
        if outcome == Outcome.PENDING:
            self._works[job] = work
        return outcome == Outcome.PENDING

    def take_work(self) -> Work:
        (job,) = self.take()
        return self._works.pop(job)

    def charge(self, seconds: float) -> None:
        self.native.finish(seconds, True)

    def remove(self, work: Work) -> None:
        (job,) = (job for job, other in self._works.items() if other is work)
        self.native.cancel(job)
        assert job.outcome == Outcome.CANCELLED
        del self._works[job]


def keep_busy(queue: WorkQueue, loads: list[Work], seconds: float) -> Counter[Work]:
    """Keeps each load waiting until this much device time is used; returns how much each of them had."""
    had: Counter[Work] = Counter()
    for load in loads:
        queue.put_work(load)
    while had.total() < seconds:
        taken = queue.take_work()
        had[taken] += taken.seconds
        queue.put_work(taken)
        queue.charge(taken.seconds)
    return had


def test_one_tenant_is_served_in_order_the_urgent_first() -> None:
    queue = WorkQueue()
    work = [Work("a", priority) for priority in (NORMAL, BATCH, INTERACTIVE, NORMAL, INTERACTIVE)]
    for each in work:
        queue.put_work(each)
    taken = []
    for _ in work:
        taken.append(queue.take_work())
        queue.charge(0.01)
    assert taken == [work[index] for index in (2, 4, 0, 3, 1)]


@pytest.mark.parametrize("priority", Priority)
def test_tenants_have_the_same_time_whatever_their_calls_cost(priority: Priority) -> None:
    cheap, middling, dear = loads = [Work(name, priority, cost) for name, cost in (("a", 0.01), ("b", 0.3), ("c", 2.0))]
    had = keep_busy(WorkQueue(), loads, 60)
    assert had[cheap] == pytest.approx(20, abs=2.5)
    assert had[middling] == pytest.approx(20, abs=2.5)
    assert had[dear] == pytest.approx(20, abs=2.5)


def test_who_waits_for_each_reply_before_the_next_call_does_not_go_first_again() -> None:
    queue = WorkQueue()
    many = [Work("many") for _ in range(8)]
    one = Work("one")
    queue.put_work(one)
    for work in many:
        queue.put_work(work)
    had: Counter[str] = Counter()
    while had["many"] < len(many):
        taken = queue.take_work()
        had[taken.tenant] += 1
        queue.charge(taken.seconds)
        if taken is one:
            # The work's time is charged already, and nothing else of its tenant waits.
            queue.put_work(one)
        assert had["one"] <= had["many"] + 1


def test_who_comes_anew_neither_waits_for_others_to_catch_up_nor_they_for_it() -> None:
    queue = WorkQueue()
    old, new = Work("old", seconds=0.1), Work("new", seconds=0.1)
    keep_busy(queue, [old, Work("other", seconds=0.1)], 50)
    had = keep_busy(queue, [new], 3)
    assert had[new] == pytest.approx(1, abs=0.2)


def test_time_used_while_nobody_else_waited_is_not_held_against_anybody() -> None:
    queue = WorkQueue()
    for _ in range(10):
        queue.put_work(Work("a"))
        queue.take_work()
        queue.charge(100.0)
    first, second = Work("a"), Work("b")
    queue.put_work(first)
    queue.put_work(second)
    assert queue.take_work() is first
    queue.charge(1.0)


@pytest.mark.parametrize(("urgent", "other"), [(INTERACTIVE, NORMAL), (INTERACTIVE, BATCH), (NORMAL, BATCH)])
def test_urgent_work_goes_before_other_work_of_its_tenant_but_leaves_a_fifth(urgent: Priority, other: Priority) -> None:
    queue = WorkQueue()
    first, second = Work("a", urgent, 0.05), Work("a", other, 0.2)
    queue.put_work(second)
    assert keep_busy(queue, [first], 0.9) == {first: pytest.approx(0.9)}
    had = keep_busy(queue, [], 100)
    assert had[second] == pytest.approx(20, abs=1)


def test_all_three_priorities_get_on() -> None:
    loads = [Work("a", priority, 0.1) for priority in Priority]
    had = keep_busy(WorkQueue(), loads, 100)
    assert [had[load] for load in loads] == pytest.approx([80, 16, 4], abs=2)


@pytest.mark.parametrize("other", Priority)
@pytest.mark.parametrize("urgent", Priority)
def test_a_priority_takes_nothing_from_other_tenants(urgent: Priority, other: Priority) -> None:
    loads = [Work("a", urgent, 0.1), Work("a", BATCH, 0.1), Work("b", other, 0.1)]
    had = keep_busy(WorkQueue(), loads, 60)
    assert had[loads[0]] + had[loads[1]] == pytest.approx(30, abs=1)
    assert had[loads[2]] == pytest.approx(30, abs=1)


def filled(queue: WorkQueue, tenant: str) -> int:
    """Returns how many items of a tenant the queue takes."""
    for count in range(100):
        job = queue.job(tenant)
        if queue.put(job) == Outcome.FULL:
            refusal = job.refusal
            assert "(--queue-size)" in queue.places.refusal(refusal.own, refusal.all, 1)
            assert (refusal.own, refusal.all) == (count, queue.native.depth)
            return count
    raise AssertionError("there is no limit")


def test_a_tenant_has_half_of_the_places_and_some_are_kept_for_those_who_have_none() -> None:
    queue = WorkQueue(16)
    assert [filled(queue, tenant) for tenant in "abcde"] == [8, 6, 1, 1, 0]
    queue.serve(0.1)
    assert filled(queue, "e") == 1


def test_without_tenants_every_place_is_everybodys() -> None:
    assert filled(WorkQueue(16, has_tenants=False), "") == 16


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["put", "take", "remove"]), st.sampled_from("abc"), st.sampled_from(Priority)))
)
def test_nothing_is_lost_and_nothing_comes_twice(steps: list[tuple[str, str, Priority]]) -> None:
    queue, inside = WorkQueue(8), []
    for step, tenant, priority in steps:
        work = Work(tenant, priority)
        if step == "put" and queue.put_work(work):
            inside.append(work)
        elif step == "take" and inside:
            inside.remove(queue.take_work())
            queue.charge(0.1)
        elif step == "remove" and inside:
            queue.remove(inside.pop(len(steps) % len(inside)))
        assert queue.native.depth == len(inside)
    while inside:
        inside.remove(queue.take_work())
        queue.charge(0.1)
    assert queue.native.depth == 0


@pytest.mark.parametrize("name", ["urgent", "", "Interactive", "0"])
def test_an_unknown_priority_is_refused(client: RawClient, name: str) -> None:
    error = failure(lambda: client.render(spec_of(), cloud=sphere_cloud(3), metadata=(("lumigrad-priority", name),)))
    assert violation(error) == ("lumigrad-priority", f"expected one of interactive, normal, batch, got {name}")


@pytest.mark.parametrize("name", ["interactive", "normal", "batch"])
def test_priorities_are_taken(client: RawClient, name: str) -> None:
    client.render(spec_of(), cloud=sphere_cloud(3), metadata=(("lumigrad-priority", name),))


def test_what_the_worker_does_for_a_tenant_without_a_call_is_charged_to_it() -> None:
    device = torch.device("cpu")
    executor = DeviceExecutor(device, DeviceMemory(device, 1 << 30), 16, has_tenants=True)
    order: list[str] = []

    def ask(name: str, call: StandInCall | None, tenant: str = "") -> threading.Thread:
        def work() -> None:
            time.sleep(0.02)
            order.append(name)

        depth = executor.queue.depth
        arguments = (work, call)
        thread = threading.Thread(target=lambda: executor.run(*arguments, tenant=tenant))  # type: ignore[arg-type]
        thread.start()
        wait_until(lambda: executor.queue.depth > depth, "the job in the queue")
        return thread

    try:
        with held(executor):
            restores = [ask(f"restore {number}", None, "a") for number in range(3)]
            threads = [*restores, ask("a", StandInCall("a")), ask("b", StandInCall("b"))]
        for thread in threads:
            thread.join()
    finally:
        executor.close()
    assert order == ["restore 0", "b", "restore 1", "restore 2", "a"]
