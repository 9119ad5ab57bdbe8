"""Calls at a fixed rate, and the outcome of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lumigrad.client.errors import Unavailable
from lumigrad.client.transport import connection
from support.workers.load import Load

# A call that takes longer than this many medians, and seconds, has waited for a fault.
_MEDIANS = 5.0
_LEAST_S = 0.25


@dataclass(frozen=True)
class Seen:
    """The calls since a fault.

    Attributes:
        ok, failed: calls that ended so.
        repeated: attempts that found no worker, or lost it, and that the client repeated by itself.
        p50_ms, p99_ms: from when a call was due to its reply.
        recovered_s: from the fault to the last reply that was late because of it; 0 if none was.
    """

    ok: int
    failed: int
    repeated: int
    p50_ms: float
    p99_ms: float
    recovered_s: float


class WatchedCalls:
    """A load, to be used as a context, whose calls are recorded one by one."""

    def __init__(self, calls: Sequence[Callable[[], object]], rate: float) -> None:
        self._calls: list[tuple[float, float]] = []
        self._lost_attempts = 0
        self._lock = threading.Lock()
        self._load = Load([self._timed(call) for call in calls], rate)
        self._translate = connection.exception_of

    def __enter__(self) -> WatchedCalls:
        connection.exception_of = self._counted
        self._load.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._load.stop()
        connection.exception_of = self._translate

    def during(self, seconds: float, fault: Callable[[], None]) -> Seen:
        """Makes a fault happen, and reports the calls that were due within `seconds` from then on."""
        usual = self._median(self._calls[-50:])
        before, lost_before = self._load.failed, self._lost_attempts
        began = time.monotonic()
        fault()
        time.sleep(seconds)
        until = time.monotonic()
        # Calls that are in progress count too.
        self._load.wait_for_progress(5, seconds=120)
        with self._lock:
            calls = [(start, end) for start, end in self._calls if began <= start < until]
        slow = max(_MEDIANS * usual, usual + _LEAST_S)
        late = [end - began for start, end in calls if end - start > slow]
        times = sorted(end - start for start, end in calls)
        return Seen(
            ok=len(calls),
            failed=self._load.failed - before,
            repeated=self._lost_attempts - lost_before,
            p50_ms=1e3 * times[len(times) // 2],
            p99_ms=1e3 * times[min(len(times) - 1, round(0.99 * len(times)))],
            recovered_s=max(late, default=0.0),
        )

    def settle(self, calls: int = 60) -> None:
        """Waits until `calls` more calls have been answered."""
        self._load.wait_for_progress(calls, seconds=120)

    def _timed(self, call: Callable[[], object]) -> Callable[[], None]:
        def timed() -> None:
            start = time.monotonic()
            call()
            with self._lock:
                self._calls.append((start, time.monotonic()))

        return timed

    def _counted(self, *arguments: object) -> Exception:
        error = self._translate(*arguments)
        self._lost_attempts += isinstance(error, Unavailable)
        return error

    @staticmethod
    def _median(calls: Sequence[tuple[float, float]]) -> float:
        return sorted(end - start for start, end in calls)[len(calls) // 2]
