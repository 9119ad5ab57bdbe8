"""One worker for all client tests, and clients of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lumigrad.client import Client
from support.worker import WorkerProcess, worker


@pytest.fixture(scope="session")
def worker_process() -> Iterator[WorkerProcess]:
    with worker("--device", "cpu") as process:
        yield process


@pytest.fixture
def client(worker_process: WorkerProcess) -> Iterator[Client]:
    with Client(worker_process.target) as connected:
        yield connected
