"""The byte budget: what is evicted first, and what is counted."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lumigrad.server.storage import lru
from lumigrad.server.storage.lru import LruCache


def make(limit: int) -> tuple[LruCache[str], list[tuple[str, str, str]]]:
    dropped: list[tuple[str, str, str]] = []
    return LruCache(limit, lambda *entry: dropped.append(entry)), dropped


def test_the_least_recently_used_goes_first() -> None:
    cache, dropped = make(30)
    for name in "abc":
        cache.put(name, name.upper(), 10)
    cache.get("a")
    cache.put("d", "D", 20)
    assert dropped == [("b", "B", "room"), ("c", "C", "room")]
    assert list(cache.values()) == ["A", "D"]
    assert cache.bytes == 30


def test_the_newest_stays_even_if_it_is_larger_than_all_the_room() -> None:
    cache, dropped = make(30)
    cache.put("a", "A", 10)
    cache.put("b", "B", 100)
    assert dropped == [("a", "A", "room")]
    assert cache.get("b") == "B"


def test_what_has_grown_makes_others_go() -> None:
    cache, dropped = make(30)
    for name in "abc":
        cache.put(name, name.upper(), 10)
    cache.resize("a", 15)
    assert (dropped, cache.bytes) == ([("b", "B", "room")], 25)
    cache.resize("b", 5)
    assert (len(cache), cache.bytes) == (2, 25)


def test_replacing_counts_the_new_size_only() -> None:
    cache, dropped = make(30)
    cache.put("a", "A", 10)
    cache.put("a", "B", 25)
    assert (cache.bytes, len(cache), cache.get("a"), dropped) == (25, 1, "B", [])


def test_what_is_taken_out_is_not_counted_nor_reported() -> None:
    cache, dropped = make(30)
    cache.put("a", "A", 10)
    assert cache.pop("a") == "A"
    assert cache.pop("a") is None
    assert cache.get("a") is None
    assert (cache.bytes, dropped) == (0, [])


def test_what_others_need_is_not_dropped_before_them() -> None:
    cache, dropped = make(100)
    cache.put("mesh", "M", 10)
    cache.put("world", "W", 10, needs=("mesh",))
    cache.put("newest", "N", 10)
    for name in ("world", "mesh"):
        assert cache.drop_oldest(keep_newest=True)
        assert dropped.pop()[0] == name
    assert not cache.drop_oldest(keep_newest=True)
    assert cache.bytes == 10


def test_idle_entries_are_dropped_and_used_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, dropped = make(30)
    now = 100.0
    monkeypatch.setattr(lru, "time", SimpleNamespace(monotonic=lambda: now))
    cache.put("a", "A", 10)
    cache.put("b", "B", 10)
    now += 5.0
    cache.get("a")
    cache.drop_idle(4.0)
    assert dropped == [("b", "B", "idle")]
    assert "a" in cache


def test_what_others_need_stays_and_is_counted() -> None:
    cache, dropped = make(30)
    cache.put("mesh", "M", 10)
    cache.put("world", "W", 5, ["mesh"])
    for name in "abc":
        cache.put(name, name.upper(), 10)
        cache.get("world")
    assert dropped == [("a", "A", "room"), ("b", "B", "room")]
    assert (list(cache.values()), cache.bytes) == (["M", "C", "W"], 25)


def test_what_was_needed_goes_after_what_needed_it() -> None:
    cache, dropped = make(30)
    cache.put("mesh", "M", 10)
    cache.put("world", "W", 5, ["mesh"])
    cache.put("a", "A", 25)
    assert dropped == [("world", "W", "room"), ("mesh", "M", "room")]
    assert cache.bytes == 25


def test_the_newest_keeps_what_it_needs_whatever_the_room() -> None:
    cache, dropped = make(30)
    cache.put("mesh", "M", 40)
    cache.put("world", "W", 5, ["mesh"])
    assert (dropped, cache.bytes) == ([], 45)


def test_what_is_taken_out_but_needed_is_only_seen_by_a_peek() -> None:
    cache, _ = make(30)
    cache.put("mesh", "M", 10)
    cache.put("world", "W", 5, ["mesh"])
    cache.put("other", "O", 5, ["mesh"])
    assert cache.pop("mesh") == "M"
    assert (cache.get("mesh"), cache.peek("mesh"), cache.pop("mesh")) == (None, "M", None)
    assert ("mesh" in cache, len(cache), cache.bytes) == (True, 2, 20)
    cache.pop("world")
    assert (cache.peek("mesh"), cache.bytes) == ("M", 15)
    cache.pop("other")
    assert (cache.peek("mesh"), cache.bytes, "mesh" in cache) == (None, 0, False)


def test_a_new_version_goes_on_needing() -> None:
    cache, dropped = make(30)
    cache.put("mesh", "M", 10)
    cache.put("world", "W", 5, ["mesh"])
    cache.pop("mesh")
    cache.put("world", "X", 5, ["mesh"])
    cache.resize("world", 6)
    assert (cache.peek("mesh"), cache.bytes, dropped) == ("M", 16, [])


def test_clearing_forgets_everything() -> None:
    cache, dropped = make(30)
    cache.put("mesh", "M", 10)
    cache.put("world", "W", 5, ["mesh"])
    cache.pop("mesh")
    cache.clear()
    assert (cache.bytes, len(cache), cache.peek("mesh"), dropped) == (0, 0, None, [])


def test_what_grew_is_counted_and_room_is_made_for_the_next() -> None:
    cache, dropped = make(30)
    cache.put("a", "A", 10)
    cache.put("mesh", "M", 10)
    cache.recount("mesh", 30)
    assert (cache.bytes, dropped) == (40, [])
    cache.put("world", "W", 5, ["mesh"])
    assert (list(cache.values()), cache.bytes, dropped) == (["M", "W"], 35, [("a", "A", "room")])
    cache.pop("mesh")
    cache.recount("mesh", 20)
    assert cache.bytes == 25


def test_what_is_lent_is_counted_once_as_long_as_it_is_needed() -> None:
    cache, dropped = make(30)
    for name in "ab":
        cache.lend("mesh", 10)
        cache.put(name, name.upper(), 5, ["mesh"])
    assert (cache.bytes, len(cache)) == (20, 2)
    cache.lend("other", 10)
    cache.put("c", "C", 5, ["other"])
    assert (cache.bytes, dropped) == (30, [("a", "A", "room")])
    cache.pop("b")
    assert cache.bytes == 15
