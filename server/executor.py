"""The one thread that owns the device, and the bounded queue in front of it."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar, cast

import torch

from lumigrad.server.call import Call
from lumigrad.server.errors import BusyError, CancelledError, DeviceMemoryError

T = TypeVar("T")

# The share of the newest job in the running mean of job times.
_NEWEST = 0.2


class _Job(Generic[T]):
    def __init__(self, work: Callable[[], T], call: Call | None) -> None:
        self.future: Future[T] = Future()
        self.error: BaseException | None = None
        self._result: T | None = None
        self._work = work
        self._call = call
        self._submitted = time.perf_counter()

    def run(self) -> None:
        try:
            if self._call is not None:
                self._call.times.add("queue", (time.perf_counter() - self._submitted) * 1e3)
                self._call.check()
            with torch.no_grad():
                self._result = self._work()
        except (torch.cuda.OutOfMemoryError, MemoryError) as error:
            self.error = _freed(error)
        except BaseException as error:
            self.error = error

    def deliver(self) -> None:
        """Let the waiting thread go on; apart from `run`, so that the executor's books are in order by then."""
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(cast(T, self._result))


class DeviceExecutor:
    """Runs jobs one after the other; refuses them when too many wait."""

    def __init__(self, device: torch.device, queue_size: int) -> None:
        self._device = device
        self._queue_size = queue_size
        self._waiting: deque[_Job[Any]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._is_running = False
        # By the monotonic clock; minus infinity after a failure.
        self.last_success = -math.inf
        self._mean_seconds = 0.01
        self._thread = threading.Thread(target=self._loop, name="device", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether a job runs or waits."""
        return self._is_running or bool(self._waiting)

    @property
    def depth(self) -> int:
        """Jobs that wait."""
        return len(self._waiting)

    def run(self, work: Callable[[], T], call: Call | None) -> T:
        """Run `work` on the device's thread and return its result, or raise what it raised.

        A job whose call ends while it waits gives its place up. The worker's own jobs have no call.
        """
        job = _Job(work, call)
        with self._changed:
            if self._stopping:
                raise CancelledError
            if len(self._waiting) >= self._queue_size:
                raise BusyError(
                    f"{len(self._waiting)} calls wait for the device, as many as may",
                    max(0.01, self._mean_seconds * len(self._waiting)),
                )
            self._waiting.append(job)
            self._changed.notify()
        if call is not None:
            call.on_end(lambda: self._withdraw(job, call))
        return job.future.result()

    def close(self) -> None:
        """End the thread after the job that runs; those that wait are cancelled."""
        with self._changed:
            self._stopping = True
            abandoned = list(self._waiting)
            self._waiting.clear()
            self._changed.notify()
        for job in abandoned:
            job.future.set_exception(CancelledError())
        self._thread.join()

    def _withdraw(self, job: _Job[Any], call: Call) -> None:
        with self._changed:
            if job not in self._waiting:
                return
            self._waiting.remove(job)
        try:
            call.check()
        except Exception as error:
            job.future.set_exception(error)
        else:
            job.future.set_exception(CancelledError())

    def _loop(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                if self._stopping:
                    return
                job = self._waiting.popleft()
                self._is_running = True
            started = time.perf_counter()
            job.run()
            self._mean_seconds += _NEWEST * (time.perf_counter() - started - self._mean_seconds)
            self.last_success = time.monotonic() if job.error is None else -math.inf
            self._is_running = False
            job.deliver()
            # The next wait may be long; do not keep the last call's tensors alive meanwhile.
            del job


def _freed(error: BaseException) -> DeviceMemoryError:
    """Give cached blocks back, so that the next call finds them."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    failure = DeviceMemoryError()
    failure.__cause__ = error
    return failure
