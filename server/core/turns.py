"""Turns for long work in Python: one call at a time, with the tenants in rotation.

All threads of the process share one interpreter. If the calls of one tenant checked large requests side by side, the
small calls of all others would wait for each of them.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

# The interval at which a call that waits for its turn checks whether it has ended.
_CHECK_SECONDS = 0.25
# Switch interval of the interpreter while a turn is taken. A small call changes threads about ten times, and may wait
# this long each time. Without long work, Python's own 5 ms are better: threads that wait briefly for each other would
# otherwise interrupt each other all the time.
_SWITCH_SECONDS = 0.0005


@dataclass(eq=False)
class _Place:
    """A call's place in its tenant's queue."""

    owner: Turn
    is_next: threading.Event = field(default_factory=threading.Event)


class Turns:
    """Grants turns. After a turn, a tenant goes behind all other tenants that wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._usual_seconds = sys.getswitchinterval()
        self._owner: Turn | None = None
        # The queues of the waiting tenants, in the order of their next turns.
        self._lines: OrderedDict[str, deque[_Place]] = OrderedDict()

    def take(self, turn: Turn, check: Callable[[], None]) -> None:
        """Wait for a turn; does nothing if it is taken already. `check` raises when the wait is to end."""
        with self._lock:
            if self._owner is turn:
                return
            if self._owner is None:
                self._owner = turn
                sys.setswitchinterval(min(_SWITCH_SECONDS, self._usual_seconds))
                return
            place = _Place(turn)
            self._lines.setdefault(turn.tenant, deque()).append(place)
        try:
            while not place.is_next.wait(_CHECK_SECONDS):
                check()
        except BaseException:
            self._leave(place)
            raise

    def give(self, turn: Turn) -> None:
        """End a turn; does nothing if it is not taken."""
        # No lock is needed: only the owner's own threads can change whether it is the owner.
        if self._owner is not turn:
            return
        with self._lock:
            if self._owner is turn:
                self._pass_on()

    def _leave(self, place: _Place) -> None:
        with self._lock:
            if self._owner is place.owner:
                self._pass_on()
                return
            line = self._lines[place.owner.tenant]
            line.remove(place)
            if not line:
                del self._lines[place.owner.tenant]

    def _pass_on(self) -> None:
        if not self._lines:
            self._owner = None
            sys.setswitchinterval(self._usual_seconds)
            return
        tenant, line = self._lines.popitem(last=False)
        place = line.popleft()
        if line:
            self._lines[tenant] = line
        self._owner = place.owner
        place.is_next.set()


class Turn:
    """The turn of one call, which takes it before long work and gives it back before waiting for anything else.

    It does not refer to the call: a reference cycle would keep the call and its stream alive until garbage collection.
    """

    def __init__(self, turns: Turns, tenant: str) -> None:
        self.tenant = tenant
        self._turns = turns
        self._was_taken = False

    def take(self, check: Callable[[], None]) -> None:
        """Wait for the turn; does nothing if the call has it. `check` raises if the call has ended."""
        self._was_taken = True
        self._turns.take(self, check)

    def resume(self, check: Callable[[], None]) -> None:
        """Take the turn again if the call has ever taken it, since its remaining work is long."""
        if self._was_taken:
            self.take(check)

    def give(self) -> None:
        """Give the turn back; does nothing if the call does not have it."""
        self._turns.give(self)
