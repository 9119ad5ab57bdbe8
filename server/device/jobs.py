"""Jobs of Python for the device's thread, batches of them, and long work in slices, each of which is a job."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from lumigrad.kernels._native import QueuedJob
from lumigrad.kernels.errors import Stopped
from lumigrad.kernels.steps import Steps
from lumigrad.server.core.call import Call, Priority
from lumigrad.server.core.errors import CancelledError, DeviceMemoryError, DeviceTimeError, InvalidArgumentError
from lumigrad.server.device.faults import is_out_of_memory, release_locals
from lumigrad.server.device.memory import Cost, DeviceMemory

T = TypeVar("T")
# Work in steps goes on for so long while others wait.
_SLICE_SECONDS = 0.02
_MOST_NUMBERS = 4096


class Numbers:
    """Numbers that stand for equal things in the queue, such as kinds of jobs, as long as they are in use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: OrderedDict[Hashable, int] = OrderedDict()
        # None is used again: the queue may still have one that was forgotten here.
        self._unused = itertools.count(1)

    def of(self, key: Hashable | None) -> int:
        """The number of a key, always the same unless many others were asked for since; 0 for None."""
        if key is None:
            return 0
        with self._lock:
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = next(self._unused)
                if len(self._numbers) > _MOST_NUMBERS:
                    self._numbers.popitem(last=False)
            else:
                self._numbers.move_to_end(key)
            return number


class BatchEntry(NamedTuple):
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
    run: Callable[[Sequence[Any]], Sequence[Any]]


class Job(QueuedJob):
    """A function to run on the device's thread. It runs once, and the thread that waits for it takes its result.

    The worker's own jobs have no call. They are urgent: they are short, and test whether the device works, or bring
    back what several calls of a tenant may wait for.
    """

    def __init__(
        self,
        work: Callable[[], Any],
        call: Call | None,
        cost: Cost,
        entry: BatchEntry | None,
        numbers: Numbers,
        tenant: str = "",
    ) -> None:
        """A job without `entry` runs alone. Its time is the call's tenant's; without a call that of `tenant`."""
        super().__init__(
            tenant if call is None else call.tenant,
            int(Priority.INTERACTIVE if call is None else call.priority),
            math.inf if call is None else call.remaining,
            numbers.of(cost.kind),
            float(cost.views),
            cost.bytes,
            0 if entry is None else numbers.of(entry.key),
            0.0 if entry is None else entry.fill,
            numbers.of(cost.sequence),
            cost.is_repeatable,
            call is None,
        )
        self.call = call
        self.cost = cost
        self.entry = entry
        self.error: BaseException | None = None
        self.result: Any = None
        self._work = work

    def begin(self) -> bool:
        """Note how long it has waited; False, with the error noted, if its call has ended."""
        if self.call is None:
            return True
        self.call.times.add("queue", self.waited_seconds * 1e3)
        error = self._error_of_call()
        if error is not None:
            self.note(error)
        return error is None

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
            self.error = self.ended()
        self.give_up()

    def ended(self) -> Exception:
        """The error of its call, which has ended or has taken too long."""
        error = self._error_of_call()
        if error is None and self.overdue_limit:
            error = DeviceTimeError(self.overdue_limit)
        return error or CancelledError()

    def give(self) -> Any:
        """Give the result away, or raise the error: it refers to the frames that it has left, and these to it."""
        result, error = self.result, self.error
        self.result = self.error = None
        if error is None:
            return result
        try:
            raise error
        finally:
            del error

    def _error_of_call(self) -> Exception | None:
        try:
            if self.call is not None:
                self.call.check()
        except Exception as error:
            return error
        return None


class Batch:
    """Jobs that run together: a single one, or several with equal keys."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        """Several jobs must have entries with equal keys."""
        self._jobs = jobs

    @property
    def views(self) -> int:
        """The views of all its jobs."""
        return sum(job.cost.views for job in self._jobs)

    @property
    def _cost(self) -> Cost:
        costs = [job.cost for job in self._jobs]
        return Cost(
            costs[0].kind,
            self.views,
            sum(cost.bytes for cost in costs),
            sum(cost.payload_bytes for cost in costs),
        )

    @property
    def is_batchable(self) -> bool:
        """Whether its jobs may run with others."""
        return self._jobs[0].entry is not None

    @property
    def unchecked_seconds(self) -> float:
        """Seconds since one of its jobs checked its call, as jobs do between parts of their work."""
        checked = [job.call.checked for job in self._jobs if job.call is not None]
        return time.monotonic() - max(checked, default=-math.inf)

    @property
    def errors(self) -> list[BaseException]:
        """The errors of its jobs."""
        return [job.error for job in self._jobs if job.error is not None]

    def charge(self, seconds: float) -> None:
        """Add the time that it took to that of its calls, by their shares of the views."""
        views = self.views
        for job in self._jobs:
            if job.call is not None:
                job.call.device_seconds += seconds * job.cost.views / views

    def run(self, memory: DeviceMemory) -> None:
        """Run the jobs whose calls have not ended, on the device's thread."""
        running = [job for job in self._jobs if job.begin()]
        if len(running) == 1:
            running[0].work(memory)
        elif running:
            self._run_together(running, memory)
        if any(job.error for job in running):
            self._finish(running, memory)

    def _finish(self, jobs: Sequence[Job], memory: DeviceMemory) -> None:
        """Wait for what jobs, of which some failed, have queued on the device: its time and its errors are theirs.

        This includes what earlier jobs have left unfinished there, which is nothing for most jobs.
        """
        try:
            memory.finish()
        except BaseException as error:
            for job in jobs:
                if job.error is not None:
                    job.note(error)

    def _run_together(self, jobs: Sequence[Job], memory: DeviceMemory) -> None:
        entry = jobs[0].entry
        assert entry is not None
        try:
            for job in jobs:
                memory.begin(job.call)
            with torch.no_grad(), memory.make_room(self._cost):
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


class Rest(Enum):
    """Replies of a slice in place of a result."""

    OPEN = auto()


class Slices(Generic[T]):
    """Work whose steps one job after the other runs. What it has allocated counts as in use between them."""

    def __init__(
        self, begin: Callable[[], Steps[T]], cost: Cost, memory: DeviceMemory, others: Callable[[], int]
    ) -> None:
        """`begin` makes the steps, anew after one has failed; `others` returns the number of jobs that wait."""
        self.cost = cost
        self._begin = begin
        self._memory = memory
        self._others = others
        self._steps: Steps[T] | None = None
        self._kept = 0

    def run(self) -> T | Rest:
        """Run the next slice, on the device's thread; its cost is `cost` then."""
        steps = self._steps = self._steps or self._begin()
        until = time.monotonic() + _SLICE_SECONDS
        try:
            next(steps)
            while time.monotonic() < until or not self._others():
                next(steps)
        except StopIteration as end:
            self._steps = None
            result: T = end.value
            return result
        except BaseException:
            self._steps = None
            raise
        # Memory that was allocated is counted from now on, in place of the cost of each job.
        self._kept += self.cost.bytes - self.cost.payload_bytes
        self._memory.keep(self.cost.bytes - self.cost.payload_bytes)
        # The rest of the work says nothing about the time of its kind.
        self.cost = replace(self.cost, bytes=self.cost.payload_bytes, kind=None)
        return Rest.OPEN

    def close(self) -> None:
        """Give up what is not done, once no job of it runs any more."""
        self._steps = None
        self._memory.keep(-self._kept)
        self._kept = 0
