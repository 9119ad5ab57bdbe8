"""Makes the engines of workers fail on request; imported into their fork server."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from lumigrad.server.process import liveness as warm_up
from lumigrad.server.process import main, worker
from lumigrad.server.rpc import prepared_calls
from lumigrad.server.rpc.prepared_calls import Lookup
from lumigrad.server.scenes import lookup as engines
from support.workers.faults import Faults, FaultyEngine
from support.workers.forks import FAULTS

faults = Faults(Path(os.environ[FAULTS]))
if faults.is_armed("crash while loading"):
    os._exit(70)


def run(*arguments: Any) -> int:
    if faults.is_armed("crash at start"):
        os._exit(70)
    return run_worker(*arguments)


def trial(machine: Any) -> None:
    if faults.strike("trial"):
        raise RuntimeError("nothing comes back from the device")
    warm_up.warm_up(machine)


def start(thread: threading.Thread) -> None:
    if faults.is_armed("threads"):
        raise RuntimeError("can't start new thread")
    start_thread(thread)


def look_up(self: Lookup, kind: Any) -> Any:
    """Finds nothing while faults are armed, since native code has none: renders are left to the engine."""
    return None if faults.are_armed else find(self, kind)


run_worker, main.run = main.run, run
start_thread = threading.Thread.start
threading.Thread.start = start  # type: ignore[method-assign]
worker.warm_up = trial
find = Lookup.__call__
Lookup.__call__ = look_up  # type: ignore[method-assign]
# Each call is looked up.
prepared_calls._LOOK_SECONDS = 0.0
wrapped: Any = engines.ENGINES
wrapped["spheres"] = FaultyEngine(wrapped["spheres"], faults)
