"""Accounts: nobody has more than a share, all together no more than the limit, and everything is given back."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lumigrad.server.core.accounts import Account
from lumigrad.server.core.errors import BusyError


def account(limit: int = 100, share: int | None = None) -> Account:
    return Account("bytes", limit, "--all", share=share, share_option="--each")


def test_a_share_is_refused_before_the_limit_and_both_name_their_option() -> None:
    books = account(share=60)
    held = [books.reserve("a", 60)]
    with pytest.raises(BusyError, match=r"60 of 60 bytes \(--each\).* 1 more"):
        books.reserve("a", 1)
    held.append(books.reserve("b", 40))
    with pytest.raises(BusyError, match=r"100 of 100 bytes are taken \(--all\), and 1 more"):
        books.reserve("b", 1)
    assert books.taken == sum(mine.amount for mine in held)


def test_a_refused_change_leaves_everything_as_it_was() -> None:
    books = account()
    mine = books.reserve("a", 70)
    with pytest.raises(BusyError):
        mine.resize(101)
    assert (mine.amount, books.taken, books.tenants()["a"]) == (70, 70, 70)


def test_a_released_reservation_takes_nothing_any_more() -> None:
    books = account()
    mine = books.reserve("a", 70)
    mine.release()
    mine.release()
    mine.resize(50)
    assert (mine.amount, books.taken) == (0, 0)


def test_nothing_outlasts_a_reservation_that_nobody_has() -> None:
    """Reservations may be dropped, for example with a job that could not be made."""
    books = account()
    mine, native = books.reserve("a", 70), books.take("a", 20)
    assert native is not None
    del mine, native
    assert books.taken == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 80), st.integers(0, 80)), max_size=30))
def test_limits_hold_and_everything_comes_back(changes: list[tuple[str, int, int]]) -> None:
    books = account(share=70)
    kept = []
    for tenant, first, then in changes:
        try:
            kept.append(books.reserve(tenant, first))
            kept[-1].resize(then)
        except BusyError:
            pass
        assert books.taken == sum(mine.amount for mine in kept) <= 100
        assert all(books.tenants().get(name, 0) <= 70 for name in "abc")
    for mine in kept:
        mine.release()
    assert books.taken == 0
    assert not books.tenants()


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Lets threads interrupt each other as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_do_not_lose_amounts(hasty_threads: None) -> None:
    books = account(limit=1 << 40)

    def work() -> None:
        for size in range(2000):
            mine = books.reserve("a", size)
            mine.resize(size + 1)
            mine.release()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work) for _ in range(4)]:
            done.result()
    assert books.taken == 0
    assert not books.tenants()


def test_threads_do_not_take_more_than_there_is(hasty_threads: None) -> None:
    books = account(limit=1)

    def work() -> int:
        most = 0
        for _ in range(2000):
            with contextlib.suppress(BusyError):
                mine = books.reserve("a", 1)
                most = max(most, books.taken)
                mine.release()
        return most

    with ThreadPoolExecutor(4) as pool:
        assert max([done.result() for done in [pool.submit(work) for _ in range(4)]]) == 1
    assert books.taken == 0
