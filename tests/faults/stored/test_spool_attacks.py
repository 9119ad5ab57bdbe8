"""A flooded spool costs no other tenant a file, and nobody a snapshot; data that cannot fit cost nothing at all."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2

from lumigrad.client import Client, SceneHandle
from lumigrad.client.training import Trainer
from support.calls.gaussian_calls import gaussian_cloud
from support.calls.raw_calls import RawClient, detail, failure
from support.calls.raw_training import RawTraining, start_of
from support.held_disk import HeldDisk
from support.training.scenes import gaussian_lesson
from support.workers.client_load import client_fixture, cloud
from support.workers.slow_render import wait_for
from support.workers.spooling import elsewhere, files, kill, shown, spooling, wait_until_written, without_copy
from support.workers.tenant import tenant_client
from support.workers.worker import WorkerProcess

ANNA, BEN = (f"{name}-0123456789abcdef" for name in ("anna", "ben"))
# Two MiB for each tenant.
LIMITS = ("--max-payload-mib", "1", "--spool-mib", "4", "--crash-seconds", "0.1")
# Spheres of 0.7 MiB, and Gaussians that are sent in one MiB but take 3 MiB with their moments.
SPHERES, GAUSSIANS = 25_000, 11_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attacks")


@pytest.fixture(scope="module")
def process(folder: Path) -> Iterator[WorkerProcess]:
    (folder / "tokens").write_text(f"anna: {ANNA}\nben: {BEN}\n")
    with spooling(folder / "spool", *LIMITS, "--tokens-file", str(folder / "tokens")) as started:
        yield started


anna = client_fixture("process", token=ANNA, retry_s=60)
ben = client_fixture("process", token=BEN, retry_s=60)


@contextmanager
def training(client: Client) -> Iterator[Trainer]:
    """A training that has made a step and is in the spool."""
    lesson = gaussian_lesson()
    trainer = client.trainer(lesson.scene, lesson.cameras, lesson.wrapped(client), rates={"means": 2e-3}, seed=5)
    try:
        list(trainer.steps(1))
        assert trainer.snapshot() == 1
        yield trainer
    finally:
        trainer.close()


def flood(client: Client, process: WorkerProcess, count: int) -> list[SceneHandle]:
    """Stores scenes, two of which fit into a share, each after the one before was written or refused."""
    handles = []
    for number in range(count):
        handles.append(client.put(cloud(SPHERES + number)))
        wait_until_written(process)
    return handles


def refused_snapshot(client: RawClient) -> grpc.RpcError:
    """The error of a snapshot that needs more than a share."""
    call = RawTraining(client, start_of(client, gaussian_cloud(GAUSSIANS), snapshot_every=1))
    assert call.started().count == GAUSSIANS
    # A step succeeds without the snapshot that was due.
    assert not call.step(0).snapshotted
    call.send(snapshot={})
    error = failure(call.reply)
    call.close()
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
    return error


def test_a_flood_of_scenes_costs_their_tenants_scenes_only(process: WorkerProcess, anna: Client, ben: Client) -> None:
    kept = without_copy(ben, ben.put(cloud(SPHERES)))
    expected = shown(ben, kept)
    with training(anna) as hers, training(ben) as his:
        wait_until_written(process)
        listed = set(ben.list())
        flooded = flood(anna, process, 6)
        assert process.metric("lumigrad_evictions_total", store="spool", reason="room") >= 4
        kill(process)
        assert {handle.scene_id for handle in anna.list()} <= {handle.scene_id for handle in flooded[-2:]}
        assert set(ben.list()) == listed
        assert np.array_equal(shown(ben, kept), expected)
        assert process.metric("lumigrad_calls_total", method="SceneService.Put", code="OK") == 0
        for trainer in (hers, his):
            assert trainer.step().number == 1
            assert trainer.resumed == 1


def test_a_snapshot_that_cannot_fit_costs_nothing_and_says_which_limit(process: WorkerProcess, folder: Path) -> None:
    with process.channel() as channel:
        client = tenant_client(channel, ANNA)
        start_of(client, gaussian_cloud(GAUSSIANS))
        wait_until_written(process)
        before = files(folder / "spool")
        error = refused_snapshot(client)
        wait_until_written(process)
    assert re.search(r"bytes of files in the spool are needed, .* \(--tenant-spool-mib\)", error.details())
    # The snapshots before the first step, after a step, and on request.
    assert process.metric("lumigrad_spool_writes_total", kind="training", result="no_room") == 3
    assert set(before) <= set(files(folder / "spool"))


def test_a_snapshot_larger_than_the_disk_leaves_the_spool_as_it_is(tmp_path: Path) -> None:
    before = elsewhere(f"mount -t tmpfs -o size=3m tmpfs {tmp_path}")
    with spooling(tmp_path / "spool", before=before, supervised=False) as process:
        with Client(process.target) as client:
            kept = [handle.scene_id for handle in flood(client, process, 1)]
        with process.channel() as channel:
            raw = RawClient("", channel=channel)
            start_of(raw, gaussian_cloud(GAUSSIANS))
            wait_until_written(process)
            number = process.metric("lumigrad_spool_files")
            error = refused_snapshot(raw)
        assert detail(error, error_details_pb2.RetryInfo).retry_delay.ToMilliseconds() > 0
        assert "the spool (--spool) cannot be written: No space left on device" in error.details()
        assert process.metric("lumigrad_spool_files") == number > len(kept)
        assert process.metric("lumigrad_evictions_total", store="spool", reason="room") == 0


def test_two_tenants_who_flood_leave_a_third_its_files(tmp_path: Path) -> None:
    names = ("anna", "ben", "cleo")
    (tmp_path / "tokens").write_text("".join(f"{name}: {name}-0123456789abcdef\n" for name in names))
    limits = ("--max-scenes", "12", "--crash-seconds", "0.1", "--tokens-file", str(tmp_path / "tokens"))
    with spooling(tmp_path / "spool", *limits) as process, ExitStack() as stack:
        anna, ben, cleo = (
            stack.enter_context(Client(process.target, token=f"{name}-0123456789abcdef", retry_s=60)) for name in names
        )
        first = [cleo.put(cloud(10 + i)) for i in range(2)]
        for number in range(8):
            for flooder in (anna, ben):
                flooder.put(cloud(100 + number))
        wait_until_written(process)
        kept = {*first, *(cleo.put(cloud(20 + i)) for i in range(2))}
        wait_until_written(process)
        kill(process)
        assert set(cleo.list()) == kept


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> HeldDisk:
    return HeldDisk(tmp_path_factory.mktemp("disk"))


# Serves like `lumigrad serve`, but a snapshot waits for its target images for as long as its call lasts.
PATIENT = """
import sys
from lumigrad.client.cli import main
from lumigrad.server.training import snapshots
snapshots._TARGET_IMAGES_SECONDS = 3600.0
sys.exit(main())
"""


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory, disk: HeldDisk) -> Iterator[tuple[WorkerProcess, Path]]:
    """A worker whose disk can be held, and its spool."""
    folder = tmp_path_factory.mktemp("slow")
    (folder / "tokens").write_text(f"anna: {ANNA}\nben: {BEN}\n")
    options = ("--tokens-file", str(folder / "tokens"))
    settings: dict[str, Any] = {"supervised": False, "environment": disk.environment}
    command = (sys.executable, "-c", PATIENT, "serve")
    with spooling(folder / "spool", *options, command=command, **settings) as process:
        yield process, folder / "spool"


def test_a_flood_of_scenes_delays_no_snapshot_of_another_tenant(
    slow: tuple[WorkerProcess, Path], disk: HeldDisk
) -> None:
    process, folder = slow
    with process.channel() as one, process.channel() as other:
        anna, ben = tenant_client(one, ANNA), tenant_client(other, BEN)
        with disk.hold():
            for seed in range(30):
                anna.put(gaussian_cloud(5, seed=seed))
            call = RawTraining(ben, start_of(ben, gaussian_cloud(5, seed=50)))
            call.started()
            call.send(snapshot={})
        assert call.reply().HasField("snapshotted")
        call.finish()
        wait_until_written(process)
    written = [(int(path.name.rpartition("-")[2], 16), path.parent) for path in files(folder)]
    by_tenant = sorted([n for n, where in written if where == place] for place in {where for _, where in written})
    # The numbers of scene files in the order of writing: thirty of one tenant, and a scene and three target images.
    few = min(by_tenant, key=len)
    assert sorted(map(len, by_tenant)) == [4, 30]
    assert max(few) < 15


def test_a_snapshot_that_waits_for_the_disk_ends_with_its_call(
    slow: tuple[WorkerProcess, Path], disk: HeldDisk
) -> None:
    process, _ = slow
    with process.channel() as channel, disk.hold():
        # Target images that anna has not stored before.
        anna = tenant_client(channel, ANNA)
        call = RawTraining(anna, start_of(anna, gaussian_cloud(5, seed=51)))
        call.started()
        call.send(snapshot={})
        ended: list[grpc.RpcError] = []
        waiting = threading.Thread(target=lambda: ended.append(failure(call.reply)))
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive(), "it waits for its target images"
        call.close()
        waiting.join(150)
        assert ended[0].code() == grpc.StatusCode.CANCELLED
        # The disk still holds its target images.
        wait_for(process, "lumigrad_account_taken", 0, resource="open_trainings")
        wait_for(process, "lumigrad_calls_in_progress", 0)
