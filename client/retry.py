"""How long a call may take, and how its attempts follow each other while no worker answers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from lumigrad.client.errors import DeadlineExceeded, Unavailable

T = TypeVar("T")

_FIRST_DELAY_S = 0.05
_LARGEST_DELAY_S = 2.0


class Deadline:
    """A point in time that all attempts and repairs of one call share."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._end = time.monotonic() + timeout_s

    def remaining_s(self) -> float:
        """Seconds left; raises DeadlineExceeded if there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(f"the call took longer than its time-out of {self.timeout_s:g} s")
        return left


def retry_unavailable(attempt: Callable[[], T], deadline: Deadline, retry_s: float) -> T:
    """Repeats `attempt` while it raises Unavailable, with delays that double and are random by half.

    Args:
        attempt: must be safe to repeat.
        deadline: of the whole call.
        retry_s: no attempt starts later than this after the first one.
    """
    give_up = time.monotonic() + min(retry_s, deadline.remaining_s())
    delay = _FIRST_DELAY_S
    while True:
        try:
            return attempt()
        except Unavailable:
            # Randomness keeps clients apart that lost the same worker at the same moment.
            pause = delay * random.uniform(0.5, 1.0)
            if time.monotonic() + pause >= give_up:
                raise
            time.sleep(pause)
            delay = min(2 * delay, _LARGEST_DELAY_S)
