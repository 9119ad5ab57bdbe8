"""Cuts that calls draw share the pool's room, whether or not they are kept."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from lumigrad.server.core.errors import CancelledError
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.device.memory import Budget
from lumigrad.server.storage.page_pool import PagePool
from support.workers.held_device import StandInCall


def test_a_cut_waits_for_room_beside_those_that_are_drawn() -> None:
    pool, call = PagePool(100, Budget(1000), Metrics()), StandInCall()
    begun = threading.Event()

    def draw(drawer: str, nbytes: int, caller: Any = call) -> None:
        pool.begin_drawing(drawer, nbytes, caller)
        begun.set()

    draw("one", 50)
    draw("two", 50)
    begun.clear()
    waiting = threading.Thread(target=draw, args=("three", 30))
    waiting.start()
    assert not begun.wait(0.2)
    over = StandInCall()
    over.cancel()
    with pytest.raises(CancelledError):
        draw("four", 30, over)
    assert pool.end_drawing("one")
    assert not pool.end_drawing("one")
    assert begun.wait(60)
    waiting.join(60)
    assert pool.end_drawing("two") and pool.end_drawing("three")
    # A cut that is larger than the whole pool is drawn alone.
    draw("large", 200)


def test_cuts_get_room_in_the_order_of_their_arrival() -> None:
    pool, call = PagePool(100, Budget(1000), Metrics()), StandInCall()
    order: list[str] = []
    pool.begin_drawing("first", 60, call)

    def draw(drawer: str, nbytes: int) -> None:
        pool.begin_drawing(drawer, nbytes, call)
        order.append(drawer)

    threads = [threading.Thread(target=draw, args=args) for args in (("large", 90), ("small", 20))]
    for waiting, thread in enumerate(threads, 1):
        thread.start()
        while len(pool._waiting) < waiting:
            thread.join(0.001)
    # The small cut would have room, but it came later.
    threads[1].join(0.2)
    assert order == []
    pool.end_drawing("first")
    threads[0].join(60)
    # There is no room for both at once, so that the threads cannot overtake each other.
    threads[1].join(0.2)
    assert order == ["large"]
    pool.end_drawing("large")
    threads[1].join(60)
    assert order == ["large", "small"]


def test_the_views_of_a_moving_camera_displace_no_pages() -> None:
    pages, count = 25_000, 5_000
    pool = PagePool(32 << 20, Budget(32 << 20), Metrics())
    for page in range(1000):
        pool.keep_page("a-scene", page, 0, torch.zeros(1 << 12, dtype=torch.uint8))
    before = pool.bytes
    first = torch.ones(-(-pages // 8), dtype=torch.uint8)
    pool.keep_hidden("a-scene", "first", first)
    for view in range(count):
        pool.keep_hidden("a-scene", f"{view}", torch.zeros_like(first))
        assert pool.hidden("a-scene", "first") is not None
    assert pool.hidden("a-scene", f"{count - 1000}") is not None
    assert pool.hidden("a-scene", "0") is None
    assert all(pool.page("a-scene", page, 0, is_packed=True) is not None for page in range(1000))
    assert pool.bytes - before < 8 << 20
    pool.forget("a-scene")
    assert pool.bytes == 0
