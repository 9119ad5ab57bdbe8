"""`lumigrad serve` as the first process of a container: signals reach it, and it replaces its worker."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.workers.worker import LUMIGRAD, WorkerProcess, worker

# Like a container engine, makes the command process 1, with a /proc of its own.
CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
SECONDS = 150


def may_unshare() -> bool:
    return bool(shutil.which("unshare")) and subprocess.run([*CONTAINER, "true"], capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not may_unshare(), reason="may not make namespaces of processes here")


@pytest.fixture
def contained() -> Iterator[WorkerProcess]:
    with worker("--device", "cpu", supervised=True, command=(*CONTAINER, LUMIGRAD, "serve")) as process:
        yield process


def first_process(contained: WorkerProcess) -> int:
    """The outer number of the process that is 1 inside."""
    (child,) = Path(f"/proc/{contained.process.pid}/task/{contained.process.pid}/children").read_text().split()
    return int(child)


def children(process: int) -> dict[int, str]:
    """The states of a process's children: Z for those that have ended and were not waited for."""
    found = {}
    for child in map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()):
        try:
            found[child] = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            continue
    return found


def inner_number(process: int) -> int:
    """The number of a process inside its innermost namespace."""
    (line,) = [line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("NSpid:")]
    return int(line.split()[-1])


def wait_until(condition) -> None:
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_signal_stops_it_with_code_0(contained: WorkerProcess) -> None:
    os.kill(first_process(contained), signal.SIGTERM)
    assert contained.wait() == 0
    assert "draining" in contained.log


def test_a_worker_that_dies_is_replaced_and_leaves_nothing_behind(contained: WorkerProcess) -> None:
    first = first_process(contained)
    # The other child is the process from which the worker was forked.
    (worker,) = [child for child in children(first) if inner_number(child) == contained.worker_pid]
    os.kill(worker, signal.SIGKILL)
    contained.wait_for_log("worker started", count=2)
    wait_until(lambda: worker not in children(first) and "Z" not in children(first).values())
    os.kill(first, signal.SIGTERM)
    assert contained.wait() == 0
