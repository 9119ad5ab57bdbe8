"""What the device works on at one time: a job, or several that go together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from lumigrad.server.core.errors import DeviceMemoryError, InvalidArgumentError, is_out_of_memory, release_frames
from lumigrad.server.device.jobs import Job
from lumigrad.server.device.memory import Cost, DeviceMemory


class Launch:
    """Runs jobs at once, and each by itself what cannot be done so."""

    def __init__(self, jobs: Sequence[Job[Any]]) -> None:
        """Several must fit together."""
        self._jobs = jobs
        self._started = time.monotonic()

    @property
    def held_seconds(self) -> float:
        """How long it has run without asking whether it is still wanted."""
        return min(job.held_seconds for job in self._jobs)

    @property
    def seconds(self) -> float:
        """How long ago it was made."""
        return time.monotonic() - self._started

    @property
    def remaining(self) -> float:
        """Seconds until nobody waits for it any more."""
        return max(job.remaining for job in self._jobs)

    @property
    def cost(self) -> Cost:
        """Of all jobs."""
        costs = [job.cost for job in self._jobs]
        return Cost(
            costs[0].kind,
            sum(cost.views for cost in costs),
            sum(cost.bytes for cost in costs),
            sum(cost.payload_bytes for cost in costs),
        )

    @property
    def is_joint(self) -> bool:
        """Whether it is of jobs that are done at one with others."""
        return self._jobs[0].joint is not None

    @property
    def errors(self) -> list[BaseException]:
        """What went wrong."""
        return [job.error for job in self._jobs if job.error is not None]

    def run(self, memory: DeviceMemory) -> None:
        """Do the work, on the device's thread."""
        wanted = [job for job in self._jobs if job.begin()]
        if len(wanted) == 1:
            wanted[0].work(memory)
        elif wanted:
            self._run_together(wanted, memory)

    def fail(self, error: BaseException) -> None:
        """Let all who wait go on without a result."""
        for job in self._jobs:
            job.fail(error)

    def deliver(self) -> None:
        """Let all who wait go on."""
        for job in self._jobs:
            job.deliver()

    def _run_together(self, jobs: Sequence[Job[Any]], memory: DeviceMemory) -> None:
        joint = jobs[0].joint
        assert joint is not None
        try:
            memory.make_room(self.cost)
            with torch.no_grad():
                results = joint.run([job.joint.part for job in jobs if job.joint is not None])
            for job, result in zip(jobs, results, strict=True):
                job.result = result
        except BaseException as error:
            if isinstance(error, InvalidArgumentError | DeviceMemoryError) or is_out_of_memory(error):
                # The fault of one of them, or of their number: none may suffer for another.
                release_frames(error)
                for job in jobs:
                    job.work(memory)
                return
            for job in jobs:
                job.error = error
