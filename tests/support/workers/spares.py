"""The process that a supervisor keeps ready to take a worker's place."""

from __future__ import annotations

import time

import psutil

from support.workers.worker import WorkerProcess

# The least resident memory of a process that has loaded torch.
_LOADED_BYTES = 150 << 20


def wait_for_spare(process: WorkerProcess) -> None:
    """Waits until the supervisor's spare process has loaded torch and is idle."""
    spares: list[psutil.Process] = []
    until = time.monotonic() + 60
    while not spares or spares[0].memory_info().rss < _LOADED_BYTES or spares[0].cpu_percent(0.3) > 5:
        assert time.monotonic() < until, "no spare gets ready"
        spares = [child for child in psutil.Process(process.process.pid).children() if child.pid != process.worker_pid]
        time.sleep(0.1)
