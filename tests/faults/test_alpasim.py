"""AlpaSim's own client modules against a worker that serves, is killed, or is replaced while they render.

    ALPASIM=checkout pytest tests/faults/test_alpasim.py

Their stubs are generated here. Only AlpaSim's compiled module of poses has a stand-in.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lumigrad.client.formats import read_drive_log
from support.driving.alpasim_rollouts import NEEDED
from support.driving.fixtures import street_fixture
from support.driving.scenes import SCENE, Street
from support.workers.worker import replaceable_worker, worker

ROLLOUTS, STEPS, CAMERAS = 4, 200, 3
_MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif("ALPASIM" not in os.environ, reason="ALPASIM names no checkout of NVlabs/alpasim"),
    pytest.mark.skipif(bool(_MISSING), reason=f"AlpaSim's modules need {', '.join(_MISSING)}: install with pip"),
]

place = street_fixture()


def rollouts(target: str, folder: Path, disturb: Callable[[], None]) -> str:
    """Runs all rollouts at once, and disturbs the worker after a quarter of the steps.

    Returns the log of AlpaSim's modules.
    """
    command = [sys.executable, "-m", "support.driving.alpasim_rollouts", os.environ["ALPASIM"], target, SCENE]
    command += [str(ROLLOUTS), str(STEPS), str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path[1:]])}
    with (
        open(folder / "log", "w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment) as process,
    ):
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if len(lines) == ROLLOUTS * STEPS // 4:
                disturb()
        assert process.wait(60) == 0, (folder / "log").read_text()[-5000:]
    assert len(lines) == ROLLOUTS * STEPS + 1
    told = json.loads(lines[-1])
    assert told["pictures"] == ROLLOUTS * STEPS * CAMERAS
    logged = list(read_drive_log(folder / "rollout-0.asl"))
    assert sum(len(requests) for requests in logged) == STEPS * CAMERAS
    return (folder / "log").read_text()


def test_four_rollouts_at_once(place: Street, tmp_path: Path) -> None:
    with worker("--device", "cpu", "--sensorsim", str(place.folder)) as process:
        assert "retrying" not in rollouts(process.target, tmp_path, lambda: None)


def test_a_worker_that_is_killed(place: Street, tmp_path: Path) -> None:
    options = ("--device", "cpu", "--sensorsim", str(place.folder), "--sensorsim-preload")
    with worker(*options, supervised=True, is_balanced=False) as process:
        first = process.worker_pid
        log = rollouts(process.target, tmp_path, lambda: os.kill(first, signal.SIGKILL))
        assert process.worker_pid != first
    # Calls in progress, of one image or several, were repeated.
    assert re.search(r"RPC (batch_)?render_rgb failed with UNAVAILABLE; retrying", log)


def test_a_worker_that_drains(place: Street, tmp_path: Path) -> None:
    """The successor takes the port, as in a container."""
    options = ("--device", "cpu", "--sensorsim", str(place.folder), "--sensorsim-preload", "--lame-duck-seconds", "0")
    with replaceable_worker(*options) as (first, replace):
        rollouts(first.target, tmp_path, replace)
