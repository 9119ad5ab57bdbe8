"""The end of a worker that cannot go on: everybody who waits hears of it, then the process goes."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from lumigrad.server import logs
from lumigrad.server.executor import DeviceExecutor
from lumigrad.server.surface import Surface

# For the calls in progress to be refused.
_REFUSING_SECONDS = 0.5
# For the last bytes to leave.
_FLUSH_SECONDS = 0.1


class Emergency:
    """Ends the process, without waiting for a device that may never answer."""

    def __init__(self, surface: Surface, executor: DeviceExecutor, tell_health: Callable[[bool], None]) -> None:
        self._surface = surface
        self._executor = executor
        self._tell_health = tell_health
        self._begun = threading.Lock()

    def end(self, code: int, why: str, error: BaseException | None = None) -> None:
        """Refuse what waits with UNAVAILABLE, then exit; returns at once, and only the first call counts."""
        if not self._begun.acquire(blocking=False):
            return
        logs.event(why, logging.ERROR, error=error, exit_code=code)
        self._surface.close()
        self._executor.abandon()
        # The device's own thread may be the one that came here, and has to tell its last caller.
        threading.Thread(target=self._exit, args=(code,), name="emergency", daemon=True).start()

    def _exit(self, code: int) -> None:
        # health's watchers must not hold this up.
        threading.Thread(target=self._tell_health, args=(False,), name="last health", daemon=True).start()
        self._surface.wait_idle(_REFUSING_SECONDS)
        time.sleep(_FLUSH_SECONDS)
        # Destructors would wait for the device.
        os._exit(code)
