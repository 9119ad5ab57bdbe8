"""The queue of jobs for the device, fair between tenants and by priority within one, and batches of jobs."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, cast

import torch

from lumigrad.kernels.errors import Stopped, StopRequest
from lumigrad.server.core.accounts import Reservation, places
from lumigrad.server.core.call import Call, Priority
from lumigrad.server.core.errors import (
    BusyError,
    CancelledError,
    DeadlineTooNearError,
    DeviceMemoryError,
    DeviceTimeError,
    InvalidArgumentError,
)
from lumigrad.server.device.faults import is_out_of_memory, release_locals
from lumigrad.server.device.memory import Cost, DeviceMemory, Estimates

T = TypeVar("T")


@dataclass(frozen=True)
class BatchEntry(Generic[T]):
    """A job's entry in a batch.

    Attributes:
        key: Jobs with equal keys may run in one batch.
        fill: The fraction of a full batch that this job takes.
        item: The job's argument for `run`.
        run: Runs a batch, given the items of its jobs; returns their results in that order.
    """

    key: Hashable
    fill: float
    item: Any
    run: Callable[[Sequence[Any]], Sequence[T]]


class Job(Generic[T]):
    """A function to run on the device's thread. It runs once, and its result is delivered once."""

    def __init__(self, work: Callable[[], T], call: Call | None, cost: Cost, entry: BatchEntry[T] | None) -> None:
        """The worker's own jobs have no `call`; a job without `entry` runs alone."""
        self.call = call
        self.cost = cost
        self.entry = entry
        self.future: Future[T] = Future()
        self.error: BaseException | None = None
        self.result: T | None = None
        # Whether its call ended after it was taken from the queue.
        self.is_abandoned = False
        # Why it was stopped, if it took too long.
        self.overdue: DeviceTimeError | None = None
        self._work = work
        self._submitted = time.perf_counter()
        self._started = math.inf

    @property
    def tenant(self) -> str:
        """The tenant of its call; empty for the worker's own jobs."""
        return "" if self.call is None else self.call.tenant

    @property
    def priority(self) -> Priority:
        """The call's priority. The worker's own jobs are urgent: they are short, and test whether the device works."""
        return Priority.INTERACTIVE if self.call is None else self.call.priority

    @property
    def remaining(self) -> float:
        """Seconds until its call's deadline."""
        return math.inf if self.call is None else self.call.remaining

    @property
    def held_seconds(self) -> float:
        """Seconds since it started, or since it last checked its call, as jobs do between parts of their work."""
        asked = self._started if self.call is None else max(self._started, self.call.checked)
        return time.monotonic() - asked

    def begin(self) -> bool:
        """Start the clock; False, with the error noted, if its call has ended."""
        self._started = time.monotonic()
        if self.call is None:
            return True
        self.call.times.add("queue", (time.perf_counter() - self._submitted) * 1e3)
        self.error = self._error_of_call()
        return self.error is None

    def work(self, memory: DeviceMemory) -> None:
        """Run the work, on the device's thread, and keep its result or error."""
        try:
            memory.begin(self.call)
            with torch.no_grad():
                self.result = memory.run(self._work, self.cost)
        except BaseException as error:
            self.note(error)

    def note(self, error: BaseException) -> None:
        """Note an error of the work; if its kernels were stopped, the reason why its call has ended."""
        release_locals(error)
        self.error = error
        if isinstance(error, Stopped):
            self.abandon()

    def abandon(self) -> None:
        """Note the error of its call, which has ended or has taken too long."""
        self.error = self._error_of_call() or self.overdue or CancelledError()

    def fail(self, error: BaseException) -> None:
        """Deliver an error to the waiting thread."""
        self.error = error
        self.deliver()

    def deliver(self) -> None:
        """Deliver the result to the waiting thread; the executor updates its counters before."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(cast(T, self.result))

    def wait(self) -> T:
        """Wait for the result, which is given away: an error refers to the frames that it has left, and these to it."""
        future = self.future
        try:
            return future.result()
        finally:
            self.future, self.result, self.error = Future(), None, None
            del future

    def _error_of_call(self) -> Exception | None:
        try:
            if self.call is not None:
                self.call.check()
        except Exception as error:
            return error
        return None


class Batch:
    """Jobs that run together: a single one, or several with equal keys."""

    def __init__(self, jobs: Sequence[Job[Any]]) -> None:
        """Several jobs must have entries with equal keys."""
        self._jobs = jobs
        self._started = time.monotonic()
        self._stop = StopRequest()

    @property
    def held_seconds(self) -> float:
        """The smallest `held_seconds` of its jobs, or the time since its kernels made progress."""
        return min(self._stop.idle_seconds, *(job.held_seconds for job in self._jobs))

    @property
    def seconds(self) -> float:
        """Seconds since it was created."""
        return time.monotonic() - self._started

    @property
    def tenant(self) -> str:
        """The tenant of its jobs."""
        return self._jobs[0].tenant

    @property
    def priority(self) -> Priority:
        """The priority of the job for which it was taken."""
        return self._jobs[0].priority

    @property
    def remaining(self) -> float:
        """Seconds until the latest deadline of its calls."""
        return max(job.remaining for job in self._jobs)

    @property
    def cost(self) -> Cost:
        """The cost of all its jobs."""
        costs = [job.cost for job in self._jobs]
        return Cost(
            costs[0].kind,
            sum(cost.views for cost in costs),
            sum(cost.bytes for cost in costs),
            sum(cost.payload_bytes for cost in costs),
        )

    @property
    def is_batchable(self) -> bool:
        """Whether its jobs may run with others."""
        return self._jobs[0].entry is not None

    @property
    def errors(self) -> list[BaseException]:
        """The errors of its jobs."""
        return [job.error for job in self._jobs if job.error is not None]

    def run(self, memory: DeviceMemory) -> None:
        """Run the jobs whose calls have not ended, on the device's thread."""
        running = [job for job in self._jobs if job.begin()]
        with self._stop:
            if len(running) == 1:
                running[0].work(memory)
            elif running:
                self._run_together(running, memory)
        if any(job.error for job in running):
            self._finish(running, memory)

    def stop_if_abandoned(self) -> None:
        """Stop its kernels, on any thread, if the calls of all jobs have ended and the kernels change nothing else."""
        if all(job.cost.is_repeatable and (job.is_abandoned or job.error) for job in self._jobs):
            self._stop.make()

    def stop_if_longer(self, limit_seconds: float) -> None:
        """Stop its kernels, on any thread, if it has run for longer; the worker's own jobs may.

        Those that change more than their result are not stopped meanwhile (see `training.step`).
        """
        if self.seconds <= limit_seconds or any(job.call is None for job in self._jobs):
            return
        for job in self._jobs:
            job.overdue = DeviceTimeError(limit_seconds)
        self._stop.make()

    def fail(self, error: BaseException) -> None:
        """Deliver an error to all waiting threads."""
        for job in self._jobs:
            job.fail(error)

    def deliver(self) -> None:
        """Deliver the results to the waiting threads."""
        for job in self._jobs:
            job.deliver()

    def _finish(self, jobs: Sequence[Job[Any]], memory: DeviceMemory) -> None:
        """Wait for what jobs, of which some failed, have queued on the device: its time and its errors are theirs.

        This includes what earlier jobs have left unfinished there, which is nothing for most jobs.
        """
        try:
            memory.finish()
        except BaseException as error:
            for job in jobs:
                if job.error is not None:
                    job.note(error)

    def _run_together(self, jobs: Sequence[Job[Any]], memory: DeviceMemory) -> None:
        entry = jobs[0].entry
        assert entry is not None
        try:
            for job in jobs:
                memory.begin(job.call)
            memory.make_room(self.cost)
            with torch.no_grad(), memory.room_for(self.cost):
                results = entry.run([job.entry.item for job in jobs if job.entry is not None])
            for job, result in zip(jobs, results, strict=True):
                job.result = result
        except BaseException as error:
            if isinstance(error, InvalidArgumentError | DeviceMemoryError) or is_out_of_memory(error):
                # One job's request, or the size of the batch, may be the cause: the jobs then run one by one.
                release_locals(error)
                for job in jobs:
                    job.work(memory)
                return
            for job in jobs:
                job.note(error)


