"""The one thread that runs jobs on the device."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeVar

import torch

from lumigrad.kernels._native import Outcome, Queue
from lumigrad.kernels.steps import Steps
from lumigrad.server.core.accounts import places
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import (
    BusyError,
    CancelledError,
    DeadlineTooNearError,
    DeviceLostError,
    DeviceTimeError,
    StoppingError,
)
from lumigrad.server.device.faults import is_device_lost
from lumigrad.server.device.jobs import Batch, BatchEntry, Job, Numbers, Rest, Slices
from lumigrad.server.device.memory import Cost, DeviceMemory
from lumigrad.server.device.transfer import Delivery, Pending

T = TypeVar("T")

# The interval at which a job that waits for a place in the queue tries again.
_PLACE_SECONDS = 0.01


class DeviceExecutor:
    """Runs jobs one after the other on its thread; refuses jobs when the queue is full.

    Attributes:
        queue: The queue, fair between tenants, shared with native jobs, which run within its `take`.
        numbers: The numbers of kinds, batches and sequences in the queue.
    """

    def __init__(
        self,
        device: torch.device,
        memory: DeviceMemory,
        queue_size: int,
        *,
        has_tenants: bool = False,
        limit_seconds: float = math.inf,
        on_lost: Callable[[BaseException], None] = lambda error: None,
        on_views: Callable[[int], object] = lambda views: None,
    ) -> None:
        """Start the thread. Batches that run longer than `limit_seconds` are stopped.

        `on_lost` is called with an error after which this process cannot use the device; `on_views` is called with the
        number of views of each batch of Python's jobs.
        """
        self._device = device
        self._memory = memory
        self._limit_seconds = limit_seconds
        # Only limits and error texts are used: the queue counts the places itself.
        self._places = places("places of the queue", queue_size, has_tenants=has_tenants)
        self.queue = queue = Queue(self._places.limit, self._places.share, self._places.kept)
        memory.count_native(lambda: queue.native_successes)
        self.numbers = Numbers()
        # The error raised by waiting and new jobs once the queue is closed.
        self._refusal: type[Exception] = CancelledError
        self._running: Batch | None = None
        self._lock = threading.Lock()
        # Downloads that threads wait for, with the start of the wait (monotonic clock).
        self._downloads: dict[Pending, float] = {}
        # Download of work that a job has left unfinished on the device.
        self._left: Pending | None = None
        self._on_lost = on_lost
        self._on_views = on_views
        self._thread = threading.Thread(target=self._loop, name="device", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether a job runs or waits, or results are being downloaded."""
        return self.queue.is_busy or bool(self._downloads)

    @property
    def held_seconds(self) -> float:
        """Seconds that the device has spent in the current part of a job, or in a download; 0 if none runs."""
        batch, held = self._running, self.queue.held_seconds
        if batch is not None:
            held = min(held, batch.unchecked_seconds)
        with self._lock:
            since = min(self._downloads.values(), default=math.inf)
        return max(0.0, held, time.monotonic() - since)

    def run(
        self,
        work: Callable[[], T],
        call: Call | None,
        cost: Cost | None = None,
        entry: BatchEntry | None = None,
        *,
        waits: bool = False,
        tenant: str = "",
    ) -> T:
        """Run `work` on the device's thread; return its result or raise its exception.

        A job whose call ends while it waits is removed from the queue. The worker's own jobs have no call, but may be
        charged to a `tenant`. `cost` is the predicted cost; with `entry` the job may run in a batch. If the queue is
        full, a job that `waits` waits for a place, where other jobs get a BusyError: this is for jobs whose refusal
        would lose results or a scene already read.
        """
        if call is not None:
            call.turn.give()
            if call.device_seconds > self._limit_seconds:
                raise DeviceTimeError(self._limit_seconds)
        job = Job(work, call, cost or Cost(), entry, self.numbers, tenant)
        while not self.queue.submit(job):
            if not (waits and job.outcome == Outcome.FULL):
                raise self._error(job, job.outcome)
            time.sleep(_PLACE_SECONDS)
            if call is not None:
                call.check()
        cancel = partial(self.queue.cancel, job)
        if call is not None:
            call.on_end(cancel)
        outcome = self.queue.wait(job)
        if call is not None:
            # Do not keep the job, and what its work refers to, until the reply is sent.
            call.off_end(cancel)
        if outcome != Outcome.DONE:
            raise self._error(job, outcome)
        result: T = job.give()
        return result

    def deliver_steps(
        self,
        begin: Callable[[], Steps[Delivery[T]]],
        call: Call,
        cost: Cost,
        entry: BatchEntry | None = None,
        *,
        waits: bool = False,
    ) -> T:
        """Deliver the result of work in steps. Waiting jobs run between some of its steps."""
        slices = Slices(begin, cost, self._memory, lambda: self.queue.depth)
        try:
            delivery = self.run(slices.run, call, cost, entry, waits=waits)
            while isinstance(delivery, Rest):
                delivery = self.run(slices.run, call, slices.cost, waits=True)
        finally:
            slices.close()
        self.complete(delivery.download, call, is_repeatable=True)
        return delivery.result

    def deliver(self, work: Callable[[], Delivery[T]], call: Call, cost: Cost | None = None) -> T:
        """Run work that ends with a download, during which the device runs other jobs."""
        delivery = self.run(work, call, cost)
        self.complete(delivery.download, call, is_repeatable=True)
        return delivery.result

    def complete(self, download: Pending, call: Call, *, is_repeatable: bool) -> None:
        """Wait for a download on the calling thread.

        With `is_repeatable`, another worker may repeat the job, which itself has succeeded, if the device is lost
        meanwhile.
        """
        if download.is_complete:
            return
        try:
            with call.times.stage("download"):
                self._wait(download)
        except Exception as error:
            if not is_device_lost(error):
                raise
            self._on_lost(error)
            raise (StoppingError if is_repeatable else DeviceLostError) from error

    def leave(self, download: Pending, sequence: Hashable) -> None:
        """Let the running job end before the device has done its work, whose end is `download`.

        Until then, only jobs of the same sequence run: other jobs would wait for this work, be charged for it, and get
        its errors.
        """
        self._left = download
        self.queue.leave(self.numbers.of(sequence))

    def stop_overdue(self) -> None:
        """Stop the running jobs if they have taken longer than a call may; their callers get a DeviceTimeError.

        Call it about twice a second.
        """
        self.queue.stop_overdue(self._limit_seconds)

    def close(self) -> None:
        """End the thread after the running job; waiting jobs are cancelled."""
        self._refuse(CancelledError)
        self._thread.join()

    def abandon(self) -> None:
        """Refuse waiting and new jobs after the device is lost, so that clients repeat them on another worker.

        The running job fails with a status that clients do not repeat, since it may have caused the loss.
        """
        self._refuse(StoppingError)
        if threading.current_thread() is not self._thread:
            self.queue.lose()

    def _refuse(self, refusal: type[Exception]) -> None:
        self._refusal = refusal
        self.queue.close()

    def _error(self, job: Job, outcome: Outcome) -> Exception:
        """Return the error of a job that was refused or ended early."""
        numbers = job.refusal
        if outcome == Outcome.FULL:
            return BusyError(self._places.refusal(numbers.own, numbers.all, 1), numbers.retry_seconds)
        if outcome == Outcome.TOO_NEAR:
            return DeadlineTooNearError(numbers.needed, numbers.left)
        if outcome == Outcome.CLOSED:
            return self._refusal()
        return DeviceLostError() if outcome == Outcome.LOST else job.ended()

    def _loop(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        while (jobs := self.queue.take()) is not None:
            if jobs:
                self._work(jobs)
            else:
                self._settle()
            # Drop the last call's tensors before a wait that may be long.
            del jobs

    def _work(self, jobs: list[Any]) -> None:
        started = time.perf_counter()
        self._running = batch = Batch(jobs)
        batch.run(self._memory)
        is_ok = self._record(batch)
        self._running = None
        seconds = time.perf_counter() - started
        batch.charge(seconds)
        self.queue.finish(seconds, is_ok)

    def _record(self, batch: Batch) -> bool:
        """Report the errors and views of a batch; returns whether all its jobs succeeded.

        A function of its own, so that the frame of `_work` does not refer to errors whose tracebacks contain it.
        """
        errors = batch.errors
        for error in errors:
            if is_device_lost(error):
                self._on_lost(error)
        if batch.is_batchable and not errors:
            self._on_views(batch.views)
        return not errors

    def _settle(self) -> None:
        """Wait for work that was left to the device."""
        left, self._left = self._left, None
        try:
            if left is not None:
                self._wait(left)
        except Exception as error:
            # The call that left the work also waits for it, and gets the error.
            if is_device_lost(error):
                self._on_lost(error)
        self.queue.settled()

    def _wait(self, download: Pending) -> None:
        with self._lock:
            self._downloads.setdefault(download, time.monotonic())
        try:
            download.wait()
        finally:
            with self._lock:
                self._downloads.pop(download, None)
