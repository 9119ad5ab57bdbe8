"""Decides how many workers a fleet should have, by the number of calls that wait."""

from __future__ import annotations

from collections.abc import Sequence

from lumigrad.ray.options import Options


class Scaling:
    """Adds one worker at a time while calls wait, and removes one if no call has waited for long."""

    def __init__(self, options: Options) -> None:
        """Begins with the minimum number."""
        self._options = options
        self._busy_since: float | None = None
        self._idle_since: float | None = None
        self.wanted = options.minimum

    def look(self, now: float, waiting: Sequence[int], under_way: Sequence[int]) -> int:
        """Returns how many workers there should be now.

        Args:
            now: the current time, seconds.
            waiting: for each worker that serves, the calls that wait for its device.
            under_way: for each of these workers, the calls that have not ended.
        """
        count = len(waiting)
        # While a worker is starting, its effect on the load of the others is unknown.
        is_busy = count >= self.wanted and sum(waiting) > self._options.queue_high * count
        # One worker fewer could take the calls without any call waiting.
        is_idle = not sum(waiting) and sum(under_way) < count
        self._busy_since = (self._busy_since if self._busy_since is not None else now) if is_busy else None
        self._idle_since = (self._idle_since if self._idle_since is not None else now) if is_idle else None
        if self._busy_since is not None and now - self._busy_since >= self._options.busy_s:
            self._change(1)
        elif self._idle_since is not None and now - self._idle_since >= self._options.idle_s:
            self._change(-1)
        return self.wanted

    def _change(self, by: int) -> None:
        self._busy_since = self._idle_since = None
        self.wanted = min(max(self.wanted + by, self._options.minimum), self._options.most)