# A tenant's more urgent calls run first for this device time while its other calls wait ...
_TURN_SECONDS = 1.0
# ... and after that get this multiple of the device time that its other calls get.
_LEAD = 4.0


class Waiting(Protocol):
    """An item of the queue."""

    @property
    def tenant(self) -> str:
        """Its tenant."""

    @property
    def priority(self) -> Priority:
        """Its priority."""


W = TypeVar("W", bound=Waiting)


@dataclass
class _Line(Generic[W]):
    """One tenant's waiting items, the device time charged to it, and the order of its priorities.

    Attributes:
        seconds: The device time charged to the tenant.
        ahead: By priority, device time in excess of its share while lower priorities of the tenant waited.
    """

    seconds: float
    waiting: dict[Priority, deque[W]] = field(default_factory=lambda: {priority: deque() for priority in Priority})
    ahead: dict[Priority, float] = field(default_factory=lambda: dict.fromkeys(Priority, 0.0))

    @property
    def offered(self) -> list[Priority]:
        """The priorities of its waiting items, the highest first."""
        return [priority for priority, items in self.waiting.items() if items]

    def turn(self) -> Priority:
        """The priority whose oldest item is its next; something must wait."""
        *urgent, last = self.offered
        return next((priority for priority in urgent if self.ahead[priority] < _TURN_SECONDS), last)

    def charge(self, priority: Priority, offered: Sequence[Priority], seconds: float) -> None:
        """Charge an item of a priority, with the priorities that were offered meanwhile."""
        self.seconds += seconds
        for other in offered:
            if other < priority:
                self.ahead[other] -= _LEAD * seconds
        if any(other > priority for other in offered):
            self.ahead[priority] += seconds


