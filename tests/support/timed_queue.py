"""A queue of jobs that take as long as a test says, since none of them runs."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

from lumigrad.kernels._native import Outcome, Queue, QueuedJob
from lumigrad.server.core.accounts import places
from lumigrad.server.core.call import Priority
from lumigrad.server.device.jobs import Numbers


class TimedQueue:
    """The queue of a worker, which a test serves itself."""

    def __init__(self, size: int = 100, *, has_tenants: bool = True) -> None:
        self.places = places("places of the queue", size, has_tenants=has_tenants)
        self.native = Queue(self.places.limit, self.places.share, self.places.kept)
        self._numbers = Numbers()

    def job(
        self,
        tenant: str = "",
        priority: Priority = Priority.NORMAL,
        remaining: float = math.inf,
        kind: Hashable | None = None,
        key: Hashable | None = None,
    ) -> QueuedJob:
        of = self._numbers.of
        return QueuedJob(tenant, int(priority), remaining, kind=of(kind), batch=of(key), fill=0.1, is_repeatable=True)

    def put(self, job: QueuedJob) -> Outcome:
        """Queues a job; returns PENDING if it waits."""
        self.native.submit(job)
        return job.outcome

    def take(self) -> list[Any]:
        """The jobs of the next batch, which must not be empty."""
        jobs: list[Any] | None = self.native.take()
        assert jobs
        return jobs

    def serve(self, seconds: float) -> list[Any]:
        """Take the next batch, and finish it as if it had taken `seconds`."""
        jobs = self.take()
        self.native.finish(seconds, True)
        return jobs
