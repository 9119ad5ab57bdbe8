"""One worker's place under the supervisor: its process, a spare, and its crashes."""

from __future__ import annotations

import logging
import math
import random
import time
from collections import deque

from lumigrad.server.core import logs
from lumigrad.server.core.config import Config
from lumigrad.server.core.errors import CONFIG_ERROR, FIRST, GAVE_UP, HUNG, STOPPED, reason
from lumigrad.server.core.link import History, Order
from lumigrad.server.process.child import WorkerProcess

_FIRST_DELAY_SECONDS = 0.1
_LARGEST_DELAY_SECONDS = 10.0


class Crashes:
    """The crashes of one worker within a span of time."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._times: deque[float] = deque()

    def add(self) -> float | None:
        """Count one; returns the seconds to wait before the next start, or None if there were too many."""
        now = time.monotonic()
        self._times.append(now)
        while self._times[0] < now - self._seconds:
            self._times.popleft()
        if len(self._times) >= self._most:
            return None
        delay = min(_FIRST_DELAY_SECONDS * 2.0 ** (len(self._times) - 1), _LARGEST_DELAY_SECONDS)
        # Workers that died together, of one cause, should not all start together.
        return delay * random.uniform(0.5, 1.0)


# Loading, and the first use of a device, take longer than any sign of life afterwards.
_START_SECONDS = 120.0
# A busy machine may hold a healthy process up for so long.
_LEAST_SILENCE_SECONDS = 2.0
# Before the next attempt, when the system has no room for another process.
_NO_PROCESS_SECONDS = 1.0


class Slot:
    """Knows what to do next with one worker; whoever owns it does it."""

    def __init__(self, config: Config) -> None:
        self.process: WorkerProcess | None = None
        # Set when no worker is to be started here any more: what the supervisor is to exit with.
        self.exit_code: int | None = None
        self.has_served = False
        # By the monotonic clock; infinity while a worker runs, or none is wanted.
        self.start_at = -math.inf
        self._config = config
        self._crashes = Crashes(config.max_crashes, config.crash_seconds)
        self._restarts = -1
        self._last_exit = FIRST
        self._is_hung = False

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to wait for: it serves, or never will again."""
        return self.exit_code is not None or (self.process is not None and self.process.announced)

    @property
    def is_silent(self) -> bool:
        """Whether its worker gave no sign of life for too long."""
        process = self.process
        if process is None:
            return False
        least = _LEAST_SILENCE_SECONDS if process.announced else _START_SECONDS
        return time.monotonic() - process.heard > max(self._config.hang_seconds, least)

    def postpone(self) -> None:
        """Start a little later: there is no process to be had."""
        self.start_at = time.monotonic() + _NO_PROCESS_SECONDS

    def start(self, process: WorkerProcess) -> None:
        """Have a process serve this device."""
        self.process = process
        self.start_at = math.inf
        self._restarts += 1
        config = self._config
        logs.event("worker started", device=config.device, port=config.port, pid=process.pid, restarts=self._restarts)
        process.order(Order(config, History(self._restarts, self._last_exit)))

    def end_silent(self) -> None:
        """Kill a worker that gives no sign of life; where it stands goes to the log if it still can."""
        assert self.process is not None
        logs.event("the worker gives no sign of life: killing it", logging.ERROR, device=self._config.device)
        self._is_hung = True
        self.process.dump()
        self.process.kill()

    def bury(self, code: int, *, is_stopping: bool) -> None:
        """Take note of how the worker ended, and decide whether and when another one starts."""
        assert self.process is not None
        self.has_served = self.has_served or self.process.announced
        self.process.close()
        self.process = None
        self._last_exit, self._is_hung = HUNG if self._is_hung else reason(code), False
        level = logging.INFO if code == STOPPED else logging.ERROR
        device = self._config.device
        logs.event("worker ended", level, device=device, code=code, reason=self._last_exit)
        if is_stopping:
            self.exit_code = STOPPED if code < 0 else code
        elif code == STOPPED:
            self.start_at = time.monotonic()
        elif code == CONFIG_ERROR:
            self.exit_code = CONFIG_ERROR
        else:
            self._retry(device)

    def _retry(self, device: str) -> None:
        delay = self._crashes.add()
        if delay is not None:
            self.start_at = time.monotonic() + delay
            return
        self.exit_code = GAVE_UP
        logs.event(
            f"gave up: {self._config.max_crashes} crashes within {self._config.crash_seconds:g} s (--max-crashes, "
            "--crash-seconds); the log above says why the workers ended",
            logging.ERROR,
            device=device,
        )
