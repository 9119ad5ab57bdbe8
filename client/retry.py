"""How long a call may take, and how its attempts follow each other while no worker answers."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import TypeVar

from lumigrad.client import cancellation, remedies, tracing
from lumigrad.client.errors import DeadlineExceeded, Unavailable

T = TypeVar("T")

_FIRST_DELAY_S = 0.05
_LARGEST_DELAY_S = 2.0
# A call that takes its worker down must not take down all that come after it.
_MOST_LOST = 3
# What a call needs may be lost again while it is put again, with each worker that dies then.
MOST_REPAIRS = 3


class Deadline:
    """A point in time that all attempts and repairs of one call share."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._end = time.monotonic() + timeout_s

    def remaining_s(self) -> float:
        """Seconds left; raises DeadlineExceeded if there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(
                f"the call took longer than its time-out of {self.timeout_s:g} s; {remedies.LARGER_TIMEOUT}"
            )
        return left


def retry_unavailable(
    attempt: Callable[[], T], deadline: Deadline, retry_s: float, has_others: Callable[[], bool] = lambda: False
) -> T:
    """Repeats `attempt` while it raises an Unavailable that may pass, with delays that double and are random by half.

    Args:
        attempt: must be safe to repeat.
        deadline: of the whole call.
        retry_s: no attempt starts later than this after the first one that failed.
        has_others: whether the next attempt is made elsewhere, where nobody has failed yet: then it is made at once.
    """
    give_up, delay, lost = math.inf, _FIRST_DELAY_S, 0
    while True:
        try:
            return attempt()
        except Unavailable as error:
            lost += error.was_begun
            if error.is_lasting or lost == _MOST_LOST:
                raise
            if has_others():
                tracing.note_retry(0.0)
                deadline.remaining_s()
                continue
            # An attempt may have been under way for long when its worker was lost: only the search for another counts.
            give_up = min(give_up, time.monotonic() + retry_s)
            # Randomness keeps clients apart that lost the same worker at the same moment.
            pause = delay * random.uniform(0.5, 1.0)
            if time.monotonic() + pause >= give_up or pause >= deadline.remaining_s():
                raise
            tracing.note_retry(pause)
            cancellation.pause(pause)
            delay = min(2 * delay, _LARGEST_DELAY_S)
