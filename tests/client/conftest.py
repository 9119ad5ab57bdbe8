"""One worker for all client tests, and clients of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lumigrad.client import Client
from support.gaussian_clouds import post
from support.worker import LUMIGRAD, WorkerProcess, worker


@pytest.fixture(scope="session")
def worker_process() -> Iterator[WorkerProcess]:
    with worker("--device", "cpu") as process:
        yield process


@pytest.fixture
def client(worker_process: WorkerProcess) -> Iterator[Client]:
    with Client(worker_process.target) as connected:
        yield connected


@pytest.fixture
def payload_lengths(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that `client` sends with each exchange from now on."""
    lengths: list[int] = []
    original = client._workers.worker.connection.exchange

    def spy(method, build, deadline):
        def measured(payload):
            header = build(payload)
            lengths.append(payload.length)
            return header

        return original(method, measured, deadline)

    monkeypatch.setattr(client._workers.worker.connection, "exchange", spy)
    return lengths


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    post().save(tmp_path / "scene.ply")
    return tmp_path / "scene.ply"


@pytest.fixture
def render(worker_process: WorkerProcess, scene: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `lumigrad render` on the scene, in its folder."""

    def run(*arguments: str, file: str = "scene.ply") -> subprocess.CompletedProcess[str]:
        command = [LUMIGRAD, "render", file, *arguments, "--target", worker_process.target]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=scene.parent)

    return run
