"""One worker that the tests of this folder share; modules that need other settings define their own `process`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.calls.answers import Asker
from support.calls.distance_calls import DistanceClient
from support.calls.raw_calls import RawClient
from support.workers.balance import nothing_is_left
from support.workers.unharmed import unharmed_after
from support.workers.worker import WorkerProcess, worker

# Runs for each test of this folder.
__all__ = ["nothing_is_left"]


@pytest.fixture(scope="session")
def shared_worker() -> Iterator[WorkerProcess]:
    with worker("--device", "cpu") as process:
        yield process


@pytest.fixture(scope="module")
def process(shared_worker: WorkerProcess) -> WorkerProcess:
    return shared_worker


@pytest.fixture(scope="module")
def client(process: WorkerProcess) -> Iterator[RawClient]:
    with RawClient(process.target) as raw:
        yield raw


@pytest.fixture(scope="module")
def distances(client: RawClient) -> DistanceClient:
    return DistanceClient(client)


@pytest.fixture
def asker(process: WorkerProcess, client: RawClient) -> Iterator[Asker]:
    with unharmed_after(process, client):
        made = Asker(client)
        yield made
        made.close()
