"""Trainings in blocks: as good as those whose Gaussians are all on the device, within a pool of a quarter of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Client, Gaussians, InvalidArgument, Loss, Mcmc, TrainingLost
from lumigrad.client.errors import ResourceExhausted
from support.training.scenes import sphere_lesson
from support.training.streets import ROW_BYTES, street_lesson
from support.workers.spooling import spooling
from support.workers.worker import WorkerProcess, worker

LESSON = street_lesson()
WHOLE_BYTES = len(LESSON.scene.means) * ROW_BYTES
POOL: dict[str, Any] = {"pool_bytes": WHOLE_BYTES // 4}
STEPS = 120
SMALL = street_lesson(3000, seed=1)
SMALL_POOL = {"pool_bytes": 1792 * ROW_BYTES}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with worker("--device", "cpu", "--spool", str(tmp_path_factory.mktemp("spool"))) as started:
        yield started


@pytest.fixture(scope="module")
def spooled(process: WorkerProcess) -> Iterator[Client]:
    with Client(process.target) as own:
        yield own


@pytest.fixture(scope="module")
def photographs(spooled: Client) -> list[np.ndarray]:
    return LESSON.target_images(spooled)


def fitted(client: Client, photographs: list[np.ndarray], **options: Any) -> Gaussians:
    with client.trainer(LESSON.scene, LESSON.cameras, photographs, total_steps=STEPS, seed=1, **options) as trainer:
        for step in trainer.steps(STEPS):
            assert step.count == len(LESSON.scene.means)
        scene = trainer.scene()
    assert isinstance(scene, Gaussians)
    return scene


def psnr(client: Client, scene: Gaussians, photographs: list[np.ndarray]) -> float:
    pictures = [np.clip(client.render(scene, camera).color, 0, 1) for camera in LESSON.cameras]
    errors = [np.square(a - b / 255).mean() for a, b in zip(pictures, photographs, strict=True)]
    return float(-10 * np.log10(errors).mean())


def assert_equal(found: Gaussians, expected: Gaussians) -> None:
    for name, tensor in expected.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], tensor, name)


def test_a_pool_of_a_quarter_gives_the_psnr_of_the_whole(
    spooled: Client, photographs: list[np.ndarray], tmp_path: Path
) -> None:
    """On a worker that has no room for the whole."""
    options = ("--spool", str(tmp_path), "--training-mib", "3", "--max-payload-mib", "8")
    begun = psnr(spooled, LESSON.scene, photographs)
    whole = psnr(spooled, fitted(spooled, photographs), photographs)
    with worker("--device", "cpu", *options) as process, Client(process.target, retry_s=0) as client:
        with pytest.raises(ResourceExhausted, match="training-mib"):
            fitted(client, photographs)
        found = psnr(client, fitted(client, photographs, **POOL), photographs)
    assert whole > begun + 3
    assert abs(found - whole) < 0.1, (begun, whole, found)


def test_steps_that_change_what_they_see_alone_are_equal_bit_for_bit(
    spooled: Client, photographs: list[np.ndarray]
) -> None:
    whole = fitted(spooled, photographs, visible_only=True)
    assert_equal(fitted(spooled, photographs, visible_only=True, **POOL), whole)


def test_a_training_counts_its_pool_and_its_file_and_gives_both_back(
    process: WorkerProcess, spooled: Client, photographs: list[np.ndarray]
) -> None:
    def taken() -> tuple[float, float]:
        return process.metric("lumigrad_training_bytes"), process.metric("lumigrad_spool_bytes")

    handle = spooled.put(LESSON.scene)
    before = taken()
    trainer = spooled.trainer(handle, LESSON.cameras, photographs, **POOL)
    trainer.step()
    device, disk = (now - then for now, then in zip(taken(), before, strict=True))
    assert POOL["pool_bytes"] <= device < POOL["pool_bytes"] + 2 * sum(picture.nbytes for picture in photographs)
    assert WHOLE_BYTES <= disk < 1.1 * WHOLE_BYTES
    trainer.close()
    assert taken() == before


def test_the_next_version_of_a_scene_has_the_order_of_the_first(spooled: Client) -> None:
    photographs = SMALL.target_images(spooled)
    with spooled.trainer(SMALL.scene, SMALL.cameras, photographs, rates={"means": 1e-3}, **SMALL_POOL) as trainer:
        list(trainer.steps(5))
        scene = trainer.scene()
        published = spooled.get(trainer.publish().scene_id, with_tensors=True).scene
        assert isinstance(published, Gaussians) and isinstance(scene, Gaussians)
        assert_equal(published, scene)
        assert 0 < np.abs(scene.means - SMALL.scene.means).max() < 0.05
        np.testing.assert_array_equal(scene.sh, SMALL.scene.sh)
        # Nothing changed by the copies.
        assert trainer.step().number == 5


def test_a_loss_of_one_s_own_has_one_step_at_a_time(spooled: Client) -> None:
    options = {"rates": {"means": 1e-3, "sh0": 1e-3}, "visible_only": True}
    found = []
    for pool in ({}, SMALL_POOL):
        with spooled.trainer(SMALL.scene, SMALL.cameras, **options, **pool) as trainer:
            for batch in trainer.batches(10):
                batch.apply(color=batch.color - 0.5)
            found.append(trainer.scene())
    assert_equal(found[1], found[0])
    trainer = spooled.trainer(SMALL.scene, SMALL.cameras, **options, **SMALL_POOL)
    with pytest.raises(InvalidArgument, match=r"at most 1 steps that wait for gradients"):
        for batch in trainer.batches(3, in_flight=2):
            batch.apply(color=batch.color)
    with spooled.resume_trainer(trainer.training_id, trainer.lease):
        pass


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_dies_costs_nothing(number: signal.Signals, spooled: Client, tmp_path: Path) -> None:
    photographs = SMALL.target_images(spooled)
    options: dict[str, Any] = {"total_steps": 40, "seed": 1, "snapshot_every": 8, **SMALL_POOL}
    with spooled.trainer(SMALL.scene, SMALL.cameras, photographs, **options) as trainer:
        list(trainer.steps(40))
        expected = trainer.scene()
    with (
        spooling(tmp_path, "--crash-seconds", "0.1") as process,
        Client(process.target, retry_s=60) as client,
        client.trainer(SMALL.scene, SMALL.cameras, photographs, **options) as trainer,
    ):
        # Within a run of steps a worker may have sent all replies before it dies, so that nothing has to be resumed.
        for count in (12, 18):
            list(trainer.steps(count))
            starts = process.log.count("worker started")
            os.kill(process.worker_pid, number)
            process.wait_for_log("worker started", count=starts + 1)
        list(trainer.steps(10))
        assert trainer.resumed == 2
        found = trainer.scene()
    assert isinstance(expected, Gaussians) and isinstance(found, Gaussians)
    assert_equal(found, expected)


def test_what_concerns_all_gaussians_is_refused(spooled: Client, client: Client) -> None:
    photographs = SMALL.target_images(spooled)
    for options, message in (
        ({"density": Mcmc(cap=4000)}, r"density: expected none with pool_bytes"),
        ({"loss": Loss(opacity=0.01)}, r"opacity: expected 0 with pool_bytes"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            spooled.trainer(SMALL.scene, SMALL.cameras, photographs, **options, **SMALL_POOL)
    with spooled.trainer(SMALL.scene, SMALL.cameras, photographs, **SMALL_POOL) as trainer:
        with pytest.raises(InvalidArgument, match=r"pace: expected 0 or 1 with pool_bytes and without visible_only"):
            list(trainer.steps(1, pace=2.0))
        list(trainer.steps(1))
    spheres = sphere_lesson()
    with pytest.raises(InvalidArgument, match="pool_bytes: expected 0: it is for scenes of Gaussians"):
        spooled.trainer(spheres.scene, spheres.cameras, **SMALL_POOL)
    with pytest.raises(InvalidArgument, match=r"pool_bytes: expected a worker with a spool"):
        client.trainer(SMALL.scene, SMALL.cameras, photographs, **SMALL_POOL)


def test_a_pool_without_room_for_a_view_is_refused_before_a_step(process: WorkerProcess, tmp_path: Path) -> None:
    with Client(process.target, retry_s=0) as client:
        photographs = SMALL.target_images(client)
        with pytest.raises(
            ResourceExhausted, match=r"in view of start\.views\[\d\]: they take \d+ bytes, and pool_byt"
        ):
            client.trainer(SMALL.scene, SMALL.cameras, photographs, pool_bytes=255 * ROW_BYTES)
        # Its scene and file are free again.
        client.trainer(SMALL.scene, SMALL.cameras, photographs, **SMALL_POOL).close()


def test_a_tenant_has_its_share_of_the_spool_and_idle_trainings_make_room(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("one: a-token-of-the-first\nother: a-token-of-the-other\n")
    options = ("--tokens-file", str(tokens), "--spool", str(tmp_path / "spool"), "--max-payload-mib", "2")
    limits = ("--tenant-spool-mib", "5", "--tenant-training-mib", "2", "--training-mib", "64", "--scene-mib", "64")
    with (
        worker("--device", "cpu", *options, *limits) as process,
        Client(process.target, token="a-token-of-the-first") as one,
        Client(process.target, token="a-token-of-the-other") as other,
    ):
        half = Gaussians(**{name: tensor[:8000] for name, tensor in LESSON.scene.tensors.items()})
        cameras = [LESSON.cameras[0]]
        with pytest.raises(ResourceExhausted, match="tenant-spool-mib"):
            one.trainer(LESSON.scene, cameras, pool_bytes=1_600_000)
        kept = one.trainer(half, cameras, pool_bytes=1_600_000)
        kept.close(finish=False)
        theirs = other.trainer(half, cameras, pool_bytes=1_600_000)
        # One's share has room for a single pool: the idle training and its file go.
        again = one.trainer(SMALL.scene, cameras, pool_bytes=SMALL_POOL["pool_bytes"])
        with pytest.raises(TrainingLost):
            one.resume_trainer(kept.training_id, kept.lease)
        for trainer, begun in ((theirs, half), (again, SMALL.scene)):
            np.testing.assert_array_equal(trainer.scene().means, begun.means)
            trainer.close()
        assert process.metric("lumigrad_training_bytes") == 0
