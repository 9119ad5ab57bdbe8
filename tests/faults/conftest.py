"""A worker for each module, with default options unless the module defines its own `process`, and its callers."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from support.calls.lane_calls import lane_people
from support.calls.raw_calls import RawClient
from support.workers.balance import nothing_is_left
from support.workers.worker import WorkerProcess, worker_fixture

# Applies to each test of this folder.
__all__ = ["nothing_is_left"]
process = worker_fixture()


@pytest.fixture(scope="module")
def client(process: WorkerProcess) -> Iterator[RawClient]:
    with RawClient(process.target) as raw:
        yield raw


@pytest.fixture
def people(process: WorkerProcess) -> Iterator[SimpleNamespace]:
    with lane_people(process) as both:
        yield both
