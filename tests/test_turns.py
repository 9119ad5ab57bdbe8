"""A test marked `alone` runs while no other test does."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import time
from multiprocessing.synchronize import Event
from pathlib import Path

from support.turns import turn


def stay(folder: Path, alone: bool, inside: Event, leave: Event) -> None:
    with turn(alone, folder, folder / "run.lock"):
        inside.set()
        assert leave.wait(60)


class Runner:
    """A process that holds the run lock until `leave`."""

    def __init__(self, folder: Path, alone: bool):
        context = multiprocessing.get_context("fork")
        self.inside, self._leave = context.Event(), context.Event()
        self._process = context.Process(target=stay, args=(folder, alone, self.inside, self._leave), daemon=True)
        self._process.start()

    def leave(self) -> None:
        assert self.inside.wait(60)
        self._leave.set()
        self._process.join(60)
        assert self._process.exitcode == 0


def wait_until_held(queue_lock: Path) -> None:
    descriptor = os.open(queue_lock, os.O_RDONLY)
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
    (tmp_path / "run.lock").touch()
    first, second = Runner(tmp_path, False), Runner(tmp_path, False)
    assert first.inside.wait(60) and second.inside.wait(60)
    alone = Runner(tmp_path, True)
    wait_until_held(tmp_path)
    later = Runner(tmp_path, False)
    first.leave()
    assert not alone.inside.wait(0.3)
    second.leave()
    assert alone.inside.wait(60)
    assert not later.inside.wait(0.3), "a test runs beside one that is marked alone"
    alone.leave()
    later.leave()
