"""One worker for all client tests, and clients of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lumigrad.client import Client, Mesh
from lumigrad.client.cli import main
from support.files.query_files import SIZE, Query
from support.gaussians.clouds import post
from support.meshes.shapes import box
from support.workers.client_load import client_fixture, patient_clients
from support.workers.forks import lumigrad
from support.workers.worker import WorkerProcess, worker


@pytest.fixture(scope="session")
def worker_process() -> Iterator[WorkerProcess]:
    with worker("--device", "cpu") as process:
        yield process


client = client_fixture("worker_process")

__all__ = ["patient_clients"]


@pytest.fixture
def target(worker_process: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> str:
    """The worker, which is also the default one."""
    monkeypatch.setenv("LUMIGRAD_TARGET", worker_process.target)
    return worker_process.target


@pytest.fixture
def payload_lengths(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that `client` sends with each exchange from now on."""
    lengths: list[int] = []
    original = client._workers.members()[0].connection.exchange

    def spy(method, build, *rest):
        def measured(payload):
            header = build(payload)
            lengths.append(payload.length)
            return header

        return original(method, measured, *rest)

    monkeypatch.setattr(client._workers.members()[0].connection, "exchange", spy)
    return lengths


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    post().save(tmp_path / "scene.ply")
    return tmp_path / "scene.ply"


@pytest.fixture
def render(worker_process: WorkerProcess, scene: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `lumigrad render` on the scene, in its folder."""

    def run(*arguments: str, file: str = "scene.ply") -> subprocess.CompletedProcess[str]:
        return lumigrad("render", file, *arguments, "--target", worker_process.target, folder=scene.parent)

    return run


@pytest.fixture
def query(
    worker_process: WorkerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Query:
    """Runs `lumigrad query` in this process, in a folder with a box; --spheres is spheres.npy by default."""
    monkeypatch.chdir(tmp_path)
    shape = box(SIZE)
    Mesh(shape.vertices, shape.faces).save(tmp_path / "box.obj")

    def run(*arguments: str, mesh: str = "box.obj") -> subprocess.CompletedProcess[str]:
        given = () if "--spheres" in arguments else ("--spheres", "spheres.npy")
        command = ["query", mesh, *given, *arguments, "--target", worker_process.target]
        try:
            status = main(command)
        except SystemExit as error:
            status = int(str(error.code))
        told = capsys.readouterr()
        return subprocess.CompletedProcess(command, status, told.out, told.err)

    return run
