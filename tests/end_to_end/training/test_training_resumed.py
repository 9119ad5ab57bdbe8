"""Trainings that an error or the end of a process has left, and what a client that resumes them gets."""

from __future__ import annotations

import asyncio
import gc
import re
import shutil
import signal
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Client, TrainingHeld, TrainingLost
from lumigrad.client.aio import AsyncClient
from lumigrad.client.training import Trainer
from support.fault_proxy import FaultProxy
from support.training.scenes import Lesson, gaussian_lesson
from support.workers.slow_render import wait_until
from support.workers.worker import WorkerProcess, worker

LESSON: Lesson = gaussian_lesson()
RATES = {"means": 2e-3, "opacities": 2e-2, "sh0": 5e-3}


def resumed(client: Client, said: str) -> Trainer:
    """The training that a log message says how to resume, resumed by that very call."""
    (call,) = re.findall(r"client\.resume_trainer\('\w+', '\w+'\)", said)
    found = eval(call, {"client": client})
    assert isinstance(found, Trainer)
    return found


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_that_leaves_the_block_keeps_the_training(
    error: type[BaseException], client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        pytest.raises(error),
        client.trainer(LESSON.scene, LESSON.cameras, LESSON.wrapped(client), rates=RATES) as trainer,
    ):
        list(trainer.steps(3))
        raise error
    with resumed(client, caplog.text) as again:
        assert again.training_id == trainer.training_id
        assert again.step().number == 3
    # The block ended as it should.
    with pytest.raises(TrainingLost, match=r"ended, expired \(--training-seconds\) or never existed"):
        client.resume_trainer(trainer.training_id, trainer.lease)
    assert caplog.text.count("resume_trainer") == 1
    with client.trainer(LESSON.scene, LESSON.cameras, LESSON.wrapped(client), rates=RATES) as trainer:
        assert trainer.step().number == 0


@pytest.mark.parametrize("is_awaited", [False, True])
def test_an_error_keeps_the_training_of_coroutines_too(
    is_awaited: bool, running: WorkerProcess, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    target_images = LESSON.wrapped(client)

    async def main() -> None:
        async with AsyncClient(running.target) as own:
            begun = own.trainer(LESSON.scene, LESSON.cameras, target_images, rates=RATES)
            async with await begun if is_awaited else begun as trainer:
                await trainer.step()
                raise RuntimeError

    with pytest.raises(RuntimeError):
        asyncio.run(main())
    with resumed(client, caplog.text) as again:
        assert again.step().number == 1


def test_a_trainer_that_nobody_closed_holds_its_scene_no_longer_than_a_lost_client(client: Client) -> None:
    """The handle, its call and its thread end with the last reference, even while steps are in flight."""
    threads = threading.active_count()
    with worker("--device", "cpu", "--training-seconds", "1") as process, Client(process.target, retry_s=60) as own:
        arguments = own.put(LESSON.scene), LESSON.cameras, LESSON.wrapped(client)
        trainer = own.trainer(*arguments, rates=RATES)
        next(trainer.steps(20))
        with pytest.warns(ResourceWarning, match=f"training {trainer.training_id} was not closed: the worker keeps"):
            del trainer
            gc.collect()
        while True:
            with suppress(TrainingHeld), own.trainer(*arguments, rates=RATES) as again:
                assert again.step().number == 0
                break
    wait_until(lambda: threading.active_count() <= threads)


@pytest.mark.filterwarnings("error")
def test_a_trainer_that_was_closed_ends_without_a_word(client: Client) -> None:
    trainer = client.trainer(LESSON.scene, LESSON.cameras, LESSON.wrapped(client), rates=RATES)
    lease = trainer.training_id, trainer.lease
    trainer.close(finish=False)
    del trainer
    with client.resume_trainer(*lease) as again:
        again.step()
    del again
    gc.collect()


def test_a_trainer_that_was_closed_stays_so(client: Client) -> None:
    with client.trainer(LESSON.scene, LESSON.cameras, LESSON.wrapped(client), rates=RATES) as trainer:
        trainer.step()
        trainer.close(finish=False)
    with client.resume_trainer(trainer.training_id, trainer.lease) as again:
        assert again.step().number == 1


def test_the_cadence_of_snapshots_goes_on(tmp_path: Path) -> None:
    """This includes steps with a custom loss, before which the client has to rest."""
    with worker("--device", "cpu", "--spool", str(tmp_path)) as process, Client(process.target) as client:
        trainer = client.trainer(LESSON.scene, LESSON.cameras, rates=RATES, snapshot_every=3)
        trainer.close(finish=False)
        again = client.resume_trainer(trainer.training_id, trainer.lease)
        for batch in again.batches(7, in_flight=3):
            batch.apply(color=batch.color)
        # The client keeps what it has sent from this step on.
        assert again._stream._kept_from == 6
        again.close(finish=False)
        # A client that resumes the training has nothing to send again, so there is a snapshot.
        with client.resume_trainer(trainer.training_id, trainer.lease) as last:
            assert (last.step_number, last.snapshot_step) == (7, 7)


@pytest.mark.parametrize("has_own", [False, True])
def test_a_worker_that_lost_the_photographs_gets_them_again(has_own: bool, tmp_path: Path) -> None:
    """The client that resumes the training is not the one that stored the photographs."""
    options = ("--device", "cpu", "--spool", str(tmp_path))
    with worker(*options) as process, FaultProxy(process.target) as proxy, Client(process.target) as first:
        target_images = LESSON.wrapped(first)
        trainer = first.trainer(LESSON.scene, LESSON.cameras, target_images, rates=RATES, snapshot_every=1)
        losses = [step.loss for step in trainer.steps(2, views=[[0], [1]])]
        trainer.close(finish=False)
        with Client(proxy.target, retry_s=60, lane="stream") as second:
            given = {"target_images": target_images} if has_own else {}
            again = second.resume_trainer(trainer.training_id, trainer.lease, **given)
            assert again.step([2]).number == 2
            process.signal(signal.SIGKILL)
            process.wait()
            for folder in tmp_path.glob("*/*/scene"):
                shutil.rmtree(folder)
            with worker(*options) as other:
                proxy.lead_to(other.target)
                steps = list(again.steps(2, views=[[0], [1]]))
                assert [step.number for step in steps] == [3, 4] and again.resumed == 1
                assert np.isfinite(losses).all() and steps[0].loss < losses[0]
                again.close()
