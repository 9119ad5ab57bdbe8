"""One worker that the tests of this folder share; those that need other settings start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.calls.raw_calls import RawClient
from support.workers.balance import nothing_is_left
from support.workers.worker import WorkerProcess, worker

# For each test of this folder.
__all__ = ["nothing_is_left"]


@pytest.fixture(scope="session")
def shared_worker() -> Iterator[WorkerProcess]:
    with worker("--device", "cpu") as process:
        yield process


@pytest.fixture(scope="session")
def client(shared_worker: WorkerProcess) -> Iterator[RawClient]:
    raw = RawClient(shared_worker.target)
    yield raw
    raw.close()
