"""Clients of a worker in separate processes, so that none waits for another's Python."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# The longest time that all clients may take to be ready; seconds.
_START = 60.0


@dataclass(frozen=True)
class Calls:
    """The calls of one client, which keeps asking for images of a stored scene."""

    target: str
    handle: Any
    camera: Any
    options: dict[str, Any]
    lane: str = "auto"


def rate(several: Sequence[Calls], seconds: float) -> dict[str, float]:
    """Calls per second of all clients together, and their median time."""
    # The processes are forked from a process that has imported the client and has made no call: importing it in each
    # would take longer than the calls.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "lumigrad.client"])
    barrier, results = context.Barrier(len(several)), context.Queue()
    processes = [context.Process(target=_run, args=(calls, seconds, barrier, results)) for calls in several]
    started = []
    try:
        for process in processes:
            process.start()
            started.append(process)
        found = [results.get(timeout=_START + 2 * seconds) for _ in processes]
    finally:
        for process in started:
            process.terminate()
            process.join()
    failed = [each for each in found if isinstance(each, str)]
    if failed:
        raise RuntimeError(failed[0])
    times = [taken for each in found for taken in each]
    calls_per_s = sum(len(each) / (sum(each) / 1e3) for each in found)
    return {"calls_per_s": round(calls_per_s, 1), "median_ms": round(statistics.median(times), 3)}


def _run(calls: Calls, seconds: float, barrier: Any, results: Any) -> None:
    """Runs one client; puts the milliseconds of its calls, or its error, into `results`."""
    try:
        from lumigrad.client import Client

        with Client(calls.target, lane=calls.lane) as client:  # type: ignore[arg-type]
            client.render(calls.handle, calls.camera, **calls.options)
            barrier.wait(_START)
            results.put(_times(client, calls, seconds))
    except Exception as error:
        barrier.abort()
        results.put(f"{type(error).__name__}: {error}")


def _times(client: Any, calls: Calls, seconds: float) -> list[float]:
    """The times of calls that begin within the time: at least one, however busy the machine is."""
    times = []
    until = time.perf_counter() + seconds
    while not times or time.perf_counter() < until:
        start = time.perf_counter()
        client.render(calls.handle, calls.camera, **calls.options)
        times.append((time.perf_counter() - start) * 1e3)
    return times
