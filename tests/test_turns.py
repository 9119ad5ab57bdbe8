"""A test that is to be alone waits for all others, and all others wait for it."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import time
from multiprocessing.synchronize import Event
from pathlib import Path

from support.turns import turn


def stay(place: Path, alone: bool, inside: Event, leave: Event) -> None:
    with turn(alone, place, place / "room"):
        inside.set()
        assert leave.wait(60)


class Visitor:
    """A process that takes a turn, and ends it when it is told to."""

    def __init__(self, place: Path, alone: bool):
        context = multiprocessing.get_context("fork")
        self.inside, self._leave = context.Event(), context.Event()
        self._process = context.Process(target=stay, args=(place, alone, self.inside, self._leave), daemon=True)
        self._process.start()

    def leave(self) -> None:
        assert self.inside.wait(60)
        self._leave.set()
        self._process.join(60)
        assert self._process.exitcode == 0


def wait_until_held(door: Path) -> None:
    descriptor = os.open(door, os.O_RDONLY)
    until = time.monotonic() + 60
    try:
        while True:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            assert time.monotonic() < until
            time.sleep(0.01)
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)


def test_whoever_is_to_be_alone_is(tmp_path: Path) -> None:
    (tmp_path / "room").touch()
    first, second = Visitor(tmp_path, False), Visitor(tmp_path, False)
    assert first.inside.wait(60) and second.inside.wait(60)
    alone = Visitor(tmp_path, True)
    wait_until_held(tmp_path)
    later = Visitor(tmp_path, False)
    first.leave()
    assert not alone.inside.wait(0.3)
    second.leave()
    assert alone.inside.wait(60)
    assert not later.inside.wait(0.3), "two are in the room of which one is to be alone"
    alone.leave()
    later.leave()
