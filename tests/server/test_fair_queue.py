"""Whose work is next: fair to tenants by device time, a tenant's urgent work first but not for ever, and places."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lumigrad.server.core.call import Priority
from lumigrad.server.core.errors import BusyError
from lumigrad.server.device.queue import FairQueue
from support.calls.raw_calls import RawClient, failure, spec_of, sphere_cloud, violation

INTERACTIVE, NORMAL, BATCH = Priority


@dataclass(eq=False)
class Work:
    tenant: str
    priority: Priority = NORMAL
    seconds: float = 1.0


def queue_of(size: int = 100) -> FairQueue[Work]:
    return FairQueue(size, has_tenants=True)


def keep_busy(queue: FairQueue[Work], loads: list[Work], seconds: float) -> Counter[Work]:
    """Have each load wait at all times, until so much device time is used; returns how much each of them had."""
    had: Counter[Work] = Counter()
    for load in loads:
        queue.put(load)
    while had.total() < seconds:
        taken = queue.take()
        had[taken] += taken.seconds
        queue.put(taken)
        queue.charge(taken.seconds)
    return had


def test_one_tenant_is_served_in_order_the_urgent_first() -> None:
    queue = queue_of()
    work = [Work("a", priority) for priority in (NORMAL, BATCH, INTERACTIVE, NORMAL, INTERACTIVE)]
    for each in work:
        queue.put(each)
    assert [queue.take() for _ in work] == [work[index] for index in (2, 4, 0, 3, 1)]


@pytest.mark.parametrize("priority", Priority)
def test_tenants_have_the_same_time_whatever_their_calls_cost(priority: Priority) -> None:
    cheap, middling, dear = loads = [Work(name, priority, cost) for name, cost in (("a", 0.01), ("b", 0.3), ("c", 2.0))]
    had = keep_busy(queue_of(), loads, 60)
    assert had[cheap] == pytest.approx(20, abs=2.5)
    assert had[middling] == pytest.approx(20, abs=2.5)
    assert had[dear] == pytest.approx(20, abs=2.5)


def test_who_waits_for_each_reply_before_the_next_call_does_not_go_first_again() -> None:
    queue = queue_of()
    many = [Work("many") for _ in range(8)]
    one = Work("one")
    queue.put(one)
    for work in many:
        queue.put(work)
    had: Counter[str] = Counter()
    while had["many"] < len(many):
        taken = queue.take()
        had[taken.tenant] += 1
        queue.charge(taken.seconds)
        if taken is one:
            # Its time is charged already, and nothing of this tenant waits.
            queue.put(one)
        assert had["one"] <= had["many"] + 1


def test_who_comes_anew_neither_waits_for_others_to_catch_up_nor_they_for_it() -> None:
    queue = queue_of()
    old, new = Work("old", seconds=0.1), Work("new", seconds=0.1)
    keep_busy(queue, [old, Work("other", seconds=0.1)], 50)
    had = keep_busy(queue, [new], 3)
    assert had[new] == pytest.approx(1, abs=0.2)


def test_time_used_while_nobody_else_waited_is_not_held_against_anybody() -> None:
    queue = queue_of()
    for _ in range(10):
        queue.put(Work("a"))
        queue.take()
        queue.charge(100.0)
    first, second = Work("a"), Work("b")
    queue.put(first)
    queue.put(second)
    assert queue.take() is first


@pytest.mark.parametrize(("urgent", "other"), [(INTERACTIVE, NORMAL), (INTERACTIVE, BATCH), (NORMAL, BATCH)])
def test_urgent_work_goes_before_other_work_of_its_tenant_but_leaves_a_fifth(urgent: Priority, other: Priority) -> None:
    queue = queue_of()
    first, second = Work("a", urgent, 0.05), Work("a", other, 0.2)
    queue.put(second)
    assert keep_busy(queue, [first], 0.9) == {first: pytest.approx(0.9)}
    had = keep_busy(queue, [], 100)
    assert had[second] == pytest.approx(20, abs=1)


def test_all_three_priorities_get_on() -> None:
    loads = [Work("a", priority, 0.1) for priority in Priority]
    had = keep_busy(queue_of(), loads, 100)
    assert [had[load] for load in loads] == pytest.approx([80, 16, 4], abs=2)


@pytest.mark.parametrize("other", Priority)
@pytest.mark.parametrize("urgent", Priority)
def test_a_priority_takes_nothing_from_other_tenants(urgent: Priority, other: Priority) -> None:
    loads = [Work("a", urgent, 0.1), Work("a", BATCH, 0.1), Work("b", other, 0.1)]
    had = keep_busy(queue_of(), loads, 60)
    assert had[loads[0]] + had[loads[1]] == pytest.approx(30, abs=1)
    assert had[loads[2]] == pytest.approx(30, abs=1)


def filled(queue: FairQueue[Work], tenant: str) -> int:
    """The number of items that the queue takes of a tenant."""
    for count in range(100):
        try:
            queue.put(Work(tenant))
        except BusyError as full:
            assert "(--queue-size)" in full.what
            return count
    raise AssertionError("there is no limit")


def test_a_tenant_has_half_of_the_places_and_some_are_kept_for_those_who_have_none() -> None:
    queue = queue_of(16)
    assert [filled(queue, tenant) for tenant in "abcde"] == [8, 6, 1, 1, 0]
    queue.take()
    assert filled(queue, "e") == 1


def test_without_tenants_every_place_is_everybodys() -> None:
    assert filled(FairQueue(16, has_tenants=False), "") == 16


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["put", "take", "remove"]), st.sampled_from("abc"), st.sampled_from(Priority)))
)
def test_nothing_is_lost_and_nothing_comes_twice(steps: list[tuple[str, str, Priority]]) -> None:
    queue, inside = queue_of(8), []
    for step, tenant, priority in steps:
        work = Work(tenant, priority)
        if step == "put":
            with suppress(BusyError):
                queue.put(work)
                inside.append(work)
        elif step == "take" and inside:
            inside.remove(queue.take())
            queue.charge(0.1)
        elif step == "remove" and inside:
            removed = inside.pop(len(steps) % len(inside))
            assert queue.remove(removed)
            assert not queue.remove(removed)
        assert len(queue) == len(inside)
        assert set(queue) == set(inside)
    assert set(queue.clear()) == set(inside)
    assert len(queue) == 0


@pytest.mark.parametrize("name", ["urgent", "", "Interactive", "0"])
def test_an_unknown_priority_is_refused(client: RawClient, name: str) -> None:
    error = failure(lambda: client.render(spec_of(), cloud=sphere_cloud(3), metadata=(("lumigrad-priority", name),)))
    assert violation(error) == ("lumigrad-priority", f"expected one of interactive, normal, batch, got {name}")


@pytest.mark.parametrize("name", ["interactive", "normal", "batch"])
def test_priorities_are_taken(client: RawClient, name: str) -> None:
    client.render(spec_of(), cloud=sphere_cloud(3), metadata=(("lumigrad-priority", name),))
