"""SIGTERM suspends trainings at once: another worker with their spool resumes them, and clients notice nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Client, Gaussians, TrainingLost
from lumigrad.client.training import Trainer
from support.training.scenes import Lesson, gaussian_lesson
from support.workers.load import Load
from support.workers.spooling import spooling
from support.workers.worker import WorkerProcess, replaceable_worker, worker

RATES = {"means": 2e-3, "quats": 1e-3, "scales": 5e-3, "opacities": 2e-2, "sh0": 2e-3}
STEPS = 30
LESSON: Lesson = gaussian_lesson()
TOKENS = {name: f"{name}-0123456789abcdef" for name in ("anna", "ben")}
# Longer than a restart; a drain that waits for trainings takes this long.
DRAIN_SECONDS = 240


def _trainer(client: Client, scene: Gaussians = LESSON.scene, **options: int) -> Trainer:
    return client.trainer(scene, LESSON.cameras, LESSON.wrapped(client), rates=RATES, seed=5, **options)


def _terminate(process: WorkerProcess) -> None:
    """Have the supervisor's worker replaced, as in a rolling update; returns when it has ended.

    Without the wait, all steps could be done on a busy machine before the worker notices the signal.
    """
    ended = process.log.count("worker ended")
    os.kill(process.worker_pid, signal.SIGTERM)
    process.wait_for_log("worker ended", count=ended + 1)


def _assert_equal(found: object, expected: object) -> None:
    assert isinstance(found, Gaussians) and isinstance(expected, Gaussians)
    for name, array in found.tensors.items():
        assert np.array_equal(array, expected.tensors[name]), name


def _fitted(trainer: Trainer, at_step: Callable[[int], object] = lambda _: None) -> tuple[list[float], object]:
    losses = []
    for step in trainer.steps(STEPS, in_flight=8):
        assert step.number == len(losses)
        losses.append(step.loss)
        at_step(step.number)
    return losses, trainer.scene()


@pytest.mark.parametrize("snapshot_every", [0, 7])
def test_no_step_is_lost_or_made_twice(tmp_path: Path, snapshot_every: int) -> None:
    with (
        spooling(tmp_path, "--drain-seconds", str(DRAIN_SECONDS)) as process,
        Client(process.target, timeout_s=240, retry_s=120) as client,
    ):
        with _trainer(client) as trainer:
            expected = _fitted(trainer)
        with _trainer(client, snapshot_every=snapshot_every) as trainer:
            started = time.monotonic()
            found = _fitted(trainer, lambda number: _terminate(process) if number in (4, 17) else None)
            assert trainer.resumed == 2
            assert time.monotonic() - started < DRAIN_SECONDS
        assert found[0] == expected[0]
        _assert_equal(found[1], expected[1])
        # The steps after the last snapshot were not made again.
        assert process.log.count("worker ended") == process.log.count("reason=stopped") == 2
        assert "stopped with calls in progress" not in process.log


@pytest.mark.parametrize("in_flight", [1, 3])
def test_steps_that_wait_for_gradients_go_on(tmp_path: Path, in_flight: int) -> None:
    results = []
    with spooling(tmp_path, "--drain-seconds", str(DRAIN_SECONDS)) as process:
        for is_drained in (False, True):
            with Client(process.target, timeout_s=240, retry_s=120) as client, _trainer(client) as trainer:
                done = []
                for batch in trainer.batches(10, in_flight=in_flight):
                    if is_drained and batch.images.number == 4:
                        _terminate(process)
                        process.wait_for_log("restarts=1")
                    done.append(batch.apply(color=batch.color - 0.5))
                assert [step.result().number for step in done] == list(range(10))
                assert trainer.resumed == is_drained
                results.append(trainer.scene())
    if in_flight == 1:
        # Later images are rendered anew, after the steps that were applied meanwhile.
        _assert_equal(*results)


def test_trainings_of_all_tenants_are_kept_held_or_not(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("".join(f"{name}: {token}\n" for name, token in TOKENS.items()))
    options = ("--spool", str(tmp_path / "spool"), "--tokens-file", str(tmp_path / "tokens"))
    with replaceable_worker("--device", "cpu", "--drain-seconds", str(DRAIN_SECONDS), *options) as (process, replace):
        clients = [Client(process.target, token=token, timeout_s=240, retry_s=120) for token in TOKENS.values()]
        trainers = [_trainer(client) for client in clients]
        left = _trainer(clients[0], gaussian_lesson(seed=1).scene, snapshot_every=100)
        for trainer in (*trainers, left):
            list(trainer.steps(3))
        left.close(finish=False)
        published = trainers[0].publish()
        render = {"camera": LESSON.cameras[0], "timeout_s": 240}
        started = time.monotonic()
        with Load([lambda: clients[1].render(LESSON.scene, **render)], rate=20) as load:
            load.wait_for_progress()
            replace()
        assert set(load.outcomes) == {"ok"}
        assert time.monotonic() - started < DRAIN_SECONDS
        for trainer in trainers:
            assert trainer.step().number == 3
        assert trainers[0].publish().version == published.version + 1
        with pytest.raises(TrainingLost):
            clients[1].resume_trainer(left.training_id, left.lease)
        with clients[0].resume_trainer(left.training_id, left.lease) as again:
            assert again.step().number == 3
        for trainer in trainers:
            trainer.close()
        for client in clients:
            client.close()


def test_without_a_spool_the_log_says_what_is_lost() -> None:
    with (
        worker("--device", "cpu", "--drain-seconds", "240", is_balanced=False) as process,
        Client(process.target, retry_s=0) as client,
    ):
        trainer = _trainer(client)
        list(trainer.steps(2))
        process.signal(signal.SIGTERM)
        process.wait_for_log("trainings will be lost")
        # The training goes on until the drain ends.
        assert trainer.step().number == 2
        trainer.close(finish=False)
        assert process.wait() == 0