class FairQueue(Generic[W]):
    """A fair queue. The tenant with the least charged device time is next, with the oldest of its most urgent items.

    Only time while others waited is charged. A new tenant starts with the charge of the tenant that was served last, so
    that neither has to wait for the other to catch up. Priorities order the items of one tenant: higher ones are taken
    first, within `_TURN_SECONDS` and `_LEAD`.

    Not thread-safe: the owner holds a lock around every call.
    """

    def __init__(self, size: int, *, has_tenants: bool) -> None:
        """`size` is the maximum number of items, of which one of several tenants may have half."""
        self._places = places("places of the queue", size, has_tenants=has_tenants)
        self._taken: dict[W, Reservation] = {}
        self._lines: dict[str, _Line[W]] = {}
        # The tenant and the priority of the item that was taken last, and the priorities that its tenant offered.
        self._last: tuple[str, Priority, list[Priority]] | None = None
        self._floor = 0.0

    def __len__(self) -> int:
        return len(self._taken)

    def __iter__(self) -> Iterator[W]:
        """All items, in no particular order of tenants."""
        return (item for line in self._lines.values() for items in line.waiting.values() for item in items)

    def ahead_of(self, item: W) -> Iterator[W]:
        """The items of the same tenant that would be taken before a new item, in order."""
        line = self._lines.get(item.tenant)
        lists = [] if line is None else [items for priority, items in line.waiting.items() if priority <= item.priority]
        return (other for items in lists for other in items)

    def put(self, item: W) -> None:
        """Add an item; BusyError if the queue is full."""
        self._taken[item] = self._places.reserve(item.tenant, 1)
        line = self._lines.setdefault(item.tenant, _Line(self._floor))
        if not line.offered:
            line.seconds = max(line.seconds, self._floor)
        line.waiting[item.priority].append(item)

    def take(self) -> W:
        """Remove and return the next item; the queue must not be empty. Call `charge` afterwards."""
        tenant, line = min(
            ((name, line) for name, line in self._lines.items() if line.offered), key=lambda entry: entry[1].seconds
        )
        priority = line.turn()
        self._last = tenant, priority, line.offered
        self._floor = line.seconds
        item = line.waiting[priority].popleft()
        self._taken.pop(item).release()
        return item

    def take_along(self, is_wanted: Callable[[W], bool]) -> list[W]:
        """Remove further items of the tenant that was served last, the most urgent first, to run in the same batch."""
        if self._last is None:
            return []
        taken = []
        for items in self._lines[self._last[0]].waiting.values():
            wanted = [item for item in items if is_wanted(item)]
            for item in wanted:
                items.remove(item)
                self._taken.pop(item).release()
            taken += wanted
        return taken

    def charge(self, seconds: float) -> None:
        """Charge the device time of the items that were taken last."""
        if self._last is None:
            return
        tenant, priority, offered = self._last
        self._lines[tenant].charge(priority, offered, seconds)
        self._last = None
        if not self._taken:
            # Time used while no other tenant waited is not charged.
            self._lines.clear()
            self._floor = 0.0

    def charge_later(self, tenant: str, priority: Priority, seconds: float) -> None:
        """Charge device time that an item which is no longer the last took while others waited."""
        line = self._lines.setdefault(tenant, _Line(self._floor))
        line.charge(priority, line.offered, seconds)

    def remove(self, item: W) -> bool:
        """Remove an item; False if it is not in the queue."""
        taken = self._taken.pop(item, None)
        if taken is None:
            return False
        taken.release()
        self._lines[item.tenant].waiting[item.priority].remove(item)
        return True

    def clear(self) -> list[W]:
        """Remove and return all items."""
        items = list(self)
        self._last = None
        self._lines.clear()
        for taken in self._taken.values():
            taken.release()
        self._taken.clear()
        return items


