"""Trainings in blocks: as good as those whose Gaussians are all on the device, within a pool of a quarter of them."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

from lumigrad.client import Client, Gaussians, InvalidArgument, Loss, Mcmc
from lumigrad.client.aio import AsyncClient
from lumigrad.client.errors import DeadlineExceeded, ResourceExhausted, VersionMismatch
from lumigrad.v1 import training_pb2
from support.calls.raw_calls import RawClient
from support.calls.raw_training import RawTraining
from support.training.scenes import sphere_lesson
from support.training.streets import ROW_BYTES, assert_equal, street_lesson
from support.workers.client_load import client_fixture
from support.workers.slow_render import wait_until
from support.workers.spooling import spooling, wait_until_written
from support.workers.worker import WorkerProcess, worker

LESSON = street_lesson()
WHOLE_BYTES = len(LESSON.scene.means) * ROW_BYTES
POOL: dict[str, Any] = {"pool_bytes": WHOLE_BYTES // 4}
STEPS = 120
SMALL = street_lesson(3000, seed=1)
SMALL_POOL = {"pool_bytes": 1792 * ROW_BYTES}
ENDLESS: dict[str, Any] = {"total_steps": 10_000, "seed": 1, **SMALL_POOL}
# Steps in a request.
RUN = 32


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with worker("--device", "cpu", "--spool", str(tmp_path_factory.mktemp("spool"))) as started:
        yield started


spooled = client_fixture("process", scope="module")


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


def test_a_pool_of_a_quarter_gives_the_psnr_of_the_whole(
    spooled: Client, photographs: list[np.ndarray], tmp_path: Path
) -> None:
    """The worker has no room for the whole training."""
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
    # The spool keeps the scene and, after a training without blocks, the photographs.
    spooled.trainer(handle, LESSON.cameras, photographs).close()
    wait_until(lambda: process.metric("lumigrad_training_bytes") == 0)
    wait_until_written(process)
    before = taken()
    trainer = spooled.trainer(handle, LESSON.cameras, photographs, **POOL)
    trainer.step()
    wait_until_written(process)
    device, disk = (now - then for now, then in zip(taken(), before, strict=True))
    assert POOL["pool_bytes"] <= device < POOL["pool_bytes"] + 2 * sum(picture.nbytes for picture in photographs)
    assert WHOLE_BYTES <= disk < 1.1 * WHOLE_BYTES
    trainer.close()
    wait_until(lambda: taken() == before)


def test_the_disk_has_the_room_of_a_training_again_when_that_ends(process: WorkerProcess, spooled: Client) -> None:
    """The spool counts the room as free, so the files must not wait for Python's garbage collector."""
    photographs = SMALL.target_images(spooled)

    def files() -> list[str]:
        maps = psutil.Process(process.process.pid).memory_maps(grouped=False)
        return [each.path for each in maps if "/blocks/" in each.path]

    for _ in range(3):
        with spooled.trainer(SMALL.scene, SMALL.cameras, photographs, **SMALL_POOL) as trainer:
            list(trainer.steps(5))
            trainer.publish()
            assert files()
        wait_until(lambda: not files(), "the end of the mapping")


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
        # The copies changed nothing.
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
        # Within a run of steps a worker may have sent all replies before it dies, so nothing has to be resumed.
        for count in (12, 18):
            list(trainer.steps(count))
            starts = process.log.count("worker started")
            os.kill(process.worker_pid, number)
            process.wait_for_log("worker started", count=starts + 1)
        list(trainer.steps(10))
        assert trainer.resumed == 2
        found = trainer.scene()
    assert_equal(found, expected)


def assert_goes_on(client: Client, training_id: str, lease: str, photographs: list[np.ndarray]) -> None:
    """Fails unless a training equals an uninterrupted one of as many steps, now and later; ends it."""
    with client.resume_trainer(training_id, lease) as trainer:
        number = trainer.step_number
        found = [trainer.scene()]
        list(trainer.steps(8))
        found.append(trainer.scene())
    with client.trainer(SMALL.scene, SMALL.cameras, photographs, **ENDLESS) as trainer:
        for count, scene in zip((number, 8), found, strict=True):
            list(trainer.steps(count))
            expected = trainer.scene()
            assert_equal(scene, expected)


@pytest.mark.parametrize("how", ["cancelled", "overdue"])
def test_a_run_of_steps_that_ends_early_leaves_whole_steps(how: str, process: WorkerProcess, spooled: Client) -> None:
    photographs = SMALL.target_images(spooled)
    trainer = spooled.trainer(SMALL.scene, SMALL.cameras, photographs, **ENDLESS)
    trainer.close(finish=False)
    raw, number, seconds = RawClient(process.target), 0, 0.5
    # The call must end within a run: a busy machine may not have begun the first, or be between two.
    while number % RUN == 0:
        start = training_pb2.TrainingStart(training_id=trainer.training_id, lease=trainer.lease)
        training = RawTraining(raw, start, **({"timeout": seconds} if how == "overdue" else {}))
        for first in range(number, number + 1000 * RUN, RUN):
            training.send(step=training_pb2.Step(number=first, count=RUN, batch=1))
        with pytest.raises(grpc.RpcError) as error:
            # The reply to the start, and one to each run.
            for count in itertools.count():
                training.reply()
                if how == "cancelled" and count == 1:
                    time.sleep(seconds / 10)
                    training.call.cancel()
        code = {"cancelled": grpc.StatusCode.CANCELLED, "overdue": grpc.StatusCode.DEADLINE_EXCEEDED}[how]
        assert error.value.code() == code
        training.close()
        resumed = spooled.resume_trainer(trainer.training_id, trainer.lease)
        number, seconds = resumed.step_number, 2 * seconds
        resumed.close(finish=False)
    raw.close()
    assert_goes_on(spooled, trainer.training_id, trainer.lease, photographs)


