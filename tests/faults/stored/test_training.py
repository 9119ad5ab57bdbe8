"""Trainings survive broken connections, killed workers, and clients that vanish."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Client, Gaussians, TrainingHeld, TrainingLost, Unavailable
from lumigrad.client.training import StepResult, Trainer, stream
from lumigrad.client.training.exchange import Request, TrainReply
from lumigrad.protos.tensors import PayloadReader
from lumigrad.v1 import training_pb2
from support.fault_proxy import FaultProxy
from support.training.scenes import Lesson, gaussian_lesson, sphere_lesson
from support.workers.slow_render import wait_until
from support.workers.spooling import kill
from support.workers.worker import WorkerProcess, worker

RATES = {"means": 2e-3, "quats": 1e-3, "scales": 5e-3, "opacities": 2e-2, "sh0": 2e-3, "sh_rest": 1e-4}
STEPS = 40
LESSON: Lesson = gaussian_lesson()


@pytest.fixture(scope="module")
def undisturbed() -> tuple[list[StepResult], Gaussians]:
    """The results of the steps without faults."""
    with worker("--device", "cpu") as process, Client(process.target) as client, _trainer(client) as trainer:
        return list(trainer.steps(STEPS)), _scene(trainer)


@pytest.fixture
def spooled(tmp_path: Path) -> Iterator[WorkerProcess]:
    """A worker under a supervisor, with a spool."""
    with worker("--device", "cpu", "--spool", str(tmp_path / "spool"), supervised=True) as process:
        yield process


def _trainer(client: Client, **options: int) -> Trainer:
    return client.trainer(LESSON.scene, LESSON.cameras, LESSON.wrapped(client), rates=RATES, seed=5, **options)


def _scene(trainer: Trainer) -> Gaussians:
    scene = trainer.scene()
    assert isinstance(scene, Gaussians)
    return scene


def _assert_same(found: tuple[list[StepResult], Gaussians], expected: tuple[list[StepResult], Gaussians]) -> None:
    assert [step.number for step in found[0]] == list(range(STEPS))
    assert [step.views for step in found[0]] == [step.views for step in expected[0]]
    assert [step.loss for step in found[0]] == [step.loss for step in expected[0]]
    for name, array in found[1].tensors.items():
        assert np.array_equal(array, expected[1].tensors[name]), name


def test_a_killed_worker_goes_on_from_its_snapshot_bit_for_bit(
    spooled: WorkerProcess, undisturbed: tuple[list[StepResult], Gaussians]
) -> None:
    with Client(spooled.target, retry_s=60) as client, _trainer(client, snapshot_every=7) as trainer:
        done = []
        for step in trainer.steps(STEPS, in_flight=4):
            done.append(step)
            if step.number in (11, 25):
                os.kill(spooled.worker_pid, signal.SIGKILL)
        assert trainer.resumed == 2
        _assert_same((done, _scene(trainer)), undisturbed)


def test_a_training_of_spheres_survives_kills_as_one_of_gaussians_does(spooled: WorkerProcess) -> None:
    lesson = sphere_lesson()
    settings = {"gamma": 0.05, "rates": {"positions": 2e-3, "colors": 1e-2, "radii": 5e-3, "opacities": 2e-2}}
    results = []
    with Client(spooled.target, retry_s=60) as client:
        photographs = lesson.wrapped(client, gamma=0.05)
        for kills in ((), (5, 12)):
            begin = lesson.scene, lesson.cameras, photographs
            with client.trainer(*begin, seed=5, snapshot_every=4, **settings) as trainer:
                losses = []
                for step in trainer.steps(20, in_flight=4):
                    losses.append(step.loss)
                    if step.number in kills:
                        os.kill(spooled.worker_pid, signal.SIGKILL)
                assert trainer.resumed == len(kills)
                results.append((losses, [array.tobytes() for array in trainer.scene().tensors.values()]))
    assert results[0] == results[1]


def test_a_killed_worker_without_a_spool_has_lost_the_training(undisturbed: object) -> None:
    with worker("--device", "cpu", supervised=True) as process, Client(process.target, retry_s=60) as client:
        trainer = _trainer(client)
        steps = trainer.steps(STEPS, in_flight=1)
        next(steps)
        os.kill(process.worker_pid, signal.SIGKILL)
        with pytest.raises(TrainingLost, match="no snapshot of it"):
            list(steps)


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_broken_connection_costs_no_step(direction: str, undisturbed: tuple[list[StepResult], Gaussians]) -> None:
    with (
        worker("--device", "cpu") as process,
        FaultProxy(process.target) as proxy,
        Client(proxy.target) as client,
        _trainer(client) as trainer,
    ):
        done = []
        for step in trainer.steps(STEPS, in_flight=8):
            done.append(step)
            if step.number % 10 == 3:
                getattr(proxy, direction).cut(after=20 * step.number)
        assert trainer.resumed >= 1
        _assert_same((done, _scene(trainer)), undisturbed)


def test_a_step_that_ends_its_worker_each_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    class Breaking:
        """A call in which only the start is answered."""

        def __init__(self, *_: object) -> None:
            begun.append(self)
            self._is_started = False

        def send(self, *_: object, **__: object) -> None:
            pass

        def receive(self, *_: object) -> TrainReply:
            if self._is_started:
                raise Unavailable("the worker was lost")
            self._is_started = True
            return TrainReply(training_pb2.TrainReply(started=training_pb2.TrainingStarted()), PayloadReader())

        def close(self, **_: object) -> None:
            pass

    monkeypatch.setattr(stream, "Exchange", Breaking)
    connection: Any = SimpleNamespace(check_own=lambda: None, is_parents=False)
    found = stream.TrainingStream(connection, "", 60.0, 10.0, lambda call: None)
    found.start(training_pb2.TrainingStart())
    found.send(Request(training_pb2.TrainRequest(step=training_pb2.Step()), number=0))
    with pytest.raises(Unavailable, match="the worker was lost"):
        found.receive()
    assert 3 <= len(begun) <= 10


def test_own_losses_survive_a_killed_worker_too(spooled: WorkerProcess) -> None:
    results = []
    for kill_at in (-1, 9):
        with Client(spooled.target, retry_s=60) as client:
            target_images = [image / np.float32(255) for image in LESSON.target_images(client)]
            with client.trainer(LESSON.scene, LESSON.cameras, rates=RATES, seed=5, snapshot_every=4) as trainer:
                for batch in trainer.batches(16):
                    if batch.images.number == kill_at:
                        os.kill(spooled.worker_pid, signal.SIGKILL)
                    batch.apply(color=2 * (batch.color - np.stack([target_images[view] for view in batch.views])))
                assert trainer.resumed == (kill_at > 0)
                results.append(_scene(trainer))
    for name, array in results[0].tensors.items():
        assert np.array_equal(array, results[1].tensors[name]), name


def test_a_client_that_comes_back_finds_its_training(spooled: WorkerProcess) -> None:
    with Client(spooled.target, retry_s=60) as client:
        trainer = _trainer(client)
        list(trainer.steps(5))
        trainer.close(finish=False)
        with client.resume_trainer(trainer.training_id, trainer.lease) as again:
            assert again.step_number == 5
            assert again.step().number == 5
        with pytest.raises(TrainingLost):
            client.resume_trainer(trainer.training_id, trainer.lease)
        with pytest.raises(TrainingLost):
            client.resume_trainer(trainer.training_id, "a guess")


@pytest.mark.parametrize("snapshot_every", [4, 100])
@pytest.mark.parametrize("is_own", [False, True])
def test_a_training_that_another_client_resumed_outlives_its_worker(
    spooled: WorkerProcess, is_own: bool, snapshot_every: int
) -> None:
    """The second client has not made the first steps and cannot repeat them."""

    def make(trainer: Trainer, count: int) -> list[int]:
        if is_own:
            return [batch.apply(color=batch.color - 0.5).number for batch in trainer.batches(count)]
        return [step.number for step in trainer.steps(count)]

    scenes = []
    for is_disturbed in (False, True):
        with Client(spooled.target, retry_s=60) as first, Client(spooled.target, retry_s=60) as second:
            images = [] if is_own else [LESSON.wrapped(first)]
            options: dict[str, Any] = {"rates": RATES, "seed": 5, "snapshot_every": snapshot_every}
            trainer = first.trainer(LESSON.scene, LESSON.cameras, *images, **options)
            assert make(trainer, 5) == [0, 1, 2, 3, 4]
            if is_disturbed:
                trainer = second.resume_trainer(trainer.training_id, trainer.lease)
                assert make(trainer, 2) == [5, 6]
                kill(spooled)
            assert make(trainer, 10 - trainer.step_number)[-1] == 9
            scenes.append(_scene(trainer))
            assert trainer.publish().version > 1
            trainer.close()
    for name, array in scenes[0].tensors.items():
        assert np.array_equal(array, scenes[1].tensors[name]), name


def test_a_former_holder_neither_takes_a_training_back_nor_ends_it(spooled: WorkerProcess) -> None:
    with Client(spooled.target) as first, Client(spooled.target) as second:
        old = _trainer(first, snapshot_every=2)
        steps = old.steps(STEPS, in_flight=4)
        next(steps)
        with second.resume_trainer(old.training_id, old.lease) as new:
            with pytest.raises(TrainingHeld, match="another client"):
                list(steps)
            old.close()
            assert [step.number for step in new.steps(4)] == list(range(new.step_number - 4, new.step_number))
            new.close(finish=False)
        os.kill(spooled.worker_pid, signal.SIGKILL)
        with Client(spooled.target, retry_s=60).resume_trainer(old.training_id, old.lease) as again:
            assert again.snapshot_step is not None


@pytest.mark.parametrize("in_flight", [1, 2, 4])
@pytest.mark.parametrize("is_applied_before", [False, True])
def test_gradients_of_a_former_holder_are_refused(
    spooled: WorkerProcess, in_flight: int, is_applied_before: bool
) -> None:
    with Client(spooled.target) as first, Client(spooled.target) as second:
        old = first.trainer(LESSON.scene, LESSON.cameras, rates=RATES)
        batches = old.batches(4, in_flight=in_flight)
        batch = next(batches)
        if is_applied_before:
            batch.apply(color=batch.color)
            batch = next(batches)
        exchange = old._stream._exchange
        assert exchange is not None
        new = second.resume_trainer(old.training_id, old.lease)
        wait_until(lambda: exchange.error is not None, "the end of the call")
        with pytest.raises(TrainingHeld, match="another client"):
            batch.apply(color=batch.color)
        with pytest.raises(TrainingHeld, match="another client"):
            next(old.batches(1))
        assert new.step_number <= is_applied_before
        new.close()


def test_a_lost_reply_to_the_start_keeps_nobody_from_the_scene() -> None:
    """The connection ends at any point of the replies to a start."""
    with worker("--device", "cpu") as process, Client(process.target) as near:
        scene = near.put(LESSON.scene)
        target_images = [near.put(image) for image in LESSON.wrapped(near)]
        for position in range(0, 800, 80):
            with FaultProxy(process.target) as proxy, Client(proxy.target, lane="stream") as client:
                client.list()
                proxy.down.cut(after=position)
                with client.trainer(scene, LESSON.cameras, target_images, rates=RATES) as trainer:
                    assert trainer.step().number == 0


@pytest.mark.parametrize("finish", [True, False])
def test_a_training_that_ends_as_it_should_is_written_down_with_its_steps_and_bytes(finish: bool) -> None:
    with worker("--device", "cpu") as process, Client(process.target) as client:
        trainer = _trainer(client)
        list(trainer.steps(5))
        trainer.close(finish=finish)
        process.wait_for_log("method=TrainingService.Train")
        (line,) = [line for line in process.log.splitlines() if "method=TrainingService.Train" in line]
        assert "code=OK" in line
        fields = {name: int(value) for name, value in re.findall(r"(received|sent|steps)=(\d+)", line)}
        assert fields["steps"] == 5
        assert fields["received"] > 0
        assert fields["sent"] > 0
        assert process.metric("lumigrad_calls_total", method="TrainingService.Train", code="OK") == 1
        labels = {"method": "TrainingService.Train", "direction": "sent"}
        assert process.metric("lumigrad_payload_bytes_total", **labels) == fields["sent"]