# The weight of the newest batch in the running mean of their times.
_NEWEST = 0.2
# Longer batches gain little, and each call waits for the whole batch.
_BATCH_SECONDS = 0.02


class DeviceQueue(FairQueue[Job[Any]]):
    """The fair queue of jobs, with estimates of their times. Not thread-safe: the owner holds a lock."""

    def __init__(self, size: int, *, has_tenants: bool) -> None:
        super().__init__(size, has_tenants=has_tenants)
        self._estimates = Estimates()
        self._mean_seconds = 0.01

    @property
    def predicted_bytes(self) -> int:
        """The device memory that all jobs are predicted to take."""
        return sum(job.cost.bytes for job in self)

    def admit(self, job: Job[Any], running: Batch | None) -> None:
        """Add a job: BusyError if the queue is full, DeadlineTooNearError if the job cannot end before its deadline."""
        self._check_deadline(job, running)
        try:
            self.put(job)
        except BusyError as full:
            raise BusyError(full.what, max(0.01, self._mean_seconds * len(self))) from None

    def fill_up(self, jobs: list[Job[Any]]) -> bool:
        """Move jobs that may run with those taken from the queue to `jobs`, up to a full batch; False if it is full."""
        entry = jobs[0].entry
        if entry is None:
            return False
        fill = sum(self._fill(job) for job in jobs)

        def fits(job: Job[Any]) -> bool:
            nonlocal fill
            if job.entry is None or job.entry.key != entry.key or fill + self._fill(job) > 1:
                return False
            fill += self._fill(job)
            return True

        jobs += self.take_along(fits)
        return fill + self._fill(jobs[0]) <= 1

    def charge_later(self, tenant: str, priority: Priority, seconds: float) -> None:
        """Charge device time that a job took after it had ended, while others waited."""
        self._mean_seconds += _NEWEST * seconds
        super().charge_later(tenant, priority, seconds)

    def record(self, batch: Batch, seconds: float) -> None:
        """Charge the device time of a batch, and update the estimates."""
        self._mean_seconds += _NEWEST * (seconds - self._mean_seconds)
        self.charge(seconds)
        if not batch.errors and batch.cost.kind is not None:
            self._estimates.add(batch.cost.kind, seconds / batch.cost.views)

    def _fill(self, job: Job[Any]) -> float:
        """The fraction of a full batch that a job takes, by its entry and by its time."""
        seconds = self._estimates.typical(job.cost)
        if job.entry is None or seconds is None:
            return 1.0
        return max(job.entry.fill, seconds / _BATCH_SECONDS)

    def _check_deadline(self, job: Job[Any], running: Batch | None) -> None:
        least = self._estimates.least(job.cost)
        # Without estimates no job is refused.
        if job.call is None or not least:
            return
        needed, left = self._seconds_ahead(job, running) + least, job.call.remaining
        if needed > left:
            raise DeadlineTooNearError(needed, max(0.0, left))

    def _seconds_ahead(self, job: Job[Any], running: Batch | None) -> float:
        """The least time until a job can run: jobs before it may run in one batch, or may miss their deadlines."""
        seconds = 0.0 if running is None else self._rest(running)
        counted: set[Hashable] = set()
        for other in self.ahead_of(job):
            key = other if other.entry is None else other.entry.key
            if job.entry is not None and key == job.entry.key:
                break
            if key not in counted:
                counted.add(key)
                seconds += max(0.0, min(self._estimates.least(other.cost), other.remaining - seconds))
        return seconds

    def _rest(self, running: Batch) -> float:
        return max(0.0, min(self._estimates.least(running.cost) - running.seconds, running.remaining))
