"""A test marked `alone` runs while no other test does."""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys
import time
from pathlib import Path

# Holds the run lock from when it prints a line until its standard input is closed.
HOLDER = """
import sys
from pathlib import Path
from support.turns import turn
folder, alone = Path(sys.argv[1]), sys.argv[2] == "alone"
with turn(alone, folder, folder / "run.lock"):
    print("inside", flush=True)
    sys.stdin.read()
"""


class Runner:
    """A process that holds the run lock until `leave`."""

    def __init__(self, folder: Path, alone: bool):
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(folder), "alone" if alone else "shared"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parent,
        )  # fmt: skip

    def is_inside(self, seconds: float = 60.0) -> bool:
        """Returns whether it holds the lock within some seconds."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], seconds)[0])

    def leave(self) -> None:
        assert self.is_inside()
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0


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
    assert first.is_inside() and second.is_inside()
    alone = Runner(tmp_path, True)
    wait_until_held(tmp_path)
    later = Runner(tmp_path, False)
    first.leave()
    assert not alone.is_inside(0.3)
    second.leave()
    assert alone.is_inside()
    assert not later.is_inside(0.3), "a test runs beside one that is marked alone"
    alone.leave()
    later.leave()
