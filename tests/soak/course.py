"""The course of a soak: windows of load with faults, each followed by a rest in which resources are measured."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from support.fault_proxy import FaultProxy
from support.histogram import Histogram
from support.workers.load import Load
from support.workers.slow_render import wait_for, wait_until
from tests.soak.attacks import Attacks
from tests.soak.calls import Calls
from tests.soak.logged_worker import LoggedWorker
from tests.soak.mishaps import Mishaps
from tests.soak.sample import Sample, sample, spooled
from tests.soak.tally import Tally

# Metrics that must be zero at rest.
REST = ("lumigrad_calls_in_progress", "lumigrad_transit_bytes", "lumigrad_contexts", "lumigrad_trainings")
# Share of the time, at the beginning, in which each window loses its worker. After that one worker lives on, so that
# its resources may show a trend; connections and readers go on failing.
STORM = 0.3
_CALLS_AT_ONCE = 8
_PROBE_SECONDS = 0.2
# Time within which deleted files must be off the disk.
_SWEEP_SECONDS = 150.0


@dataclass(frozen=True)
class Window:
    """The resources held at rest after a window, and the work done in it."""

    seconds: float  # Time since the soak began.
    calls: int  # Calls that ended in it.
    worker: Sample
    supervisor: Sample
    client: Sample
    spool_files: int
    spool_mib: float
    scenes: int  # Scenes that the worker stored.


@dataclass
class Course:
    """Runs windows of `window_seconds` until the time is up."""

    process: LoggedWorker
    proxy: FaultProxy
    calls: Calls
    mishaps: Mishaps
    attacks: Attacks
    tally: Tally
    spool: Path
    window_seconds: float
    rate: float
    # Times of small renders during the windows in which no worker dies.
    probes: Histogram = field(default_factory=Histogram)

    def windows(self, seconds: float) -> Iterator[Window]:
        started = time.monotonic()
        numbers = (signal.SIGKILL, signal.SIGTERM)
        losses = 0
        while (elapsed := time.monotonic() - started) < seconds:
            is_stormy = elapsed < STORM * seconds
            number = numbers[losses % 2] if is_stormy else None
            losses += is_stormy
            before = self.tally.total
            self._run(number)
            self._rest()
            yield self._look(time.monotonic() - started, self.tally.total - before)

    def _run(self, lost: signal.Signals | None) -> None:
        """Runs load with faults; `lost` ends the worker half-way."""
        self.tally.may_lose = lost is not None
        load = Load(self.calls.every, self.rate, most_at_once=_CALLS_AT_ONCE, seed=random.getrandbits(32))
        with load, self.attacks.running(), self._probing(is_counted=lost is None):
            end_reader = self.mishaps.stop_reader()
            self.mishaps.break_connections(self.window_seconds / 2, partial(load.wait_for_progress, calls=1))
            if lost is not None:
                self.mishaps.lose_worker(lost)
            time.sleep(self.window_seconds / 2)
        end_reader()

    @contextmanager
    def _probing(self, *, is_counted: bool) -> Iterator[None]:
        """Times small renders until the block ends."""
        stopped = threading.Event()
        probe = self.tally.counted("small render", self.calls.probe)

        def run() -> None:
            while not stopped.wait(_PROBE_SECONDS):
                started = time.monotonic()
                probe()
                if is_counted:
                    self.probes.add(time.monotonic() - started)

        thread = threading.Thread(target=run, name="probe")
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def _rest(self) -> None:
        """Wait until all calls have ended, and delete what broken calls left."""
        for gauge in REST:
            wait_for(self.process, gauge, 0)
        self.calls.tidy()
        wait_for(self.process, "lumigrad_spool_waiting", 0)
        wait_until(lambda: not any(self.spool.rglob("*.gone")), "the end of deleted files", _SWEEP_SECONDS)

    def _look(self, seconds: float, calls: int) -> Window:
        files, mib = spooled(self.spool)
        return Window(
            seconds=seconds,
            calls=calls,
            worker=sample(self.process.worker_pid),
            supervisor=sample(self.process.process.pid),
            client=sample(os.getpid()),
            spool_files=files,
            spool_mib=mib,
            scenes=len(self.calls.client.list()),
        )
