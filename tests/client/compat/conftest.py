"""Drop-ins take no client: their worker is the default one."""

from __future__ import annotations

import pytest

from support.workers.worker import WorkerProcess


@pytest.fixture(autouse=True)
def target(worker_process: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> str:
    """The shared worker, at the default address."""
    monkeypatch.setenv("LUMIGRAD_TARGET", worker_process.target)
    return worker_process.target
