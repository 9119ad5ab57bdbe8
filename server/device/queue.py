"""The queue of the device: bounded, fair between tenants, by priority and deadline."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from lumigrad.server.core.admission import Places
from lumigrad.server.core.call import Priority
from lumigrad.server.core.errors import BusyError, TooLateError
from lumigrad.server.device.jobs import Job
from lumigrad.server.device.launch import Launch
from lumigrad.server.device.memory import Estimates

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


# The share of the newest launch in the running mean of their times.
_NEWEST = 0.2
# What takes longer gains little from being done at one, and each call waits for the last.
_JOINT_SECONDS = 0.02


class Schedule:
    """The queue and what is known of the time that its jobs take. Its owner holds a lock around every call."""

    def __init__(self, size: int, *, has_tenants: bool) -> None:
        self._queue: FairQueue[Job[Any]] = FairQueue(size, has_tenants=has_tenants)
        self._estimates = Estimates()
        self._mean_seconds = 0.01

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def predicted_bytes(self) -> int:
        """What all jobs are predicted to take of the device's memory."""
        return sum(job.cost.bytes for job in self._queue)

    def put(self, job: Job[Any], running: Launch | None) -> None:
        """Let a job wait. Without a place for it it is a BusyError, without the time for it a TooLateError."""
        self._check_deadline(job, running)
        if not self._queue.put(job):
            depth = len(self._queue)
            full = f"{depth} calls wait for the device, {self._queue.why_none}"
            raise BusyError(full, max(0.01, self._mean_seconds * depth))

    def take(self) -> list[Job[Any]]:
        """The job whose turn it is; one must wait."""
        return [self._queue.take()]

    def add_mates(self, jobs: list[Job[Any]]) -> bool:
        """Take out what goes with the jobs taken, as far as there is room; False if there is none for more."""
        joint = jobs[0].joint
        if joint is None:
            return False
        fill = sum(self._fill(job) for job in jobs)

        def is_mate(job: Job[Any]) -> bool:
            nonlocal fill
            if job.joint is None or job.joint.key != joint.key or fill + self._fill(job) > 1:
                return False
            fill += self._fill(job)
            return True

        jobs += self._queue.take_along(is_mate)
        return fill + self._fill(jobs[0]) <= 1

    def settle(self, launch: Launch, seconds: float) -> None:
        """Note how long the jobs taken have had the device."""
        self._mean_seconds += _NEWEST * (seconds - self._mean_seconds)
        self._queue.charge(seconds)
        if not launch.errors and launch.cost.kind is not None:
            self._estimates.add(launch.cost.kind, seconds / launch.cost.views)

    def remove(self, job: Job[Any]) -> bool:
        """Take a job out; False if it does not wait."""
        return self._queue.remove(job)

    def clear(self) -> list[Job[Any]]:
        """Take all out."""
        return self._queue.clear()

    def _fill(self, job: Job[Any]) -> float:
        """The share that a job takes of what is done at one time."""
        seconds = self._estimates.typical(job.cost)
        if job.joint is None or seconds is None:
            return 1.0
        return max(job.joint.fill, seconds / _JOINT_SECONDS)

    def _check_deadline(self, job: Job[Any], running: Launch | None) -> None:
        least = self._estimates.least(job.cost)
        # Of what nobody has seen before nobody knows.
        if job.call is None or not least:
            return
        needed, left = self._ahead(job, running) + least, job.call.remaining
        if needed > left:
            raise TooLateError(needed, left)

    def _ahead(self, job: Job[Any], running: Launch | None) -> float:
        """Seconds until a job's turn comes, at the least: those before it may be done at one, or end too late."""
        seconds = 0.0 if running is None else self._rest(running)
        counted: set[Hashable] = set()
        for other in self._queue.ahead_of(job):
            key = other if other.joint is None else other.joint.key
            if job.joint is not None and key == job.joint.key:
                break
            if key not in counted:
                counted.add(key)
                seconds += max(0.0, min(self._estimates.least(other.cost), other.remaining - seconds))
        return seconds

    def _rest(self, running: Launch) -> float:
        return max(0.0, min(self._estimates.least(running.cost) - running.seconds, running.remaining))
