"""One real worker for all end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lumigrad.client import Client
from support.workers.worker import WorkerProcess, worker


@pytest.fixture(scope="session")
def running() -> Iterator[WorkerProcess]:
    """A worker on the CPU; tests leave nothing in it that another could stumble over."""
    with worker("--device", "cpu") as process:
        yield process


@pytest.fixture
def client(running: WorkerProcess) -> Iterator[Client]:
    """A client of that worker."""
    with Client(running.target) as connected:
        yield connected
