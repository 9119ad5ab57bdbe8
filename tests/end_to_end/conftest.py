"""One real worker for all end-to-end tests; a module may ask for a worker and a browser of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lumigrad.client import Client
from support.chromium import chromium
from support.workers.client_load import patient_clients
from support.workers.worker import WorkerProcess, worker, worker_fixture

__all__ = ["patient_clients"]


@pytest.fixture(scope="session")
def running() -> Iterator[WorkerProcess]:
    """A worker on the CPU; tests leave nothing in it that could disturb others."""
    with worker("--device", "cpu") as process:
        yield process


@pytest.fixture
def client(running: WorkerProcess) -> Iterator[Client]:
    """A client of that worker."""
    with Client(running.target) as connected:
        yield connected


# A worker of one module.
process = worker_fixture()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless browser of one module."""
    with chromium() as made:
        yield made
