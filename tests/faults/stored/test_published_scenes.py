"""Trainings publish despite killed workers, resumptions and other clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Client, Gaussians, SceneHandle, SceneNotFound, VersionMismatch
from lumigrad.client.errors import ResourceExhausted, TrainingLost
from lumigrad.client.training import Trainer
from support.calls.raw_calls import RawClient
from support.calls.raw_training import RawTraining, start_of, taken_up
from support.training.scenes import Lesson, gaussian_lesson
from support.workers.client_load import client_fixture
from support.workers.spooling import kill, spooling, wait_until_written
from support.workers.worker import WorkerProcess

RATES = {"means": 2e-3, "scales": 5e-3, "opacities": 2e-2, "sh0": 2e-3}
LESSON: Lesson = gaussian_lesson()


@pytest.fixture(scope="module")
def spooled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """A worker under a supervisor, with a spool."""
    with spooling(tmp_path_factory.mktemp("spool"), "--crash-seconds", "0.1") as process:
        yield process


client = client_fixture("spooled", retry_s=60)


def _trainer(client: Client, scene: Gaussians | SceneHandle = LESSON.scene, **options: int) -> Trainer:
    return client.trainer(scene, LESSON.cameras, LESSON.wrapped(client), rates=RATES, seed=5, **options)


def _equal(scene: object, other: object) -> bool:
    assert isinstance(scene, Gaussians) and isinstance(other, Gaussians)
    return all(np.array_equal(array, other.tensors[name]) for name, array in scene.tensors.items())


@pytest.mark.parametrize("snapshot_every", [1, 7, 100])
def test_a_training_publishes_after_a_crash_whatever_it_had_published(
    spooled: WorkerProcess, client: Client, snapshot_every: int
) -> None:
    with _trainer(client, snapshot_every=snapshot_every) as trainer:
        versions = []
        for count in (3, 9):
            list(trainer.steps(count))
            versions += [trainer.publish().version, trainer.publish().version]
        before = trainer.scene()
        kill(spooled)
        assert _equal(trainer.scene(), before), "the steps since the snapshot are repeated"
        list(trainer.steps(2))
        handle = trainer.publish()
        assert [*versions, handle.version] == [2, 3, 4, 5, 6]
        assert _equal(client.get(handle.scene_id, with_tensors=True).scene, trainer.scene())
        assert trainer.resumed == 1


def test_whoever_resumes_a_training_gets_the_version_that_is_current(spooled: WorkerProcess) -> None:
    raw = RawClient(spooled.target)
    training = RawTraining(raw, start_of(raw, snapshot_every=2))
    started = training.started()
    for number in range(5):
        training.step(number)
        published = training.publish().scene
    assert published.version == 6
    training.close()
    for at_step in ({"at_step": 2}, {}, {"at_step": 4}):
        again = RawTraining(raw, taken_up(started, **at_step))
        resumed = again.started()
        assert resumed.scene.version == published.version
        again.step(resumed.step, views=(2,))
        now = again.publish().scene
        assert now.version == published.version + 1
        assert now.update_id != published.update_id
        published = now
        again.close()
    raw.close()


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_scene_that_somebody_else_has_updated_is_not_overwritten(
    spooled: WorkerProcess, client: Client, is_killed: bool
) -> None:
    with _trainer(client, snapshot_every=2) as trainer:
        list(trainer.steps(4))
        handle = trainer.publish()
        theirs = client.update(client.get(handle.scene_id), opacities=np.full(handle.count, 0.5))
        if is_killed:
            kill(spooled)
        list(trainer.steps(1))
        with pytest.raises(VersionMismatch, match="updated meanwhile"):
            trainer.publish()
        assert client.get(handle.scene_id).version == theirs.version
        # The parameters are still available.
        assert isinstance(trainer.scene(), Gaussians)
        assert trainer.step().number == 5


def test_a_handle_is_valid_until_the_training_publishes(client: Client) -> None:
    handle = client.put(LESSON.scene)
    before = client.render(handle, LESSON.cameras[0]).color
    with _trainer(client, handle) as trainer:
        list(trainer.steps(3))
        fitted = trainer.scene()
        assert not _equal(fitted, LESSON.scene)
        assert np.array_equal(client.render(client.get(handle.scene_id), LESSON.cameras[0]).color, before)
        published = trainer.publish()
        assert _equal(client.get(published.scene_id, with_tensors=True).scene, fitted)
        with pytest.raises(VersionMismatch):
            client.render(SceneHandle(handle.scene_id, 1, "", "gaussians", handle.count, 0), LESSON.cameras[0])


def test_a_deleted_scene_keeps_no_parameters_back(client: Client) -> None:
    with _trainer(client) as trainer:
        list(trainer.steps(2))
        handle = trainer.publish()
        client.delete(handle)
        list(trainer.steps(2))
        remedy = r"client\.put\(trainer\.scene\(\)\)"
        with pytest.raises(
            SceneNotFound, match=f"scene {handle.scene_id}, .* was deleted, evicted or lost; .*{remedy}"
        ) as gone:
            trainer.publish()
        assert gone.value.scene_id == handle.scene_id
        assert _equal(client.get(client.put(trainer.scene()).scene_id, with_tensors=True).scene, trainer.scene())
        assert trainer.step().number == 4


@contextmanager
def _full(process: WorkerProcess) -> Iterator[None]:
    """Fills a spool with snapshots, which are not evicted for others, down to the last few kilobytes."""
    seeds = count(1000)
    with Client(process.target, retry_s=0) as client, ExitStack() as stack:
        for size in (800, 100, 10):
            with suppress(ResourceExhausted):
                while True:
                    scene = gaussian_lesson(size, degree=3, seed=next(seeds)).scene
                    stack.enter_context(client.trainer(scene, LESSON.cameras)).snapshot()
        yield


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """A worker with a spool of 2 MiB."""
    options = ("--max-payload-mib", "1", "--spool-mib", "2", "--crash-seconds", "0.1")
    with spooling(tmp_path_factory.mktemp("small"), *options) as process:
        yield process


def test_a_version_that_no_file_has_room_for_is_not_published(small: WorkerProcess) -> None:
    with Client(small.target, retry_s=0) as client, _trainer(client) as trainer:
        handle = trainer.publish()
        list(trainer.steps(2))
        with _full(small):
            with pytest.raises(ResourceExhausted, match=r"bytes of files in the spool are taken \(--spool-mib\)"):
                trainer.publish()
            assert client.get(handle.scene_id).version == handle.version
            assert client.render(handle, LESSON.cameras[0]).color.any()
        list(trainer.steps(1))
        published = trainer.publish()
        assert published.version == handle.version + 1
        fitted = trainer.scene()
        kill(small)
    with Client(small.target, retry_s=60) as client:
        assert _equal(client.get(published.scene_id, with_tensors=True).scene, fitted)


def test_a_spool_that_cannot_be_written_publishes_nothing(tmp_path: Path) -> None:
    with (
        spooling(tmp_path / "spool", supervised=False) as process,
        Client(process.target, retry_s=60) as client,
        _trainer(client) as trainer,
    ):
        handle = trainer.publish()
        wait_until_written(process)
        (tmp_path / "spool" / "0").rename(tmp_path / "away")
        with pytest.raises(ResourceExhausted, match=r"the spool \(--spool\) cannot be written"):
            trainer.publish()
        assert client.get(handle.scene_id).version == handle.version


def test_steps_that_nobody_can_repeat_are_named_after_a_crash(small: WorkerProcess) -> None:
    """The worker has no room for a snapshot when another client resumes the training."""
    with Client(small.target, retry_s=60) as first, Client(small.target, retry_s=60) as second:
        old = _trainer(first, snapshot_every=100)
        list(old.steps(5))
        with _full(small):
            trainer = second.resume_trainer(old.training_id, old.lease)
            assert [step.number for step in trainer.steps(2)] == [5, 6]
            kill(small)
            for _ in range(2):
                with pytest.raises(TrainingLost, match=r"step 0.*before step 5.*resume_trainer"):
                    trainer.step()
        with pytest.raises(TrainingLost):
            trainer.publish()
        again = second.resume_trainer(trainer.training_id, trainer.lease)
        assert [step.number for step in again.steps(2)] == [0, 1]
        again.close()
