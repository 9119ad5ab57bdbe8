"""Python jobs for the device's thread, batches of jobs, and long work in slices, each of which is a job."""

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
# How long a slice of work in steps runs while other jobs wait.
_SLICE_SECONDS = 0.02
_MOST_NUMBERS = 4096


class Numbers:
    """Assigns numbers to keys that the queue compares, such as kinds of jobs; forgets the least recently used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: OrderedDict[Hashable, int] = OrderedDict()
        # Numbers are not reused: the queue may still hold a number that was forgotten here.
        self._unused = itertools.count(1)

    def of(self, key: Hashable | None) -> int:
        """Return the number of a key, the same each time unless the key was forgotten; 0 for None."""
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

    The worker's own jobs have no call. They are urgent because they are short, and either test the device or restore
    data that several calls of a tenant may wait for.
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
        """Create a job, which without `entry` runs alone.

        Its time is charged to the call's tenant, or to `tenant` if there is no call.
        """
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
        """Record how long the job has waited. If its call has ended, keeps that error and returns False."""
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
        """Keep an error of the work; if its kernels were stopped, keep the reason why its call has ended instead."""
        release_locals(error)
        self.error = error
        if isinstance(error, Stopped):
            self.error = self.ended()
        self.give_up()

    def ended(self) -> Exception:
        """Return the error of the job's call, which has ended or taken too long."""
        error = self._error_of_call()
        if error is None and self.overdue_limit:
            error = DeviceTimeError(self.overdue_limit)
        return error or CancelledError()

    def give(self) -> Any:
        """Hand over the result, or raise the error, and keep neither.

        An error refers to the frames in its traceback, and they may refer to it.
        """
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
            # Its traceback would refer to callers that keep the error.
            return error.with_traceback(None)
        return None


class Batch:
    """Jobs that run together: a single one, or several with equal keys."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        """Create a batch; several jobs must have entries with equal keys."""
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
        """Whether its jobs may run together with other jobs."""
        return self._jobs[0].entry is not None

    @property
    def unchecked_seconds(self) -> float:
        """Seconds since any of its jobs last checked its call, as jobs do between parts of their work."""
        checked = [job.call.checked for job in self._jobs if job.call is not None]
        return time.monotonic() - max(checked, default=-math.inf)

    @property
    def errors(self) -> list[BaseException]:
        """The errors of its jobs."""
        return [job.error for job in self._jobs if job.error is not None]

    def charge(self, seconds: float) -> None:
        """Add the batch's time to its calls, in proportion to their views."""
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
        """Wait for the work that jobs, some of which failed, have queued on the device: its time and errors are theirs.

        This includes work that earlier jobs left unfinished there; mostly there is none.
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
            memory.succeeded(self._cost)
            for job, result in zip(jobs, results, strict=True):
                job.result = result
        except BaseException as error:
            if isinstance(error, InvalidArgumentError | DeviceMemoryError) or is_out_of_memory(error):
                # The cause may be the request of one job, or the size of the batch, so run the jobs one by one.
                release_locals(error)
                for job in jobs:
                    job.work(memory)
                return
            for job in jobs:
                job.note(error)


class Rest(Enum):
    """Values that a slice returns instead of a result."""

    OPEN = auto()


class Slices(Generic[T]):
    """Work whose steps run in a series of jobs. Between them, the memory that it has allocated counts as in use."""

    def __init__(
        self, begin: Callable[[], Steps[T]], cost: Cost, memory: DeviceMemory, others: Callable[[], int]
    ) -> None:
        """Prepare the work. `begin` starts its steps, anew after a failure; `others` returns how many jobs wait."""
        self.cost = cost
        self._begin = begin
        self._memory = memory
        self._others = others
        self._steps: Steps[T] | None = None
        self._kept = 0

    def run(self) -> T | Rest:
        """Run the next slice, on the device's thread, as a job that costs `cost`."""
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
        # Allocated memory is counted here from now on, rather than in the cost of each job.
        self._kept += self.cost.bytes - self.cost.payload_bytes
        self._memory.keep(self.cost.bytes - self.cost.payload_bytes)
        # The remaining work must not affect the time estimate of its kind.
        self.cost = replace(self.cost, bytes=self.cost.payload_bytes, kind=None)
        return Rest.OPEN

    def close(self) -> None:
        """Abandon the remaining steps and release the memory. No job of this work may be running."""
        self._steps = None
        self._memory.keep(-self._kept)
        self._kept = 0
