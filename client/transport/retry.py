"""How long a call may take, and how its attempts follow each other while no worker answers or has room."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import TypeVar

from lumigrad.client.errors import Cancelled, DeadlineExceeded, ResourceExhausted, Unavailable
from lumigrad.client.transport import cancellation, tracing
from lumigrad.client.transport.addresses import LARGER_TIMEOUT

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
            raise DeadlineExceeded(f"the call took longer than its time-out of {self.timeout_s:g} s; {LARGER_TIMEOUT}")
        return left


class Repetitions:
    """The pauses between the attempts of one call."""

    def __init__(self, deadline: Deadline, retry_s: float) -> None:
        self._deadline = deadline
        self._retry_s = retry_s
        self._give_up = math.inf
        self._delay = _FIRST_DELAY_S
        self._lost = 0

    def after(self, error: Unavailable | Cancelled | ResourceExhausted, has_others: Callable[[], bool]) -> None:
        """Waits until the next attempt may be made; raises `error` if there is to be none."""
        if isinstance(error, ResourceExhausted):
            self._wait_for_room(error)
            return
        if isinstance(error, Cancelled):
            is_lasting = not error.is_foreign
        else:
            self._lost += error.was_begun
            is_lasting = error.is_lasting or self._lost == _MOST_LOST
        if is_lasting:
            raise error
        if has_others():
            tracing.note_retry(0.0)
            self._deadline.remaining_s()
            return
        # An attempt may have been under way for long when its worker was lost: only the search for another counts.
        self._give_up = min(self._give_up, time.monotonic() + self._retry_s)
        # Randomness keeps clients apart that lost the same worker at the same moment.
        self._pause(self._delay * random.uniform(0.5, 1.0), error)

    def _wait_for_room(self, error: ResourceExhausted) -> None:
        # Callers who do not want to wait for a worker do not want to wait for its queue either.
        if error.retry_after_s is None or not self._retry_s:
            raise error
        # The search for a worker that answers has ended.
        self._give_up = math.inf
        # Those who were refused at the same moment should not come back at the same one, nor keep asking at the rate
        # of short calls, since each attempt may carry its scene.
        self._pause(max(error.retry_after_s, self._delay) * random.uniform(1.0, 1.5), error)

    def _pause(self, seconds: float, error: Exception) -> None:
        if time.monotonic() + seconds >= self._give_up or seconds >= self._deadline.remaining_s():
            raise error
        tracing.note_retry(seconds)
        cancellation.pause(seconds)
        self._delay = min(2 * self._delay, _LARGEST_DELAY_S)


def retry_unavailable(
    attempt: Callable[[], T], deadline: Deadline, retry_s: float, has_others: Callable[[], bool] = lambda: False
) -> T:
    """Repeats `attempt` while what it raises may pass, with delays that double and are random by half.

    That is Unavailable, unless it is lasting; ResourceExhausted, if the worker says when to come back; and Cancelled,
    if neither the caller nor the worker asked for it.

    Args:
        attempt: must be safe to repeat.
        deadline: of the whole call. A worker without room is waited for until then.
        retry_s: while no worker answers, no attempt starts later than this after the first one that failed; 0: nothing
            is repeated here.
        has_others: whether the next attempt is made elsewhere, where nobody has failed yet: then it is made at once.
    """
    repetitions = Repetitions(deadline, retry_s)
    while True:
        try:
            return attempt()
        except (Unavailable, Cancelled, ResourceExhausted) as error:
            repetitions.after(error, has_others)


def wait_for_room(attempt: Callable[[], T], deadline: Deadline, retry_s: float) -> T:
    """Repeats `attempt` only while the worker has no room, for calls to one of several workers that may be away."""
    repetitions = Repetitions(deadline, retry_s)
    while True:
        try:
            return attempt()
        except ResourceExhausted as error:
            repetitions.after(error, lambda: False)
