"""What work takes, by what the same kind of work took a short while ago."""

from __future__ import annotations

import statistics
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass

_KINDS = 1024
_TIMINGS = 16
# Fewer tell nothing: the first call of a kind may have to wait for memory.
_ENOUGH = 3
# What was so slow may have been so for a reason that has passed.
_SECONDS = 30.0
# The least plausible time, as a share of the least that was seen.
_HOPE = 0.5


@dataclass(frozen=True)
class Cost:
    """What is known of a piece of work before it is done.

    Attributes:
        kind: Equal of work that takes about the same time for each view; None: nobody knows how long it takes.
        views: That are rendered; a query is one.
        bytes: Of the device's memory, beside the stored scene and the forward state that it is about.
        payload_bytes: Of these, what came with the call and goes with its reply.
        is_repeatable: Whether it may be done again after it failed half-way: it changes nothing but what it returns.
    """

    kind: Hashable | None = None
    views: int = 1
    bytes: int = 0
    payload_bytes: int = 0
    is_repeatable: bool = False

    @staticmethod
    def of_payload(nbytes: int) -> Cost:
        """Of work that takes little more than what comes or goes, and may be repeated."""
        return Cost(bytes=nbytes, payload_bytes=nbytes, is_repeatable=True)


class Estimates:
    """Timings by kind of work. Its owner holds a lock around every call."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By kind, when and how many seconds for each view.
        self._timings: OrderedDict[Hashable, deque[tuple[float, float]]] = OrderedDict()

    def add(self, kind: Hashable, seconds: float) -> None:
        """Note how long each view of a piece of work took."""
        self._timings.setdefault(kind, deque(maxlen=_TIMINGS)).append((self._clock(), seconds))
        self._timings.move_to_end(kind)
        if len(self._timings) > _KINDS:
            self._timings.popitem(last=False)

    def typical(self, cost: Cost) -> float | None:
        """The seconds that work usually takes; None: too little is known."""
        timings = self._recent(cost.kind)
        return statistics.median(timings) * cost.views if timings else None

    def least(self, cost: Cost) -> float:
        """The seconds that work takes at the least, if all goes well; 0 if too little is known."""
        timings = self._recent(cost.kind)
        return _HOPE * min(timings) * cost.views if timings else 0.0

    def _recent(self, kind: Hashable | None) -> list[float]:
        oldest = self._clock() - _SECONDS
        timings = [seconds for noted, seconds in self._timings.get(kind, ()) if noted >= oldest]
        return timings if len(timings) >= _ENOUGH else []
