"""Keeps the promise that SERVING means: a kernel ran on this device a short while ago."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from lumigrad.server import logs
from lumigrad.server.executor import DeviceExecutor

_SECONDS = 10.0


class Heartbeat:
    """Tries an idle device out, and one whose last job failed; tells when it stops or starts to work."""

    def __init__(
        self,
        executor: DeviceExecutor,
        probe: Callable[[], None],
        on_change: Callable[[bool], None],
        seconds: float = _SECONDS,
    ) -> None:
        """`probe` runs a kernel and raises if that fails; `on_change` hears whether the device works."""
        self._executor = executor
        self._probe = probe
        self._on_change = on_change
        self._seconds = seconds
        self._works = True

    def beat(self) -> None:
        """Look at the device; call it about once a second."""
        if self._executor.is_busy:
            return
        error = None
        if time.monotonic() - self._executor.last_success > self._seconds:
            try:
                self._probe()
            except Exception as failure:
                error = failure
        works = error is None
        if works != self._works:
            self._works = works
            text = "the device works again" if works else "the device does not work"
            logs.event(text, logging.WARNING if works else logging.ERROR, error=error)
            self._on_change(works)
