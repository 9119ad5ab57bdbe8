"""The one thread that runs jobs on the device."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from lumigrad.server.core.call import Call, Priority
from lumigrad.server.core.errors import BusyError, CancelledError, DeviceLostError, StoppingError
from lumigrad.server.device.faults import is_device_lost
from lumigrad.server.device.memory import Cost, DeviceMemory
from lumigrad.server.device.queue import Batch, BatchEntry, DeviceQueue, Job
from lumigrad.server.device.transfer import Delivery, Download

T = TypeVar("T")

# The interval at which a job that waits for a place in the queue asks again.
_PLACE_SECONDS = 0.01


@dataclass(frozen=True)
class _Unfinished:
    """Work that a job of a tenant has left to the device."""

    download: Download
    sequence: Hashable
    tenant: str
    priority: Priority


class DeviceExecutor:
    """Runs jobs one after the other on its thread; refuses jobs when the queue is full."""

    def __init__(
        self,
        device: torch.device,
        memory: DeviceMemory,
        queue_size: int,
        *,
        has_tenants: bool = False,
        batch_wait_seconds: float = 0.0,
        limit_seconds: float = math.inf,
        on_lost: Callable[[BaseException], None] = lambda error: None,
        on_views: Callable[[int], object] = lambda views: None,
    ) -> None:
        """Batches that are not full wait `batch_wait_seconds` for more jobs; those that run end after `limit_seconds`.

        `on_lost` is called with an error after which this process cannot use the device; `on_views` is called with the
        number of views of each batch.
        """
        self._device = device
        self._memory = memory
        self._batch_wait_seconds = batch_wait_seconds
        self._limit_seconds = limit_seconds
        self._waiting = DeviceQueue(queue_size, has_tenants=has_tenants)
        self._changed = threading.Condition()
        # The error of waiting and new jobs once the executor has ended.
        self._refusal: type[Exception] | None = None
        self._running: Batch | None = None
        # Those that threads wait for, and since when (monotonic clock).
        self._downloads: dict[Download, float] = {}
        # What the device may still be at work on.
        self._unfinished: _Unfinished | None = None
        self._on_lost = on_lost
        self._on_views = on_views
        # By the monotonic clock; minus infinity after a failure.
        self.last_success = -math.inf
        # Seconds of work before the current job, and the start of the current job; one tuple, so that reads are atomic.
        self._busy: tuple[float, float | None] = (0.0, None)
        self._thread = threading.Thread(target=self._loop, name="device", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether a job runs or waits, or results are on their way to the host."""
        return self._running is not None or bool(self._waiting) or bool(self._downloads)

    @property
    def held_seconds(self) -> float:
        """Seconds that the device has spent in the current part of a job, or in a download; 0 if none runs."""
        batch = self._running
        with self._changed:
            since = min(self._downloads.values(), default=math.inf)
        return max(0.0 if batch is None else batch.held_seconds, time.monotonic() - since)

    @property
    def busy_seconds(self) -> float:
        """Seconds that the device's thread has worked, the current job included."""
        seconds, since = self._busy
        return seconds if since is None else seconds + time.perf_counter() - since

    @property
    def depth(self) -> int:
        """The number of waiting jobs."""
        return len(self._waiting)

    @property
    def predicted_bytes(self) -> int:
        """The predicted device memory of running and waiting jobs."""
        with self._changed:
            batch = self._running
            return self._waiting.predicted_bytes + (0 if batch is None else batch.cost.bytes)

    def run(
        self,
        work: Callable[[], T],
        call: Call | None,
        cost: Cost | None = None,
        entry: BatchEntry[T] | None = None,
        *,
        waits: bool = False,
    ) -> T:
        """Run `work` on the device's thread; return its result or raise its exception.

        A job whose call ends while it waits is removed from the queue. The worker's own jobs have no call. `cost` is
        the predicted cost; with `entry` the job may run in a batch. A job that `waits` waits for a place in the queue,
        which is a BusyError for others: for what would lose results otherwise, or a scene that was read.
        """
        job = Job(work, call, cost or Cost(), entry)
        if call is not None:
            call.turn.give()
        while not self._admit(job, waits=waits):
            time.sleep(_PLACE_SECONDS)
            if call is not None:
                call.check()
        if call is not None:
            call.on_end(partial(self._withdraw, job))
        return job.wait()

    def deliver(
        self,
        work: Callable[[], Delivery[T]],
        call: Call,
        cost: Cost | None = None,
        entry: BatchEntry[Delivery[T]] | None = None,
        *,
        waits: bool = False,
    ) -> T:
        """As `run`, for work that ends with a download: the device goes on with other jobs meanwhile."""
        delivery = self.run(work, call, cost, entry, waits=waits)
        self.complete(delivery.download, call, is_repeatable=True)
        return delivery.result

    def complete(self, download: Download, call: Call, *, is_repeatable: bool) -> None:
        """Wait for a download on the calling thread.

        `is_repeatable`: the job itself has succeeded, so another worker may repeat it if the device is lost meanwhile.
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

    def leave(self, download: Download, sequence: Hashable) -> None:
        """Called by a job that ends before the device has done its work, which ends with `download`.

        Only jobs of the same sequence run before that: others would wait for this work, be charged for it, and meet its
        errors.
        """
        batch = self._running
        assert batch is not None
        self._unfinished = _Unfinished(download, sequence, batch.tenant, batch.priority)

    def stop_overdue(self) -> None:
        """Stop the running jobs if they have taken longer than a call may; their callers get DeviceTimeError.

        To be called about twice a second.
        """
        batch = self._running
        if batch is not None:
            batch.stop_if_longer(self._limit_seconds)

    def close(self) -> None:
        """End the thread after the running job; waiting jobs are cancelled."""
        self._refuse(CancelledError)
        self._thread.join()

    def abandon(self) -> None:
        """Refuse waiting and new jobs after the device is lost, so that clients repeat them on another worker.

        The running job fails without such a status, since it may have caused the loss.
        """
        self._refuse(StoppingError)
        batch = self._running
        if batch is not None and threading.current_thread() is not self._thread:
            batch.fail(DeviceLostError())

    def _admit(self, job: Job[Any], *, waits: bool) -> bool:
        """Put a job into the queue; False if that is full and the job `waits`."""
        with self._changed:
            if self._refusal is not None:
                raise self._refusal
            try:
                self._waiting.admit(job, self._running)
            except BusyError:
                if not waits:
                    raise
                return False
            self._changed.notify()
            return True

    def _refuse(self, refusal: type[Exception]) -> None:
        with self._changed:
            self._refusal = refusal
            refused = self._waiting.clear()
            self._changed.notify()
        for job in refused:
            job.fail(refusal())

    def _withdraw(self, job: Job[Any]) -> None:
        """Take a job whose call has ended from the queue, or stop its kernels."""
        with self._changed:
            if not self._waiting.remove(job):
                job.is_abandoned, running = True, self._running
                if running is not None:
                    running.stop_if_abandoned()
                return
        job.abandon()
        job.deliver()

    def _loop(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        while (batch := self._take()) is not None:
            started = time.perf_counter()
            self._busy = (self._busy[0], started)
            batch.run(self._memory)
            self._record(batch, time.perf_counter() - started)
            batch.deliver()
            # Drop the last call's tensors before a wait that may be long.
            del batch

    def _take(self) -> Batch | None:
        """The next jobs, once the device is free for them; None: the executor has ended."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._refusal is not None)
                if self._refusal is not None:
                    return None
                left = self._take_unfinished()
                if left is None:
                    self._running = batch = self._next()
                    return batch
            self._settle(left)

    def _take_unfinished(self) -> _Unfinished | None:
        """The work that was left to the device, if a job waits that must not run before its end."""
        left = self._unfinished
        if left is None or all(job.cost.sequence == left.sequence for job in self._waiting):
            return None
        self._unfinished = None
        return None if left.download.is_complete else left

    def _settle(self, left: _Unfinished) -> None:
        """Wait for work that was left to the device, and charge its tenant for it."""
        started = time.perf_counter()
        self._busy = (self._busy[0], started)
        try:
            self._wait(left.download)
        except Exception as error:
            # The call that has left the work waits for it too, and meets the error.
            if is_device_lost(error):
                self._on_lost(error)
        seconds = time.perf_counter() - started
        self._busy = (self._busy[0] + seconds, None)
        with self._changed:
            self._waiting.charge_later(left.tenant, left.priority, seconds)

    def _wait(self, download: Download) -> None:
        with self._changed:
            self._downloads.setdefault(download, time.monotonic())
        try:
            download.wait()
        finally:
            with self._changed:
                self._downloads.pop(download, None)

    def _next(self) -> Batch:
        jobs = [self._waiting.take()]
        until = time.monotonic() + self._batch_wait_seconds
        while self._waiting.fill_up(jobs) and self._refusal is None:
            seconds = until - time.monotonic()
            if seconds <= 0:
                break
            self._changed.wait(seconds)
        return Batch(jobs)

    def _record(self, batch: Batch, seconds: float) -> None:
        """Update the counters before the results are delivered."""
        self._busy = (self._busy[0] + seconds, None)
        self.last_success = -math.inf if batch.errors else time.monotonic()
        for error in batch.errors:
            if is_device_lost(error):
                self._on_lost(error)
        if batch.is_batchable and not batch.errors:
            self._on_views(batch.cost.views)
        with self._changed:
            self._waiting.record(batch, seconds)
        self._running = None
