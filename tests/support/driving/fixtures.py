"""Fixtures of tests of driving simulators' contract."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.driving.scenes import Street, street
from support.driving.stubs import DrivingClient
from support.workers.worker import WorkerProcess, worker


def street_fixture() -> Any:
    """Returns a fixture: a folder with a scene, which the tests of a module share."""

    @pytest.fixture(scope="module")
    def place(tmp_path_factory: pytest.TempPathFactory) -> Street:
        return street(tmp_path_factory.mktemp("scenes"))

    return place


def street_worker_fixture(*options: str) -> Any:
    """Returns a fixture: a worker with these options that serves the scenes in the folder of the fixture `place`."""

    @pytest.fixture(scope="module")
    def process(place: Street) -> Iterator[WorkerProcess]:
        with worker("--device", "cpu", "--sensorsim", str(place.folder), *options) as started:
            yield started

    return process


def driving_client_fixture() -> Any:
    """Returns a fixture: a client of the worker `process`, which the tests of a module share."""

    @pytest.fixture(scope="module")
    def simulator(process: WorkerProcess) -> Iterator[DrivingClient]:
        with DrivingClient(process.target) as client:
            yield client

    return simulator
