"""Whose work is next: a bounded queue that is fair to tenants by the device time that they use."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from lumigrad.server.places import Places
from lumigrad.server.priority import Priority

# While others wait, more urgent calls go first for so much device time ...
_TURN_SECONDS = 1.0
# ... and then until they have had so many times what the others have had since.
_LEAD = 4.0


class Waiting(Protocol):
    """What can wait here."""

    @property
    def tenant(self) -> str:
        """Whose it is."""

    @property
    def priority(self) -> Priority:
        """How urgent it is."""


W = TypeVar("W", bound=Waiting)


@dataclass
class _Line(Generic[W]):
    """What one tenant has here, and the device time that counts against it."""

    seconds: float
    waiting: dict[Priority, deque[W]] = field(default_factory=lambda: {priority: deque() for priority in Priority})

    def offer(self) -> Priority | None:
        """The most urgent of what waits."""
        return next((priority for priority, items in self.waiting.items() if items), None)


class FairQueue(Generic[W]):
    """Offers of each tenant the oldest of its most urgent work. Its owner holds a lock around every call.

    Among tenants who offer work of one priority, it is the turn of whoever has used the device least while others
    waited. A tenant that comes anew is taken to have used as much as whoever's turn it was last: it neither waits for
    others to catch up, nor they for it.

    More urgent offers go before others', but not for ever: `_TURN_SECONDS` and `_LEAD` say how long.
    """

    def __init__(self, size: int, *, has_tenants: bool) -> None:
        """`size` is how much may wait; without tenants all of it is everybody's."""
        self._places = Places(size, has_tenants=has_tenants)
        self._lines: dict[str, _Line[W]] = {}
        # By priority, device time that it has had more of than others who waited should bear.
        self._ahead = dict.fromkeys(Priority, 0.0)
        # What was taken last: whose it is, its priority, and all priorities that were on offer.
        self._last: tuple[str, Priority, frozenset[Priority]] | None = None
        self._floor = 0.0

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[W]:
        """All that waits, in no order between tenants."""
        return (item for line in self._lines.values() for items in line.waiting.values() for item in items)

    def ahead_of(self, item: W) -> Iterator[W]:
        """What its tenant has here that goes before one that is yet to be put, in order."""
        line = self._lines.get(item.tenant)
        lists = [] if line is None else [items for priority, items in line.waiting.items() if priority <= item.priority]
        return (other for items in lists for other in items)

    @property
    def why_none(self) -> str:
        """What to tell somebody for whom there was no place, after how many wait."""
        return self._places.why_none

    def put(self, item: W) -> bool:
        """Let it wait; False if there is no place."""
        if not self._places.take(item.tenant):
            return False
        line = self._lines.setdefault(item.tenant, _Line(self._floor))
        if line.offer() is None:
            line.seconds = max(line.seconds, self._floor)
        line.waiting[item.priority].append(item)
        return True

    def take(self) -> W:
        """Take the next out; there must be one. Then `charge` its time."""
        offers = {tenant: offer for tenant, line in self._lines.items() if (offer := line.offer()) is not None}
        offered = frozenset(offers.values())
        priority = self._turn(offered)
        tenant = min((name for name, offer in offers.items() if offer == priority), key=self._seconds)
        self._last = tenant, priority, offered
        self._floor = self._seconds(tenant)
        self._places.give(tenant)
        return self._lines[tenant].waiting[priority].popleft()

    def take_along(self, is_wanted: Callable[[W], bool]) -> list[W]:
        """Take out more of the tenant whose turn it was last, the most urgent first, to share what it is charged."""
        if self._last is None:
            return []
        taken = []
        for items in self._lines[self._last[0]].waiting.values():
            wanted = [item for item in items if is_wanted(item)]
            for item in wanted:
                items.remove(item)
                self._places.give(item.tenant)
            taken += wanted
        return taken

    def charge(self, seconds: float) -> None:
        """Count the device time of what was taken last."""
        if self._last is None:
            return
        tenant, priority, offered = self._last
        self._last = None
        self._lines[tenant].seconds += seconds
        for other in offered:
            if other < priority:
                self._ahead[other] -= _LEAD * seconds
        if any(other > priority for other in offered):
            self._ahead[priority] += seconds
        if not self._places:
            # Time used while nobody else waited is nobody's loss.
            self._lines.clear()
            self._floor = 0.0

    def remove(self, item: W) -> bool:
        """Take one out before its turn; False if it does not wait."""
        line = self._lines.get(item.tenant)
        if line is None or item not in line.waiting[item.priority]:
            return False
        line.waiting[item.priority].remove(item)
        self._places.give(item.tenant)
        return True

    def clear(self) -> list[W]:
        """Take out everything."""
        items = list(self)
        self._last = None
        self._lines.clear()
        self._places.clear()
        return items

    def _turn(self, offered: frozenset[Priority]) -> Priority:
        *urgent, last = sorted(offered)
        return next((priority for priority in urgent if self._ahead[priority] < _TURN_SECONDS), last)

    def _seconds(self, tenant: str) -> float:
        return self._lines[tenant].seconds
