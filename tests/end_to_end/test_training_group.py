"""One model on several real workers: the same as on one, and the others go on when one is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from lumigrad.client import AdaptiveDensity, Client, Gaussians, InvalidArgument, PeerLost, Spheres, train_together
from support.training_scenes import gaussian_lesson, sphere_lesson
from support.worker import WorkerProcess, worker

LESSON = gaussian_lesson()
SPHERES = sphere_lesson()
SPHERE_SETTINGS = {"gamma": 0.05, "max_depth": 8.0, "min_depth": 0.5, "background": np.full(3, 0.3)}
RATES = {"means": 2e-3, "quats": 1e-3, "scales": 5e-3, "opacities": 2e-2, "sh0": 2e-3, "sh_rest": 1e-4}
OPTIONS = {"rates": RATES, "epsilon": 1e-7, "seed": 2}
STEPS = 12


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[WorkerProcess]]:
    """Four of them."""
    with ExitStack() as stack:
        folders = [str(tmp_path_factory.mktemp("spool")) for _ in range(4)]
        yield [
            stack.enter_context(worker("--device", "cpu", "--peers", "--spool", folder, supervised=True))
            for folder in folders
        ]


def targets(workers: list[WorkerProcess]) -> list[str]:
    return [process.target for process in workers]


def assert_same(found: Gaussians | Spheres, expected: Gaussians | Spheres) -> None:
    for name, array in expected.tensors.items():
        assert np.abs(found.tensors[name] - array).max() <= 2e-5 * np.abs(array).max(), name


def photographs(workers: list[WorkerProcess]) -> list[np.ndarray]:
    with Client(workers[0].target) as client:
        return LESSON.targets(client)


@pytest.mark.parametrize("count", [2, 4])
def test_several_workers_make_the_steps_of_one(count: int, workers: list[WorkerProcess]) -> None:
    shown = photographs(workers)
    with (
        Client(workers[0].target) as client,
        client.trainer(LESSON.scene, LESSON.cameras, shown, refine_exposures=1e-3, **OPTIONS) as alone,
    ):
        expected = list(alone.steps(STEPS, batch=4))
        scene = alone.scene()
    with train_together(
        targets(workers[:count]), LESSON.scene, LESSON.cameras, shown, refine_exposures=1e-3, **OPTIONS
    ) as trainer:
        found = list(trainer.steps(STEPS, batch=4 // count))
        np.testing.assert_allclose([step.loss for step in found], [step.loss for step in expected], rtol=1e-4)
        assert [step.visible for step in found] == [step.visible for step in expected]
        assert_same(trainer.scene(), scene)


def test_they_agree_about_gaussians_that_come_and_go(workers: list[WorkerProcess]) -> None:
    shown = photographs(workers)
    density = AdaptiveDensity(start=2, every=4, grow_gradient=1e-5, reset_every=0)
    with train_together(
        targets(workers[:2]), LESSON.scene, LESSON.cameras, shown, density=density, **OPTIONS
    ) as trainer:
        steps = list(trainer.steps(STEPS))
        assert steps[-1].count > len(LESSON.scene.means)
        trainer.publish()
        handles = []
        for process in workers[:2]:
            with Client(process.target) as client:
                handles += [client.get(h.scene_id, with_tensors=True) for h in client.list() if h.version == 2]
    scenes = [handle.scene for handle in handles if handle.count == steps[-1].count]
    assert len(scenes) == 2
    for name, array in scenes[0].tensors.items():
        assert np.array_equal(array, scenes[1].tensors[name]), name


def test_the_others_go_on_without_a_worker_that_is_lost(workers: list[WorkerProcess]) -> None:
    shown = photographs(workers)
    options = {**OPTIONS, "snapshot_every": 3}
    with train_together(targets(workers[:3]), LESSON.scene, LESSON.cameras, shown, timeout_s=20, **options) as trainer:
        with pytest.raises(PeerLost, match="a worker was lost"):
            for step in trainer.steps(200):
                if step.number == 7:
                    os.kill(workers[2].process.pid, signal.SIGKILL)
        before = trainer.step_number
        assert 0 < trainer.regroup() <= before
        assert trainer.targets == tuple(targets(workers[:2]))
        last = list(trainer.steps(6))[-1]
        assert last.number == trainer.step_number - 1
        assert np.isfinite(last.loss)


def test_workers_that_were_not_told_to_take_no_peers() -> None:
    with worker("--device", "cpu") as process, Client(process.target) as client:
        shown = LESSON.targets(client)
        with pytest.raises(InvalidArgument, match="not started with --peers"):
            train_together([process.target], LESSON.scene, LESSON.cameras, shown, **OPTIONS)


def test_spheres_train_together_too(workers: list[WorkerProcess]) -> None:
    rates = {"positions": 2e-3, "colors": 1e-2, "radii": 5e-3, "opacities": 2e-2}
    options = {"rates": rates, "epsilon": 1e-6, "seed": 2, **SPHERE_SETTINGS}
    with Client(workers[0].target) as client:
        shown = SPHERES.targets(client, **SPHERE_SETTINGS)
        with client.trainer(SPHERES.scene, SPHERES.cameras, shown, **options) as alone:
            expected = list(alone.steps(STEPS, batch=2))
            scene = alone.scene()
    with train_together(targets(workers[:2]), SPHERES.scene, SPHERES.cameras, shown, **options) as trainer:
        found = list(trainer.steps(STEPS))
        np.testing.assert_allclose([step.loss for step in found], [step.loss for step in expected], rtol=1e-4)
        assert_same(trainer.scene(), scene)
