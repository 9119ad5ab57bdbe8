"""The two processes that are compared: the worker and the bare server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from support.workers.worker import LUMIGRAD, WorkerProcess, worker
from tests.benchmarks.service.gil_meter import GilMeter, Watch

# The log goes to a file, so that reading it takes no time here.
_COMMAND = ("sh", "-c", 'mkdir -p build/bench && exec "$0" serve "$@" 2> build/bench/service.log', LUMIGRAD)


@dataclass(frozen=True)
class Servers:
    """Both servers, with watches of their time."""

    worker: WorkerProcess
    worker_watch: Watch
    bare_target: str
    bare_watch: Watch

    @property
    def watches(self) -> tuple[Watch, Watch]:
        """The watches of the worker and of the bare server."""
        return self.worker_watch, self.bare_watch


@contextmanager
def servers(meter: GilMeter | None) -> Iterator[Servers]:
    """Both servers for the length of a `with` block; without a meter only their processor time is known."""
    environment = {**os.environ, **(meter.environment if meter else {})}
    watch = meter.watch if meter else Watch
    bare = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.service.bare"], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert bare.stdout is not None
    try:
        target = f"127.0.0.1:{int(bare.stdout.readline())}"
        with worker("--device", "cpu", environment=environment, command=_COMMAND) as process:
            yield Servers(process, watch(process.process.pid), target, watch(bare.pid))
    finally:
        bare.kill()
        bare.wait()
        bare.stdout.close()
