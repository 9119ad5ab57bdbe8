"""A check after each test, and before a worker is stopped, that the resources of all calls are released."""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.calls.raw_training import RawTraining

if TYPE_CHECKING:
    from support.workers.worker import WorkerProcess

# Resources of calls; scenes, forward states and trainings outlive them.
_TAKEN = (
    "lumigrad_transit_bytes",
    "lumigrad_calls_in_progress",
    "lumigrad_predicted_bytes",
    "lumigrad_queue_depth",
    "lumigrad_call_threads_busy",
    'lumigrad_account_taken{resource="open_trainings"}',
    'lumigrad_account_taken{resource="open_streams"}',
)
# Resources of stored trainings.
_TRAINING, _TRAININGS = 'lumigrad_account_taken{resource="training"}', "lumigrad_trainings"
_READ = (*_TAKEN, _TRAINING, _TRAININGS)
_SAMPLE = re.compile(rf"^({'|'.join(map(re.escape, _READ))}) (\S+)$", re.MULTILINE)
# The time in which abandoned calls must end.
_SECONDS = 150.0


def left(process: WorkerProcess) -> dict[str, float]:
    """The resources of a worker that are in use; its metrics themselves if they do not answer."""
    try:
        samples = _SAMPLE.findall(process.metrics())
    except (OSError, http.client.HTTPException) as error:
        return {f"metrics that do not answer ({error!r})": 1.0}
    assert len(samples) == len(_READ)
    values = {name: float(value) for name, value in samples}
    # Stored trainings keep their resources.
    counted = _TAKEN if values[_TRAININGS] else (*_TAKEN, _TRAINING)
    return {name: values[name] for name in counted if values[name]}


def _runs(process: WorkerProcess) -> bool:
    """Whether a worker, or its supervisor, has neither ended nor been stopped."""
    if process.process.poll() is not None:
        return False
    try:
        stat = Path(f"/proc/{process.process.pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        # The process has ended meanwhile.
        return False
    return stat.rpartition(")")[2].split()[0] not in "TtZX"


def wait_until_released(processes: Iterable[WorkerProcess]) -> None:
    """Wait until the calls of all running workers have released their resources; raises an AssertionError otherwise."""
    for training in list(RawTraining.all):
        training.close()
    for process in filter(_runs, processes):
        until = time.monotonic() + _SECONDS
        while (taken := left(process)) and _runs(process) and time.monotonic() < until:
            time.sleep(0.02)
        assert not taken or not _runs(process), f"calls have ended, and left this behind: {taken}; log:\n{process.log}"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fails the test if its calls leave something behind in a worker."""
    from support.workers.worker import WorkerProcess

    yield
    wait_until_released(list(WorkerProcess.all))
