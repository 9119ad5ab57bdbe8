"""Workers with a spool, and operations on them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Client, SceneHandle
from lumigrad.server.storage.spool import TenantSpool
from lumigrad.server.storage.spool_files import Head
from support.workers.client_load import CAMERA
from support.workers.slow_render import wait_for
from support.workers.worker import WorkerProcess, worker

PROBES = np.array([[0.0, 0.0, 1.5, 0.1], [0.0, 3.0, 0.75, 0.1]])


def heads(tenant_spool: TenantSpool, kind: str) -> list[Head]:
    """The heads of all blobs of a kind, the least recently used first."""
    items = tenant_spool._spool.index.items(f"{tenant_spool.owner}/{kind}")
    found = (tenant_spool.head_at(kind, key.rpartition("/")[2]) for key, _ in items)
    return [head for head in found if head is not None]


@contextmanager
def spooling(folder: Path, *options: str, **settings: Any) -> Iterator[WorkerProcess]:
    with worker("--device", "cpu", "--spool", str(folder), *options, **{"supervised": True, **settings}) as process:
        yield process


def spooling_fixture(*options: str, **settings: Any) -> Any:
    """Returns a fixture: a worker with a spool, these options and settings, which the tests of a module share."""

    @pytest.fixture(scope="module")
    def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
        with spooling(tmp_path_factory.mktemp("spool"), *options, **settings) as process:
            yield process

    return shared


def wait_until_written(process: WorkerProcess) -> None:
    wait_for(process, "lumigrad_spool_waiting", 0)


def kill(process: WorkerProcess) -> None:
    """Kill the worker, and wait for its replacement."""
    restarts = process.log.count("restarts=")
    os.kill(process.worker_pid, signal.SIGKILL)
    process.wait_for_log("restarts=", count=restarts + 1)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]


def shown(client: Client, scene: SceneHandle) -> np.ndarray:
    """A scene's image, or distances from it."""
    if scene.kind in ("mesh", "world"):
        return client.query(scene, PROBES).distance
    return client.render(scene, CAMERA, **({"max_depth": 10} if scene.kind == "spheres" else {})).color


def without_copy(client: Client, scene: SceneHandle) -> SceneHandle:
    """A handle without the client's copy of the scene."""
    return client.get(scene.scene_id)


def elsewhere(mount: str) -> tuple[str, ...]:
    """Statements for a worker that sees other mounts."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "sh", "-c", mount], check=False).returncode:
        pytest.skip("this system does not let us mount anything")
    return (
        "import ctypes, subprocess",
        "assert ctypes.CDLL(None).unshare(0x20000) == 0, 'no mounts of its own'",
        f"subprocess.run(['sh', '-ec', {'mount --make-rprivate /; ' + mount!r}], check=True)",
    )
