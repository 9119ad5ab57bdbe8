"""`lumigrad fit` and a worker that is killed at any moment: the scene is the same, bit for bit."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from lumigrad.client.cli import main
from lumigrad.client.training.trainer import Trainer
from support.workers.forks import ForkedProcess, lumigrad
from support.workers.spooling import spooling
from support.workers.worker import WorkerProcess

STEPS, EVERY = 64, 8
OPTIONS = ("--steps", f"{STEPS}", "--every", f"{EVERY}", "--snapshot-every", "6", "--sh-degree", "1", "--hold-out", "4")
_NUMBER = re.compile(r"-([0-9a-f]{16})\b")
# A signal, and what happens just before it is sent.
Moment = tuple[signal.Signals, str]
KILL, TERMINATE = signal.SIGKILL, signal.SIGTERM


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("capture") / "vase"
    assert lumigrad("sample", "capture", str(folder), "--photographs", "9", "--size", "80x60").returncode == 0
    return folder


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spool")


@pytest.fixture(scope="module")
def process(spool: Path) -> Iterator[WorkerProcess]:
    # Each crash is soon forgotten.
    with spooling(spool, "--crash-seconds", "0.1") as started:
        yield started


@pytest.fixture(scope="module")
def undisturbed(capture: Path, process: WorkerProcess, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The scene that a fit gives if nothing goes wrong."""
    scene = tmp_path_factory.mktemp("undisturbed") / "scene.ply"
    done = lumigrad("fit", str(capture), "-o", str(scene), "--target", process.target, *OPTIONS, timeout=200)
    assert done.returncode == 0, done.stderr
    return scene.read_bytes()


def _events(scene: Path, spool: Path, process: WorkerProcess) -> dict[str, Callable[[], object]]:
    """Observations of a fit from outside, which can be counted or compared, by name."""
    folder = scene.with_suffix(".fit")
    return {
        "checkpoint": lambda: (folder / "checkpoint.json").exists(),
        "preview": lambda: len(list(folder.glob("preview_*"))),
        "snapshot": lambda: _newest(spool, "training"),
        "scene": lambda: _newest(spool, "scene"),
        "render": lambda: process.log.count("method=RenderService.Render"),
    }


def _newest(spool: Path, kind: str) -> str:
    """The number of the newest file of a kind: it is being written, or has just got its name."""
    names = (path.name for path in spool.rglob("*") if path.parent.name == kind)
    return max((found[1] for found in map(_NUMBER.search, names) if found), default="")


def _disturb(
    command: list[str], scene: Path, spool: Path, process: WorkerProcess, moments: Sequence[Moment]
) -> Sequence[Moment]:
    """Run a fit, and end its worker at each moment in turn; returns the moments for which it was over too soon."""
    events, missed = _events(scene, spool, process), list(moments)
    fit = ForkedProcess([*command, "-o", str(scene)])
    until = time.monotonic() + 200
    try:
        for number, event in moments:
            before = events[event]()
            while events[event]() == before and fit.poll() is None:
                assert time.monotonic() < until, f"it waits for {event}"
                time.sleep(0.001)
            if fit.poll() is not None:
                break
            restarts = process.log.count("worker started")
            os.kill(process.worker_pid, number)
            process.wait_for_log("worker started", count=restarts + 1)
            missed.remove((number, event))
        said, complaint = fit.communicate(timeout=200)
    finally:
        if fit.poll() is None:
            fit.kill()
    assert fit.returncode == 0, complaint[-3000:]
    assert f"{STEPS} of {STEPS} steps" in said
    assert len(list(scene.with_suffix(".fit").glob("preview_*"))) == STEPS // EVERY
    return missed


def _check_disturbed(
    command: list[str],
    folder: Path,
    spool: Path,
    process: WorkerProcess,
    moments: Sequence[Moment],
    undisturbed: bytes,
) -> None:
    """Each scene is the same, with as many fits as the moments need: on a busy machine, they are noticed late."""
    for number in range(30):
        scene = folder / f"scene{number}.ply"
        moments = _disturb(command, scene, spool, process, moments)
        assert scene.read_bytes() == undisturbed
        if not moments:
            return
    pytest.fail(f"all fits ended before {moments}")


@pytest.mark.parametrize(
    "moments",
    [
        [(KILL, "checkpoint"), (KILL, "snapshot"), (KILL, "preview")],
        [(TERMINATE, "preview"), (KILL, "scene"), (TERMINATE, "snapshot"), (KILL, "render")],
    ],
    ids=lambda moments: "-".join(event for _, event in moments),
)
def test_a_fit_survives_its_worker_whenever_that_is_killed(
    capture: Path, spool: Path, process: WorkerProcess, undisturbed: bytes, tmp_path: Path, moments: Sequence[Moment]
) -> None:
    command = ["fit", str(capture), "--target", process.target, *OPTIONS]
    _check_disturbed(command, tmp_path, spool, process, moments, undisturbed)


def test_without_snapshots_a_fit_survives_a_worker_that_is_stopped(
    capture: Path, spool: Path, process: WorkerProcess, undisturbed: bytes, tmp_path: Path
) -> None:
    options = [option for option in OPTIONS if option not in ("--snapshot-every", "6")]
    command = ["fit", str(capture), "--target", process.target, *options]
    _check_disturbed(command, tmp_path, spool, process, [(TERMINATE, "preview"), (TERMINATE, "scene")], undisturbed)


def test_no_checkpoint_names_a_training_that_has_ended(
    capture: Path, process: WorkerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `--resume` of a fit that is killed between the two would say that the worker has lost the training.
    scene, close, found = tmp_path / "scene.ply", Trainer.close, []

    def watched(trainer: Trainer, *, finish: bool) -> None:
        found.append((finish, scene.exists(), (scene.with_suffix(".fit") / "checkpoint.json").exists()))
        close(trainer, finish=finish)

    monkeypatch.setattr(Trainer, "close", watched)
    assert main(["fit", str(capture), "-o", str(scene), "--target", process.target, *OPTIONS]) == 0
    assert found == [(True, True, False)]


def test_a_worker_that_is_missing_is_reported_soon(capture: Path, tmp_path: Path) -> None:
    done = lumigrad("fit", str(capture), "-o", str(tmp_path / "scene.ply"), "--target", "localhost:1", timeout=100)
    assert done.returncode == 4
