"""Scenes with levels of detail stay in the spool: put once, found again after a crash, deleted for good."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Camera, Client, Gaussians
from lumigrad.client.errors import InvalidArgument, ResourceExhausted, SceneNotFound
from lumigrad.client.formats.levels import GaussianLevels
from support.files.documents import ROOT, run_code_of
from support.gaussians.levels import as_drawn, city, joined
from support.held_disk import HeldDisk
from support.workers.slow_render import wait_until
from support.workers.spooling import files, kill, spooling
from support.workers.worker import WorkerProcess, worker

LEVELS = city(3, page_rows=64)
CAMERA = Camera.look_at((0, -60, 0.1), (0, 0, 0), (0, 0, 1), width=48, height=32, fov_degrees=30)


def test_a_second_put_sends_nothing(tmp_path: Path) -> None:
    read: list[tuple[int, int]] = []

    def source(page: int, level: int) -> Gaussians:
        read.append((page, level))
        return LEVELS.read(page, level)

    levels = replace(LEVELS, source=source)
    with spooling(tmp_path) as process, Client(process.target) as client:
        handle = client.put(levels)
        assert (handle.kind, handle.count, handle.version) == ("levels", 9 * 64, 1)
        # The client reads each page once for its digest, and once to send it.
        assert len(read) == 2 * LEVELS.counts.size
        assert client.put(levels).scene_id == handle.scene_id
        assert client.get(handle.scene_id).content_hash == handle.content_hash
        assert [it.scene_id for it in client.list()] == [handle.scene_id]
        assert len(read) == 2 * LEVELS.counts.size


def test_puts_at_the_same_time_write_one_file(tmp_path: Path) -> None:
    levels = city(3, page_rows=1024)

    def put(_: int) -> str:
        with Client(process.target) as client:
            return client.put(levels).scene_id

    with spooling(tmp_path, supervised=False) as process, ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(put, range(4)))) == 1
        assert len(files(tmp_path)) == 1


def test_levels_survive_a_crash_and_not_a_delete(tmp_path: Path) -> None:
    with spooling(tmp_path) as process, Client(process.target, retry_s=60) as client:
        handle = client.put(LEVELS)
        kill(process)
        assert client.get(handle.scene_id).content_hash == handle.content_hash
        assert client.put(LEVELS).scene_id == handle.scene_id
        client.delete(handle)
        with pytest.raises(SceneNotFound):
            client.get(handle.scene_id)
        kill(process)
        with pytest.raises(SceneNotFound):
            client.get(handle.scene_id)


def test_views_are_the_same_after_a_crash_while_their_pages_are_read(tmp_path: Path) -> None:
    disk = HeldDisk(tmp_path)
    places = [(page, 0) for page in range(len(LEVELS))]
    with (
        spooling(tmp_path / "spool", environment=disk.environment) as process,
        Client(process.target, retry_s=60) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        scene = client.get(client.put(LEVELS).scene_id)
        draw = partial(client.render, scene, CAMERA, max_error_px=1e-6)
        with disk.hold_reads() as begun:
            frames = [pool.submit(draw, retain=retain) for retain in (False, True)]
            wait_until(begun.exists, "a read")
            kill(process)
            assert not any(frame.done() for frame in frames)
        for frame, plain in zip(frames, (as_drawn(LEVELS, places), joined(LEVELS, places)), strict=True):
            assert np.array_equal(frame.result().color, client.render(plain, CAMERA).color)


def test_a_worker_without_a_spool_refuses_levels() -> None:
    with (
        worker("--device", "cpu") as process,
        Client(process.target) as client,
        pytest.raises(InvalidArgument, match="--spool"),
    ):
        client.put(LEVELS)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[WorkerProcess]:
    with spooling(tmp_path, "--max-payload-mib", "1", "--spool-mib", "2", "--scene-mib", "1") as process:
        yield process


def test_more_than_the_spool_is_refused_before_anything_is_written(small: WorkerProcess, tmp_path: Path) -> None:
    with Client(small.target) as client:
        with pytest.raises(ResourceExhausted, match="--spool-mib"):
            client.put(city(5, page_rows=1024))
        assert not files(tmp_path)
        # This scene is larger than a payload may be, but fits into the spool.
        handle = client.put(city(4, page_rows=768))
        assert client.get(handle.scene_id).count == 16 * 768


def test_rows_that_are_not_those_of_their_digests_leave_nothing(small: WorkerProcess, tmp_path: Path) -> None:
    changing = replace(LEVELS, source=lambda page, level: _noisy(LEVELS, page, level))
    with Client(small.target) as client:
        with pytest.raises(InvalidArgument, match="rows of page 0 and level 0"):
            client.put(changing)
        assert not files(tmp_path)
        assert client.list() == ()


def test_values_that_cannot_be_drawn_are_refused(small: WorkerProcess, tmp_path: Path) -> None:
    bad = replace(LEVELS, source=lambda page, level: _infinite(LEVELS, page, level))
    with Client(small.target) as client:
        with pytest.raises(InvalidArgument, match="page 1 and level 2"):
            client.put(bad)
        assert not files(tmp_path)


def test_levels_do_not_change_and_are_not_sent_back(small: WorkerProcess) -> None:
    with Client(small.target) as client:
        handle = client.put(LEVELS)
        with pytest.raises(InvalidArgument, match="levels do not change"):
            client.update(handle, means=np.zeros((9, 3)))
        with pytest.raises(InvalidArgument, match="with_tensors"):
            client.get(handle.scene_id, with_tensors=True)


def test_a_damaged_file_is_removed(tmp_path: Path) -> None:
    with spooling(tmp_path) as process, Client(process.target, retry_s=60) as client:
        handle = client.put(LEVELS)
        [path] = files(tmp_path)
        content = bytearray(path.read_bytes())
        place = content.find(LEVELS.bounds.tobytes())
        content[place] ^= 1
        path.write_bytes(content)
        kill(process)
        with pytest.raises(SceneNotFound):
            client.get(handle.scene_id)
        assert client.put(LEVELS).scene_id != handle.scene_id


def test_a_damaged_page_is_not_drawn(tmp_path: Path) -> None:
    with spooling(tmp_path) as process, Client(process.target) as client:
        scene = client.put(LEVELS)
        [path] = files(tmp_path)
        content = bytearray(path.read_bytes())
        content[content.find(LEVELS.read(4, 0).scales.tobytes())] ^= 1
        path.write_bytes(content)
        with pytest.raises(SceneNotFound):
            client.render(client.get(scene.scene_id), CAMERA, max_error_px=1e-6)
        # A client with a copy sends it again.
        frame = client.render(scene, CAMERA, max_error_px=1e-6)
        plain = as_drawn(LEVELS, [(page, 0) for page in range(len(LEVELS))])
        assert np.array_equal(frame.color, client.render(plain, CAMERA).color)


def test_the_code_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with spooling(tmp_path, supervised=False) as process:
        monkeypatch.setenv("LUMIGRAD_TARGET", process.target)
        names: dict[str, Any] = run_code_of(ROOT / "docs" / "levels.md")
    levels, row = names["levels"], names["row"]
    assert len(row) > 0
    assert (row < levels.counts[names["page"], names["level"]]).all()
    assert set(names["level"]) <= set(np.flatnonzero(names["frame"].levels.counts))


def _noisy(levels: GaussianLevels, page: int, level: int) -> Gaussians:
    rows = levels.read(page, level)
    return Gaussians(rows.means + np.random.default_rng().random(3), rows.quats, rows.scales, rows.opacities, rows.sh)


def _infinite(levels: GaussianLevels, page: int, level: int) -> Gaussians:
    rows = levels.read(page, level)
    means = rows.means.copy()
    if (page, level) == (1, 2):
        means[0] = np.inf
    return Gaussians(means, rows.quats, rows.scales, rows.opacities, rows.sh)