def test_a_cancelled_publish_leaves_one_version_or_the_other(process: WorkerProcess, spooled: Client) -> None:
    """The memory of the publish is given back, and the training goes on."""
    lesson = street_lesson(300_000)
    trainer = spooled.trainer(lesson.scene, lesson.cameras[:1], pool_bytes=100_000 * ROW_BYTES)
    trainer.close(finish=False)
    raw = RawClient(process.target)
    for published in range(8):
        start = training_pb2.TrainingStart(training_id=trainer.training_id, lease=trainer.lease)
        training = RawTraining(raw, start)
        version = training.started().scene.version
        assert version <= 1 + published
        before = process.processor_seconds()
        training.send(publish=training_pb2.Publish())
        # The call ends in the middle: a whole publish takes about seven times as long.
        wait_until(lambda before=before: process.processor_seconds() > before + 0.03, "work on the copy")
        training.close()
    raw.close()
    with spooled.resume_trainer(trainer.training_id, trainer.lease) as resumed:
        scene = resumed.scene()
        assert_equal(spooled.get(resumed.publish().scene_id, with_tensors=True).scene, scene)
        assert isinstance(scene, Gaussians)
        np.testing.assert_array_equal(scene.means, lesson.scene.means)


def worked_by(process: WorkerProcess) -> float:
    """The processor time of the worker under a supervisor."""
    times = psutil.Process(process.worker_pid).cpu_times()
    return times.user + times.system


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_publish_outlives_its_worker(number: signal.Signals, tmp_path: Path) -> None:
    lesson = street_lesson(100_000)
    pool = {"pool_bytes": 40_000 * ROW_BYTES, "snapshot_every": 1}
    with (
        spooling(tmp_path, "--crash-seconds", "0.1") as process,
        Client(process.target, retry_s=60) as client,
        client.trainer(lesson.scene, lesson.cameras[:1], lesson.target_images(client)[:1], **pool) as trainer,
    ):
        trainer.step()
        expected = trainer.scene()
        with ThreadPoolExecutor(1) as threads:
            before = worked_by(process)
            published = threads.submit(trainer.publish)
            wait_until(lambda: worked_by(process) > before + 0.02, "work on the copy")
            os.kill(process.worker_pid, number)
            handle = published.result(120)
        assert_equal(client.get(handle.scene_id, with_tensors=True).scene, expected)
        assert trainer.step().number == 1


def test_a_publish_beside_an_update_leaves_one_of_them(process: WorkerProcess, spooled: Client) -> None:
    lesson = street_lesson(300_000)
    handle = spooled.put(lesson.scene)
    with spooled.trainer(handle, lesson.cameras[:1], pool_bytes=100_000 * ROW_BYTES) as trainer:
        expected, half = trainer.scene(), {"opacities": lesson.scene.opacities * 0.5}
        with ThreadPoolExecutor(1) as threads:
            before = process.processor_seconds()
            published = threads.submit(trainer.publish)
            wait_until(lambda: process.processor_seconds() > before + 0.01, "work on the copy")
            try:
                updated = spooled.update(handle, **half)
            except VersionMismatch:
                assert published.result(60).version == 2
                return
            with pytest.raises(VersionMismatch):
                published.result(60)
        found = spooled.get(updated.scene_id, with_tensors=True).scene
        np.testing.assert_array_equal(found.opacities, half["opacities"])
        with pytest.raises(VersionMismatch):
            trainer.publish()
        assert_equal(trainer.scene(), expected)


def test_a_trainer_goes_on_after_a_deadline_and_after_a_cancelled_loop(process: WorkerProcess, spooled: Client) -> None:
    photographs = SMALL.target_images(spooled)
    begun = spooled.trainer(SMALL.scene, SMALL.cameras, photographs, **ENDLESS)
    begun.close(finish=False)
    trainer = None
    # A busy machine may take longer for any of this.
    while trainer is None:
        with suppress(DeadlineExceeded):
            trainer = spooled.resume_trainer(begun.training_id, begun.lease, timeout_s=3.0)
    with suppress(DeadlineExceeded):
        next(trainer.steps(1000))
    os.kill(process.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(DeadlineExceeded):
            list(trainer.steps(1000))
    finally:
        os.kill(process.process.pid, signal.SIGCONT)
    number = trainer.step_number
    while trainer.step_number == number:
        with suppress(DeadlineExceeded):
            trainer.step()
    trainer.close(finish=False)

    async def cancelled() -> None:
        async with AsyncClient(process.target) as client:
            training = await client.resume_trainer(begun.training_id, begun.lease)
            first, is_moving = training.step_number, asyncio.Event()

            async def run() -> None:
                async for _ in training.steps(1000):
                    is_moving.set()

            task = asyncio.create_task(run())
            await is_moving.wait()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            step = await training.step()
            assert step.number == training.step_number - 1 > first
            await training.close(finish=False)

    asyncio.run(cancelled())
    assert_goes_on(spooled, begun.training_id, begun.lease, photographs)


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
        # The refused training holds neither its scene nor its file.
        client.trainer(SMALL.scene, SMALL.cameras, photographs, **SMALL_POOL).close()
