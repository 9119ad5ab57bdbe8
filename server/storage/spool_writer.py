"""The thread in which scenes are written to the spool, so that no call waits for the disk."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lumigrad.server.core import logs
from lumigrad.server.core.accounts import Account
from lumigrad.server.core.config import MIB, Config, ConfigError
from lumigrad.server.core.link import History
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.storage.spool import Spool

# Rendering has priority where processors are few.
_NICE = 10
# How often deleted files are removed while nothing is written.
_SWEEP_SECONDS = 1.0
# Time for others to finish trainings or delete scenes.
_RETRY_SECONDS = 5.0
# The number of tenants that can each use their full share of files.
_SPOOL_TENANTS = 8
# Writes something; calls its argument before the last step, and discards the result if that returns False.
Work = Callable[[Callable[[], bool]], object]


@dataclass(eq=False)
class Writing:
    """A scheduled write."""

    # By the monotonic clock.
    due: float
    # None: it was cancelled or is done.
    work: Work | None

    @property
    def is_wanted(self) -> bool:
        """Whether it is neither cancelled nor done."""
        return self.work is not None

    def run(self) -> None:
        """Write, then free the data."""
        work = self.work
        try:
            if work is not None:
                work(lambda: self.is_wanted)
        finally:
            self.work = None


class SpoolWriter:
    """Runs scheduled writes one at a time, each when it is due."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self._waiting: set[Writing] = set()
        self._is_busy = False
        self._is_hurried = False
        self._changed = threading.Condition()
        threading.Thread(target=self._loop, name="spool", daemon=True).start()

    @property
    def depth(self) -> int:
        """The number of unfinished writes."""
        return len(self._waiting) + self._is_busy

    def submit(self, work: Work, delay_seconds: float) -> Writing:
        """Schedule a write after a delay."""
        writing = Writing(time.monotonic() + delay_seconds, work)
        with self._changed:
            self._waiting.add(writing)
            self._changed.notify_all()
        return writing

    def cancel(self, writing: Writing) -> None:
        """Cancel a write."""
        # Its data is freed even if it is running.
        writing.work = None
        with self._changed:
            self._waiting.discard(writing)
            self._changed.notify_all()

    def wait_for(self, writings: Sequence[Writing], seconds: float) -> bool:
        """Wait until some writes are done or cancelled; False after `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: not any(writing.is_wanted for writing in writings), seconds)

    def flush(self, seconds: float) -> bool:
        """Run all writes now, due or not, and wait for them; False after `seconds`."""
        with self._changed:
            self._is_hurried = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self.depth, seconds)

    def _loop(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        # Files left by earlier workers.
        self.spool.sweep()
        while True:
            with self._changed:
                writing = self._next()
                if writing is not None:
                    self._waiting.discard(writing)
                    self._is_busy = True
            try:
                if writing is not None:
                    writing.run()
                self.spool.sweep()
            except Exception as error:
                logs.event("cannot write to the spool", logging.ERROR, error=error)
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()

    def _next(self) -> Writing | None:
        """Wait for the next due write; None: time to sweep."""
        sweep_at = time.monotonic() + _SWEEP_SECONDS
        while True:
            first = min(self._waiting, key=lambda writing: writing.due, default=None)
            now = time.monotonic()
            if first is not None and (first.due <= now or self._is_hurried):
                return first
            if now >= sweep_at:
                return None
            self._changed.wait(min(sweep_at, sweep_at if first is None else first.due) - now)


def open_spool(config: Config, history: History, metrics: Metrics) -> SpoolWriter | None:
    """Open the configured spool; None: none is configured, or a restarted worker cannot use it.

    A first worker that cannot use it raises a ConfigError.
    """
    if not config.spool:
        return None
    share = config.share_of(config.spool_mib, config.tenant_spool_mib, config.max_payload_mib)
    space = Account(
        "bytes of files in the spool",
        config.spool_mib * MIB,
        "--spool-mib",
        share=share * MIB,
        share_option="--tenant-spool-mib",
        retry_seconds=_RETRY_SECONDS,
    )
    files = Account(
        "files in the spool",
        _SPOOL_TENANTS * config.max_scenes // 2,
        "--max-scenes",
        share=config.share_of(config.max_scenes),
        share_option="--max-scenes",
        retry_seconds=_RETRY_SECONDS,
    )
    try:
        return SpoolWriter(Spool(config.spool, space, files, metrics, config.training_seconds))
    except OSError as error:
        text = f"--spool: cannot use {config.spool}: {error.strerror}"
        if not history.restarts:
            raise ConfigError(text) from None
        # A restarted worker without a spool is better than none.
        logs.event(f"{text}; scenes are kept in memory only", logging.ERROR)
        return None
