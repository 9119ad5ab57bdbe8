"""How often a worker crashed of late: how long to wait before the next start, and when to give up."""

from __future__ import annotations

import random
import time
from collections import deque

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
