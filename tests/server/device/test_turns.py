"""Turns: one call at a time, tenants in rotation, and nobody waits for a call that has ended."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from lumigrad.server.core.errors import CancelledError
from lumigrad.server.core.turns import Turn, Turns
from support.threads import run_at_once


def nothing() -> None:
    """Lets the call go on."""


class Line:
    """Turns, and threads that wait for theirs."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.order: list[str] = []
        self._threads: list[threading.Thread] = []

    def turn(self, tenant: str) -> Turn:
        return Turn(self.turns, tenant)

    def wait(self, tenant: str, check: Callable[[], None] = nothing) -> None:
        """Let a call wait for a turn, which it ends at once."""

        def run() -> None:
            turn = self.turn(tenant)
            try:
                turn.take(check)
                self.order.append(tenant)
            except CancelledError:
                self.order.append(f"not {tenant}")
            finally:
                turn.give()

        waiting = sum(map(len, self.turns._lines.values()))
        thread = threading.Thread(target=run)
        thread.start()
        self._threads.append(thread)
        while sum(map(len, self.turns._lines.values())) == waiting:
            time.sleep(0.001)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(100)
            assert not thread.is_alive()


def test_tenants_take_turns_however_many_calls_of_one_wait() -> None:
    line = Line()
    first = line.turn("a")
    first.take(nothing)
    for tenant in ("a", "a", "a", "b", "c", "b"):
        line.wait(tenant)
    first.give()
    line.join()
    assert line.order == ["a", "b", "c", "a", "b", "a"]


def test_a_turn_is_taken_and_given_back_any_number_of_times() -> None:
    line = Line()
    first, second = line.turn("a"), line.turn("b")
    first.give()
    first.take(nothing)
    first.take(nothing)
    second.give()
    line.wait("b")
    assert line.order == []
    first.give()
    first.give()
    line.join()
    assert line.order == ["b"]


def test_a_call_that_ends_while_it_waits_leaves_its_place_to_others() -> None:
    line = Line()
    has_ended = threading.Event()

    def check() -> None:
        if has_ended.is_set():
            raise CancelledError

    first = line.turn("a")
    first.take(nothing)
    line.wait("b", check)
    line.wait("b")
    has_ended.set()
    until = time.monotonic() + 100
    while line.order != ["not b"]:
        assert time.monotonic() < until
        time.sleep(0.01)
    first.give()
    line.join()
    assert line.order == ["not b", "b"]


@pytest.mark.parametrize("tenants", ["a", "ab"])
def test_one_call_has_the_turn_at_a_time(tenants: str) -> None:
    line, inside, most = Line(), [0], [0]

    def work(tenant: str) -> None:
        for _ in range(300):
            turn = line.turn(tenant)
            turn.take(nothing)
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0)
            inside[0] -= 1
            turn.give()

    run_at_once(*(partial(work, tenant) for tenant in tenants for _ in range(3)))
    assert most == [1]
    assert line.turns._owner is None
    assert not line.turns._lines


def test_threads_give_way_sooner_while_somebody_works_for_long() -> None:
    usual = sys.getswitchinterval()
    line = Line()
    first, second = line.turn("a"), line.turn("b")
    first.take(nothing)
    assert sys.getswitchinterval() < usual / 5
    line.wait("b")
    first.give()
    line.join()
    assert sys.getswitchinterval() == usual
    second.take(nothing)
    second.give()
    assert sys.getswitchinterval() == usual
