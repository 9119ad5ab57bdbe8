"""A training can neither hold its scene for ever nor take more memory than the device has."""

from __future__ import annotations

import numpy as np
import pytest

from lumigrad.client import Camera, Client, SceneNotFound
from lumigrad.client.errors import ResourceExhausted
from support.training.scenes import Lesson, gaussian_lesson
from support.workers.worker import worker

# Half a mebibyte each.
LESSONS = [gaussian_lesson(2000, degree=3, seed=seed) for seed in range(5)]
LESSON: Lesson = LESSONS[0]
RATES = {"means": 1e-4, "sh0": 1e-3}


def test_steps_go_on_when_the_scene_was_deleted(client: Client) -> None:
    handle, target_images = client.put(LESSON.scene), LESSON.target_images(client)
    trainer = client.trainer(handle, LESSON.cameras, target_images, rates=RATES)
    first = list(trainer.steps(3))
    client.delete(handle)
    assert trainer.step().number == 3
    with pytest.raises(SceneNotFound):
        trainer.publish()
    with client.resume_trainer(trainer.training_id, trainer.lease) as again:
        assert again.step_number == 4
        assert again.step(first[0].views).loss < first[0].loss


def test_a_scene_in_training_is_evicted_after_others() -> None:
    """The worker has room for two of the scenes."""
    photographs = [np.full((32, 40, 3), 128, np.uint8) for _ in LESSON.cameras]
    options = ("--scene-mib", "1", "--max-payload-mib", "1")
    with worker("--device", "cpu", *options) as process, Client(process.target) as client:
        handle, other = client.put(LESSON.scene), client.put(LESSONS[1].scene)
        with client.trainer(handle, LESSON.cameras, photographs, rates=RATES) as trainer:
            trainer.step()
            client.put(LESSONS[2].scene)
            assert {info.scene_id for info in client.list()}.isdisjoint({other.scene_id})
            assert trainer.publish().scene_id == handle.scene_id
            for lesson in LESSONS[3:]:
                client.put(lesson.scene)
            # The photographs are scenes as well, but the training holds them itself.
            assert trainer.step().number == 1
            with pytest.raises(SceneNotFound):
                trainer.publish()


def test_a_step_that_the_device_cannot_hold_is_refused() -> None:
    large = Camera.look_at((0, 0, 4), (0, 0, 0), width=1400, height=1000, fov_degrees=45)
    cameras = [LESSON.cameras[0], large]
    photographs = [np.full((camera.height, camera.width, 3), 128, np.uint8) for camera in cameras]
    with worker("--device", "cpu", "--device-memory-mib", "22") as process, Client(process.target) as client:
        trainer = client.trainer(LESSON.scene, cameras, photographs, rates=RATES)
        assert trainer.step([0]).number == 0
        with pytest.raises(ResourceExhausted, match=r"takes about \d+ bytes of the device's memory"):
            trainer.step([1])
        with client.resume_trainer(trainer.training_id, trainer.lease) as trainer:
            assert trainer.step([0]).number == 1
        # The idle training takes what this one would need, so a client with time would try again.
        with (
            Client(process.target, retry_s=0) as hasty,
            hasty.trainer(LESSON.scene, cameras, rates=RATES) as trainer,
        ):
            (result,) = [batch.apply(color=batch.color) for batch in trainer.batches(1, views=[[0]])]
            assert result.number == 0
            with pytest.raises(ResourceExhausted, match=r"takes about [1-9]\d+ bytes of the device's memory"):
                next(trainer.batches(1, views=[[1]]))
