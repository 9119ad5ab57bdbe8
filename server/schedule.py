"""Which jobs wait for the device, whether one more may, and which of them are done at one time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from lumigrad.server.errors import BusyError, TooLateError
from lumigrad.server.estimates import Estimates
from lumigrad.server.fair_queue import FairQueue
from lumigrad.server.job import Job
from lumigrad.server.launch import Launch

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
