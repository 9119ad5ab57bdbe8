"""The worker that a key prefers: even shares, and few keys that move."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lumigrad.client.workers.health import Standing
from lumigrad.client.workers.routing import Route, in_order, ranked

KEYS = [f"{number:064x}" for number in range(3000)]
FIVE = [f"10.0.0.{number}:50051" for number in range(5)]


def firsts(names: list[str]) -> list[str]:
    return [ranked(key, names)[0] for key in KEYS]


def test_shares_are_even_and_orders_agree() -> None:
    found = firsts(FIVE)
    for name in FIVE:
        assert 0.85 < found.count(name) / (len(KEYS) / 5) < 1.15
    assert found == firsts(FIVE[::-1])


@pytest.mark.parametrize("lost", FIVE)
def test_only_the_keys_of_a_lost_name_move_and_spread(lost: str) -> None:
    before, after = firsts(FIVE), firsts([name for name in FIVE if name != lost])
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert len(moved) == before.count(lost)
    assert all(moved.count(name) > len(moved) / 8 for name in FIVE if name != lost)
    # The moved keys go to the name that ranked second before.
    assert all(ranked(key, FIVE)[1] == new for key, old, new in zip(KEYS, before, after, strict=True) if old == lost)


def test_a_new_name_takes_its_share_from_all() -> None:
    new = "10.0.0.9:50051"
    moved = [after for old, after in zip(firsts(FIVE), firsts([*FIVE, new]), strict=True) if old != after]
    assert set(moved) == {new}
    assert 0.8 < len(moved) / (len(KEYS) / 6) < 1.2


def test_a_worker_that_is_away_is_asked_last_even_if_it_has_the_scene():
    def names(route: Route, **standing: Standing) -> list[str]:
        members: list[Any] = [
            SimpleNamespace(target=name, under_way=0, asked=0, health=SimpleNamespace(standing=found))
            for name, found in standing.items()
        ]
        return [worker.target for worker in in_order(route, members)]

    ready, gone = Standing.READY, Standing.GONE
    movable = Route(address="b")
    assert names(movable, a=ready, b=ready, c=ready)[0] == "b"
    assert names(movable, a=ready, b=gone, c=ready) == ["a", "c", "b"]
    # A scene that cannot be put elsewhere is on its own worker only.
    assert names(Route(address="b", is_movable=False), a=ready, b=gone, c=ready)[0] == "b"
