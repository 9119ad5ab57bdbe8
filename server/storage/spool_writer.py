"""The thread that writes scenes to the spool, so that no call waits for the disk."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lumigrad.server.core import logs
from lumigrad.server.core.accounts import Account
from lumigrad.server.core.call import Call
from lumigrad.server.core.config import MIB, Config, ConfigError
from lumigrad.server.core.link import History
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.storage.spool import Spool

# Rendering has priority where processors are few.
_NICE = 10
# How often deleted files are removed while nothing is written.
_SWEEP_SECONDS = 1.0
# How often a wait for writes checks whether its call has ended.
_LOOK_SECONDS = 0.05
# Retry time, in which others may finish trainings or delete scenes.
_RETRY_SECONDS = 5.0
# The number of tenants that can each use their full share of files.
_SPOOL_TENANTS = 8
# Writes a file; calls its argument before the last step, and discards the file if that returns False.
Work = Callable[[Callable[[], bool]], object]


@dataclass(eq=False)
class Writing:
    """A scheduled write, or one that a call makes itself."""

    owner: str
    # None once it is cancelled or done.
    work: Work | None = lambda _: None
    # Whether a call waits for it.
    is_awaited: bool = False
    # The time from which it may run, by the monotonic clock; a write that a call waits for runs at once.
    due: float = field(default_factory=time.monotonic)

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
    """Runs scheduled writes one at a time, each when it is due, with equal time for each owner."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self._waiting: set[Writing] = set()
        # Seconds taken by the writes of each owner; the owner with the fewest is next.
        self._seconds: dict[str, float] = {}
        # The seconds of the owner that was served last. New owners begin with no fewer, so that others need not wait
        # for them to catch up.
        self._floor = 0.0
        self._is_busy = False
        self._is_hurried = False
        self._changed = threading.Condition()
        threading.Thread(target=self._loop, name="spool", daemon=True).start()

    @property
    def depth(self) -> int:
        """The number of unfinished writes."""
        return len(self._waiting) + self._is_busy

    def submit(self, owner: str, work: Work, delay_seconds: float = 0.0) -> Writing:
        """Schedule a write after a delay."""
        writing = Writing(owner, work, due=time.monotonic() + delay_seconds)
        with self._changed:
            self._seconds[owner] = max(self._seconds.get(owner, 0.0), self._floor)
            self._waiting.add(writing)
            self._changed.notify_all()
        return writing

    def cancel(self, writing: Writing) -> None:
        """Cancel a write."""
        # The data of the write is freed here, even if it is running.
        writing.work = None
        with self._changed:
            self._waiting.discard(writing)
            self._changed.notify_all()

    def wait_for(self, writings: Sequence[Writing], seconds: float, call: Call | None) -> None:
        """Wait up to `seconds` until some writes are done or cancelled; these run before other writes of their owner.

        Raises what `Call.check` raises once the call is over; `call` is None if the worker itself waits.
        """
        until = time.monotonic() + seconds
        with self._changed:
            for writing in writings:
                writing.is_awaited = True
            self._changed.notify_all()
            while any(writing.is_wanted for writing in writings) and time.monotonic() < until:
                if call is not None:
                    call.check()
                self._changed.wait(_LOOK_SECONDS)

    def flush(self, seconds: float) -> bool:
        """Run all writes now, due or not, and wait for them; False after `seconds`."""
        with self._changed:
            self._is_hurried = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self.depth, seconds)

    def _loop(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        # Remove files left by earlier workers.
        self.spool.sweep()
        while True:
            with self._changed:
                writing = self._next()
                if writing is not None:
                    self._waiting.discard(writing)
                    self._is_busy = True
                    self._floor = max(self._floor, self._seconds[writing.owner])
            started = time.monotonic()
            try:
                if writing is not None:
                    writing.run()
                self.spool.sweep()
            except Exception as error:
                logs.event("cannot write to the spool", logging.ERROR, error=error)
            with self._changed:
                self._is_busy = False
                if writing is not None:
                    self._seconds[writing.owner] += time.monotonic() - started
                self._changed.notify_all()

    def _next(self) -> Writing | None:
        """Wait for the next due write; None when it is time to sweep."""
        sweep_at = time.monotonic() + _SWEEP_SECONDS
        while True:
            now = time.monotonic()
            ready = [each for each in self._waiting if self._is_hurried or each.is_awaited or each.due <= now]
            if ready:
                return min(ready, key=self._order)
            if now >= sweep_at:
                return None
            self._changed.wait(min([sweep_at, *(writing.due for writing in self._waiting)]) - now)

    def _order(self, writing: Writing) -> tuple[float, bool, float]:
        return self._seconds[writing.owner], not writing.is_awaited, writing.due


def open_spool(config: Config, history: History, metrics: Metrics) -> SpoolWriter | None:
    """Open the configured spool; None if none is configured, or if a restarted worker cannot use it.

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
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        why = "expected a folder, got a file" if is_file else error.strerror
        text = f"--spool: cannot use {config.spool}: {why}"
        if not history.restarts:
            raise ConfigError(text) from None
        # A restarted worker without a spool is better than none.
        logs.event(f"{text}; scenes are kept in memory only", logging.ERROR)
        return None
