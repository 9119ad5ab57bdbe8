"""The byte budget: who goes first, and what is counted."""

from __future__ import annotations

import time

from lumigrad.server.storage.lru import Shelf


def make(limit: int) -> tuple[Shelf[str], list[tuple[str, str, str]]]:
    dropped: list[tuple[str, str, str]] = []
    return Shelf(limit, lambda *entry: dropped.append(entry)), dropped


def test_the_least_recently_used_goes_first() -> None:
    shelf, dropped = make(30)
    for name in "abc":
        shelf.put(name, name.upper(), 10)
    shelf.get("a")
    shelf.put("d", "D", 20)
    assert dropped == [("b", "B", "room"), ("c", "C", "room")]
    assert list(shelf.values()) == ["A", "D"]
    assert shelf.bytes == 30


def test_the_newest_stays_even_if_it_is_larger_than_all_the_room() -> None:
    shelf, dropped = make(30)
    shelf.put("a", "A", 10)
    shelf.put("b", "B", 100)
    assert dropped == [("a", "A", "room")]
    assert shelf.get("b") == "B"


def test_what_has_grown_makes_others_go() -> None:
    shelf, dropped = make(30)
    for name in "abc":
        shelf.put(name, name.upper(), 10)
    shelf.resize("a", 15)
    assert (dropped, shelf.bytes) == ([("b", "B", "room")], 25)
    shelf.resize("b", 5)
    assert (len(shelf), shelf.bytes) == (2, 25)


def test_replacing_counts_the_new_size_only() -> None:
    shelf, dropped = make(30)
    shelf.put("a", "A", 10)
    shelf.put("a", "B", 25)
    assert (shelf.bytes, len(shelf), shelf.get("a"), dropped) == (25, 1, "B", [])


def test_what_is_taken_out_is_not_counted_nor_reported() -> None:
    shelf, dropped = make(30)
    shelf.put("a", "A", 10)
    assert shelf.pop("a") == "A"
    assert shelf.pop("a") is None
    assert shelf.get("a") is None
    assert (shelf.bytes, dropped) == (0, [])


def test_idle_entries_are_dropped_and_used_ones_stay() -> None:
    shelf, dropped = make(30)
    shelf.put("a", "A", 10)
    shelf.put("b", "B", 10)
    time.sleep(0.05)
    shelf.get("a")
    shelf.drop_idle(0.04)
    assert dropped == [("b", "B", "idle")]
    assert "a" in shelf


def test_what_others_need_stays_and_is_counted() -> None:
    shelf, dropped = make(30)
    shelf.put("mesh", "M", 10)
    shelf.put("world", "W", 5, ["mesh"])
    for name in "abc":
        shelf.put(name, name.upper(), 10)
        shelf.get("world")
    assert dropped == [("a", "A", "room"), ("b", "B", "room")]
    assert (list(shelf.values()), shelf.bytes) == (["M", "C", "W"], 25)


def test_what_was_needed_goes_after_what_needed_it() -> None:
    shelf, dropped = make(30)
    shelf.put("mesh", "M", 10)
    shelf.put("world", "W", 5, ["mesh"])
    shelf.put("a", "A", 25)
    assert dropped == [("world", "W", "room"), ("mesh", "M", "room")]
    assert shelf.bytes == 25


def test_the_newest_keeps_what_it_needs_whatever_the_room() -> None:
    shelf, dropped = make(30)
    shelf.put("mesh", "M", 40)
    shelf.put("world", "W", 5, ["mesh"])
    assert (dropped, shelf.bytes) == ([], 45)


def test_what_is_taken_out_but_needed_is_only_seen_by_a_peek() -> None:
    shelf, _ = make(30)
    shelf.put("mesh", "M", 10)
    shelf.put("world", "W", 5, ["mesh"])
    shelf.put("other", "O", 5, ["mesh"])
    assert shelf.pop("mesh") == "M"
    assert (shelf.get("mesh"), shelf.peek("mesh"), shelf.pop("mesh")) == (None, "M", None)
    assert ("mesh" in shelf, len(shelf), shelf.bytes) == (True, 2, 20)
    shelf.pop("world")
    assert (shelf.peek("mesh"), shelf.bytes) == ("M", 15)
    shelf.pop("other")
    assert (shelf.peek("mesh"), shelf.bytes, "mesh" in shelf) == (None, 0, False)


def test_a_new_version_goes_on_needing() -> None:
    shelf, dropped = make(30)
    shelf.put("mesh", "M", 10)
    shelf.put("world", "W", 5, ["mesh"])
    shelf.pop("mesh")
    shelf.put("world", "X", 5, ["mesh"])
    shelf.resize("world", 6)
    assert (shelf.peek("mesh"), shelf.bytes, dropped) == ("M", 16, [])


def test_clearing_forgets_everything() -> None:
    shelf, dropped = make(30)
    shelf.put("mesh", "M", 10)
    shelf.put("world", "W", 5, ["mesh"])
    shelf.pop("mesh")
    shelf.clear()
    assert (shelf.bytes, len(shelf), shelf.peek("mesh"), dropped) == (0, 0, None, [])


def test_what_grew_is_counted_and_room_is_made_for_the_next() -> None:
    shelf, dropped = make(30)
    shelf.put("a", "A", 10)
    shelf.put("mesh", "M", 10)
    shelf.recount("mesh", 30)
    assert (shelf.bytes, dropped) == (40, [])
    shelf.put("world", "W", 5, ["mesh"])
    assert (list(shelf.values()), shelf.bytes, dropped) == (["M", "W"], 35, [("a", "A", "room")])
    shelf.pop("mesh")
    shelf.recount("mesh", 20)
    assert shelf.bytes == 25


def test_what_is_lent_is_counted_once_as_long_as_it_is_needed() -> None:
    shelf, dropped = make(30)
    for name in "ab":
        shelf.lend("mesh", 10)
        shelf.put(name, name.upper(), 5, ["mesh"])
    assert (shelf.bytes, len(shelf)) == (20, 2)
    shelf.lend("other", 10)
    shelf.put("c", "C", 5, ["other"])
    assert (shelf.bytes, dropped) == (30, [("a", "A", "room")])
    shelf.pop("b")
    assert shelf.bytes == 15
