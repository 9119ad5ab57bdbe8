"""A worker under the supervisor: its process, restarts and crashes."""

from __future__ import annotations

import logging
import math
import random
import time
from collections import deque

from lumigrad.server.core import logs
from lumigrad.server.core.config import Config
from lumigrad.server.core.errors import CONFIG_ERROR, FIRST, GAVE_UP, HUNG, STOPPED, reason
from lumigrad.server.core.link import History
from lumigrad.server.process.child import WorkerProcess

_FIRST_DELAY_SECONDS = 0.1
_LARGEST_DELAY_SECONDS = 10.0


class Crashes:
    """Counts the crashes of one worker within a period."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._times: deque[float] = deque()

    def add(self) -> float | None:
        """Count a crash; returns the seconds to wait before the restart, or None after too many crashes."""
        now = time.monotonic()
        self._times.append(now)
        while self._times[0] < now - self._seconds:
            self._times.popleft()
        if len(self._times) >= self._most:
            return None
        delay = min(_FIRST_DELAY_SECONDS * 2.0 ** (len(self._times) - 1), _LARGEST_DELAY_SECONDS)
        # Jitter: workers that died of the same cause should not restart together.
        return delay * random.uniform(0.5, 1.0)


# Loading and the first use of a device take longer than any later interval between heartbeats.
_START_SECONDS = 120.0
# A busy machine may delay a healthy process for this long.
_LEAST_SILENCE_SECONDS = 2.0


class Slot:
    """The state of one worker, by which the supervisor starts, kills or abandons it."""

    def __init__(self, config: Config) -> None:
        self.process: WorkerProcess | None = None
        # The exit code that the supervisor reports; set when the worker will not be restarted.
        self.exit_code: int | None = None
        # When to start, by the monotonic clock; infinity while a worker runs or will not be restarted.
        self.start_at = -math.inf
        self._config = config
        self._crashes = Crashes(config.max_crashes, config.crash_seconds)
        self._restarts = -1
        self._last_exit = FIRST
        self._is_hung = False
        self._has_served = False
        # Whether a worker had served with this configuration when the last one was started.
        self._was_valid = False

    @property
    def has_served(self) -> bool:
        """Whether a worker has served here with this configuration."""
        return self._has_served or (self.process is not None and self.process.announced)

    @property
    def is_silent(self) -> bool:
        """Whether the worker's heartbeat is overdue."""
        process = self.process
        if process is None or self._is_hung:
            return False
        least = _LEAST_SILENCE_SECONDS if process.announced else _START_SECONDS
        return time.monotonic() - process.heard > max(self._config.hang_seconds, least)

    def start(self, process: WorkerProcess, *, was_valid: bool) -> None:
        """Order a process to serve this device.

        `was_valid` says that a worker has served with this configuration before, so that errors in it are taken as
        temporary.
        """
        self.process = process
        self._was_valid = was_valid
        self.start_at = math.inf
        self._restarts += 1
        config = self._config
        logs.event("worker started", device=config.device, port=config.port, pid=process.pid, restarts=self._restarts)
        process.order(config, History(self._restarts, self._last_exit))

    def end_silent(self) -> None:
        """Kill a worker without heartbeat, after asking it to log its stacks.

        Does not wait for its end: a process that a driver holds in the kernel does not end.
        """
        assert self.process is not None
        logs.event("the worker does not respond: killing it", logging.ERROR, device=self._config.device)
        self._is_hung = True
        self.process.dump()
        self.process.kill()

    def record_exit(self, code: int, *, is_stopping: bool) -> None:
        """Record how the worker ended, and decide whether and when to restart it."""
        assert self.process is not None
        self._has_served = self.has_served
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
        elif code == CONFIG_ERROR and not self._was_valid:
            self.exit_code = CONFIG_ERROR
        elif code == CONFIG_ERROR:
            # A file may be half replaced or badly edited, or another process may have the port.
            self.start_at = time.monotonic() + _LARGEST_DELAY_SECONDS
            logs.event(
                f"the configuration, which was valid before, is not now: trying again in {_LARGEST_DELAY_SECONDS:g} s",
                logging.ERROR,
                device=device,
            )
        else:
            delay = self._crashes.add()
            if delay is None:
                self.give_up("the worker")
            else:
                self.start_at = time.monotonic() + delay

    def give_up(self, what: str) -> None:
        """Do not restart the worker, after too many crashes of `what`."""
        self.exit_code = GAVE_UP
        logs.event(
            f"not restarting the worker: {what} crashed {self._config.max_crashes} times within "
            f"{self._config.crash_seconds:g} s (--max-crashes, --crash-seconds); the log above has the reason of each",
            logging.ERROR,
            device=self._config.device,
        )
