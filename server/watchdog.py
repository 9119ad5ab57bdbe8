"""Ends a worker whose device does not come back from a piece of work."""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
from collections.abc import Callable

from lumigrad.server.executor import DeviceExecutor

_LONGEST_PAUSE_SECONDS = 0.5


class Watchdog:
    """Looks at the device's thread all the time, from a thread of its own that waits for nothing else."""

    def __init__(
        self,
        executor: DeviceExecutor,
        hang_seconds: float,
        on_hang: Callable[[str], None],
        on_look: Callable[[], None],
    ) -> None:
        """`on_hang` hears what happened, once; `on_look` is called at least every half second until then."""
        self._executor = executor
        self._hang_seconds = hang_seconds
        self._on_hang = on_hang
        self._on_look = on_look

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _watch(self) -> None:
        pause = min(_LONGEST_PAUSE_SECONDS, self._hang_seconds / 4)
        while self._executor.held_seconds <= self._hang_seconds:
            self._on_look()
            time.sleep(pause)
        # Where it hangs is in the stacks, and nowhere else once the process has gone.
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        self._on_hang(
            f"the device did not come back within {self._hang_seconds:g} s (--hang-seconds); "
            "the stacks of all threads are above"
        )
