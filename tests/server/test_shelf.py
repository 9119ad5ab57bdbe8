"""The byte budget: who goes first, and what is counted."""

from __future__ import annotations

import time

from lumigrad.server.shelf import Shelf


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
