"""Trainings in blocks beside other tenants: neither takes the other's memory, disk or time."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Camera, Client, Gaussians, TrainingLost
from lumigrad.client.errors import ResourceExhausted
from support.training.streets import ROW_BYTES, assert_equal, street_lesson
from support.workers.slow_render import wait_until
from support.workers.spooling import spooling
from support.workers.worker import WorkerProcess, worker

LESSON, SMALL = street_lesson(), street_lesson(3000, seed=1)
SMALL_POOL = {"pool_bytes": 1792 * ROW_BYTES}
TOKENS = {"one": "a-token-of-the-first", "other": "a-token-of-the-other"}


def test_a_tenant_has_its_share_of_the_spool_and_idle_trainings_make_room(tmp_path: Path) -> None:
    options = ("--spool", str(tmp_path), "--max-payload-mib", "2")
    limits = ("--tenant-spool-mib", "5", "--tenant-training-mib", "2", "--training-mib", "64", "--scene-mib", "64")
    with (
        worker("--device", "cpu", *options, *limits, tokens=TOKENS) as process,
        Client(process.target, token=TOKENS["one"]) as one,
        Client(process.target, token=TOKENS["other"]) as other,
    ):
        half = Gaussians(**{name: tensor[:8000] for name, tensor in LESSON.scene.tensors.items()})
        cameras = [LESSON.cameras[0]]
        with pytest.raises(ResourceExhausted, match="tenant-spool-mib"):
            one.trainer(LESSON.scene, cameras, pool_bytes=1_600_000)
        kept = one.trainer(half, cameras, pool_bytes=1_600_000)
        kept.close(finish=False)
        theirs = other.trainer(half, cameras, pool_bytes=1_600_000)
        # The tenant's share has room for a single pool: its idle training and the file are evicted.
        again = one.trainer(SMALL.scene, cameras, pool_bytes=SMALL_POOL["pool_bytes"])
        with pytest.raises(TrainingLost):
            one.resume_trainer(kept.training_id, kept.lease)
        for trainer, begun in ((theirs, half), (again, SMALL.scene)):
            np.testing.assert_array_equal(trainer.scene().means, begun.means)
            trainer.close()
        assert process.metric("lumigrad_training_bytes") == 0


@contextmanager
def flood(client: Client) -> Iterator[None]:
    """Store ever new scenes for the length of a `with` block."""
    is_over = threading.Event()

    def store() -> None:
        for seed in itertools.takewhile(lambda _: not is_over.is_set(), itertools.count(100)):
            client.put(street_lesson(2000, seed=seed).scene)

    thread = threading.Thread(target=store)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_the_scenes_of_another_tenant_change_nothing_of_a_training(tmp_path: Path) -> None:
    """The scenes fill memory and disk; the worker is killed meanwhile, with the training's scene on the disk alone."""
    options: dict[str, Any] = {"total_steps": 40, "seed": 1, "snapshot_every": 8, **SMALL_POOL}
    limits = ("--scene-mib", "2", "--spool-mib", "16", "--max-payload-mib", "1", "--crash-seconds", "0.1")
    with (
        spooling(tmp_path, *limits, tokens=TOKENS) as process,
        Client(process.target, token=TOKENS["one"], retry_s=60) as one,
        Client(process.target, token=TOKENS["other"], retry_s=60) as other,
    ):
        evictions = partial(process.metric, "lumigrad_evictions_total")
        photographs = SMALL.target_images(one)
        with one.trainer(SMALL.scene, SMALL.cameras, photographs, **options) as trainer:
            list(trainer.steps(24))
            expected = trainer.scene()
        with flood(other), one.trainer(SMALL.scene, SMALL.cameras, photographs, **options) as trainer:
            list(trainer.steps(12))
            starts = process.log.count("worker started")
            os.kill(process.worker_pid, signal.SIGKILL)
            process.wait_for_log("worker started", count=starts + 1)
            list(trainer.steps(12))
            assert trainer.resumed == 1
            # Scenes are written after their Puts, which others overtake on a busy machine.
            wait_until(lambda: evictions(store="scenes") > 0 and evictions(store="spool") > 0, "evictions")
            found = trainer.scene()
            published = one.get(trainer.publish().scene_id, with_tensors=True).scene
            # This holds even if the scene with which the training began is gone.
            assert_equal(found, expected)
            assert_equal(published, expected)


@contextmanager
def rendering(client: Client, scene: Any, camera: Camera, process: WorkerProcess) -> Iterator[list[float]]:
    """Render, several at a time, for the length of a `with` block; yield the worker's processor time after each."""
    seconds: list[float] = []
    is_over = threading.Event()

    def render() -> None:
        while not is_over.is_set():
            client.render(scene, camera)
            seconds.append(process.processor_seconds())

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(render)
        try:
            yield seconds
        finally:
            is_over.set()


def test_renders_of_another_tenant_go_between_the_parts_of_what_is_published(tmp_path: Path) -> None:
    """Measured by the worker's processor time between renders: in one piece, publishing would fill a single gap."""
    lesson = street_lesson(300_000)
    with (
        worker("--device", "cpu", "--spool", str(tmp_path), tokens=TOKENS) as process,
        Client(process.target, token=TOKENS["one"]) as one,
        Client(process.target, token=TOKENS["other"]) as other,
        one.trainer(lesson.scene, lesson.cameras[:1], pool_bytes=100_000 * ROW_BYTES) as trainer,
    ):
        small = other.put(SMALL.scene)
        camera = Camera.look_at((0, 0, 0), (1, 0, 0), (0, -1, 0), width=16, height=16)
        shares = []
        # On a busy machine the callers themselves may be late.
        while len(shares) < 20 and not any(share < 1 / 3 for share in shares):
            with rendering(other, small, camera, process) as seconds:
                wait_until(lambda seconds=seconds: len(seconds) > 8, "renders")
                began = process.processor_seconds()
                trainer.publish()
                ended = process.processor_seconds()
            marks = [began, *(each for each in sorted(seconds) if began < each < ended), ended]
            shares.append(max(np.diff(marks)) / (ended - began))
    assert min(shares) < 1 / 3, shares
