"""Retries a call, with pauses, while no worker answers or has capacity."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable
from types import TracebackType

from lumigrad.client.errors import Cancelled, DeadlineExceeded, ResourceExhausted, Unavailable
from lumigrad.client.transport.call import Call

# Independent of the global generator, which a program may seed.
_random = random.Random()

# Log records get the texts of errors, not the errors: a handler may keep records, and an error keeps its traceback's
# frames with all their arrays.
_log = logging.getLogger("lumigrad")
_FIRST_DELAY_S = 0.05
_LARGEST_DELAY_S = 2.0
# Limit of workers that are lost during one call, since the call itself may be what crashes them.
_MOST_LOST = 3
# Limit of uploads of a call's missing scenes: each worker that dies meanwhile loses them again.
MOST_REPAIRS = 3

Passing = Unavailable | Cancelled | ResourceExhausted


class Backoff:
    """The pauses between the attempts of one call.

    Temporary errors are Unavailable, unless it is lasting; ResourceExhausted, if the worker suggests a delay; and
    Cancelled, if neither the caller nor the worker cancelled the call.
    """

    def __init__(self, call: Call, retry_s: float) -> None:
        """Starts before the first attempt.

        Args:
            call: the call; while a worker is full, attempts continue until the call's time-out.
            retry_s: while no worker answers, no attempt starts later than this after the first failure, seconds; 0: no
                retries.
        """
        self._call = call
        self._retry_s = retry_s
        self._give_up = math.inf
        self._delay = _FIRST_DELAY_S
        self._lost = 0
        # The last refusal by a full worker, and when the pause after it ended.
        self._refusal: ResourceExhausted | None = None
        self._tried_again = 0.0

    def after(self, error: Passing, has_others: Callable[[], bool] = lambda: False) -> bool:
        """Waits until the next attempt; returns False if there is none: `error`, which ended the last one, is final.

        Does not wait if another worker has not failed yet (`has_others`), since the next attempt goes to that worker.
        Frames that raised `error` would refer to it, and keep it with all that it has passed until the garbage
        collector runs.
        """
        if isinstance(error, ResourceExhausted):
            return self._wait_for_room(error)
        if isinstance(error, Cancelled):
            is_lasting = not error.is_foreign
        else:
            self._lost += error.was_begun
            is_lasting = error.is_lasting or self._lost == _MOST_LOST
        if is_lasting:
            return False
        if has_others():
            self._call.trace.note_retry(0.0)
            self._call.remaining_s()
            _log.info("a call goes to another worker: %s", str(error))
            return True
        # The failed attempt may have taken long before its worker was lost; only the search for a worker counts.
        self._give_up = min(self._give_up, time.monotonic() + self._retry_s)
        # The pause is random so that clients that lost the same worker do not all retry at the same moment.
        return self._pause(self._delay * _random.uniform(0.5, 1.0), error)

    def _wait_for_room(self, error: ResourceExhausted) -> bool:
        # A client without retries does not wait for a worker's queue either.
        if error.retry_after_s is None or not self._retry_s:
            return False
        # A worker answers, so the search for one is over and so is its time limit.
        self._give_up = math.inf
        # The pause is random so that clients that were refused together do not return together. It grows because each
        # attempt may upload its scene.
        if not self._pause(max(error.retry_after_s, self._delay) * _random.uniform(1.0, 1.5), error):
            return False
        self._refusal, self._tried_again = error, time.monotonic()
        return True

    def check_late(self, late: DeadlineExceeded) -> None:
        """Raises the worker's refusal in place of `late` if refusals took most of the call's time-out."""
        refusal, self._refusal = self._refusal, None
        try:
            if refusal is not None and self._tried_again > self._call.end - self._call.timeout_s / 2:
                raise refusal from late
        finally:
            del refusal

    def _pause(self, seconds: float, error: Exception) -> bool:
        if time.monotonic() + seconds >= min(self._give_up, self._call.end):
            # Final even if the time-out has expired: the cause of the delay says more than DeadlineExceeded.
            return False
        self._call.trace.note_retry(seconds)
        _log.info("a call is repeated in %.2f s: %s", seconds, str(error))
        self._call.pause(seconds)
        self._delay = min(2 * self._delay, _LARGEST_DELAY_S)
        return True


def forget_frames(error: BaseException) -> None:
    """Lets go of the frames that an error has passed, once it is handled: whoever still keeps it is among them."""
    error.__traceback__ = None


class Attempts:
    """The attempts of one call to one worker, each of which is a `with` block.

        attempts = Attempts(call, retry_s)
        while True:
            with attempts:
                return …

    A temporary error ends the attempt but not the loop: the block pauses instead of raising it. The code in the block
    must be safe to repeat.

    Attributes:
        number: the number of attempts so far.
    """

    def __init__(self, call: Call, retry_s: float, *, waits_for_room_only: bool = False) -> None:
        """Starts before the first attempt; see `Backoff`. `waits_for_room_only`: retry only if the worker is full."""
        self.number = 0
        self._backoff = Backoff(call, retry_s)
        self._waits_for_room_only = waits_for_room_only

    def __enter__(self) -> None:
        self.number += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if isinstance(error, DeadlineExceeded):
            self._backoff.check_late(error)
        if not isinstance(error, ResourceExhausted if self._waits_for_room_only else Passing):
            return False
        if not self._backoff.after(error):
            return False
        forget_frames(error)
        return True
