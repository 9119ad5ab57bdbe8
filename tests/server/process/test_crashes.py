"""The pause before a worker is restarted grows with its crashes, until there were too many."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lumigrad.server.process import slot
from lumigrad.server.process.slot import Crashes


def test_the_pause_doubles_and_is_random_by_half() -> None:
    delays: list[list[float]] = [[] for _ in range(4)]
    for _ in range(50):
        crashes = Crashes(most=5, seconds=60)
        for found in delays:
            delay = crashes.add()
            assert delay is not None
            found.append(delay)
        assert crashes.add() is None
    for step, found in enumerate(delays):
        longest = 0.1 * 2**step
        assert longest / 2 <= min(found) < max(found) <= longest


def test_the_pause_is_bounded() -> None:
    crashes = Crashes(most=100, seconds=60)
    assert max(crashes.add() or 0.0 for _ in range(99)) <= 10


def test_old_crashes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    crashes = Crashes(most=2, seconds=60)
    now = 100.0
    monkeypatch.setattr(slot, "time", SimpleNamespace(monotonic=lambda: now))
    assert crashes.add() is not None
    now += 61.0
    assert crashes.add() is not None
    assert crashes.add() is None
