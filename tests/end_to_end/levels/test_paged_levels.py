"""Pages come from the spool when a Render needs them: late, from a file that is deleted, into too little memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Camera, Client, Frame, SceneHandle
from lumigrad.client.aio import AsyncClient
from lumigrad.client.calls.scenes import stored
from lumigrad.client.errors import DeadlineExceeded, SceneNotFound
from support.gaussians.levels import as_drawn, city, joined, levels_of_pages
from support.held_disk import HeldDisk
from support.workers.slow_render import wait_until
from support.workers.spooling import spooling
from support.workers.worker import WorkerProcess

LEVELS = city(3, page_rows=64)
LARGE = city(6, page_rows=512, seed=1)
ALL = Camera.look_at((0, -60, 0.1), (0, 0, 0), (0, 0, 1), width=96, height=64, fov_degrees=30)
PLACES = [(page, 0) for page in range(len(LEVELS))]
FINEST, ROUNDED = joined(LEVELS, PLACES), as_drawn(LEVELS, PLACES)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> HeldDisk:
    return HeldDisk(tmp_path_factory.mktemp("disk"))


@pytest.fixture(scope="module")
def process(disk: HeldDisk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    # This worker is not a fork of the process that others use, so it takes seconds to start.
    folder = tmp_path_factory.mktemp("spool")
    with spooling(folder, supervised=False, environment=disk.environment) as started:
        yield started


@pytest.fixture
def held(process: WorkerProcess) -> Iterator[WorkerProcess]:
    yield process
    with Client(process.target) as client:
        for scene in client.list():
            client.delete(scene)


async def cancelled_after(seconds: float, process: WorkerProcess, scene: SceneHandle) -> None:
    async with AsyncClient(process.target) as client:
        await asyncio.wait_for(client.render(scene, ALL, max_error_px=1e-6), seconds)


def draw(client: Client, scene: SceneHandle, **options: object) -> Frame:
    return client.render(scene, ALL, **{"max_error_px": 1e-6, **options})


def test_a_deadline_and_a_cancellation_end_the_wait_for_pages(held: WorkerProcess, disk: HeldDisk) -> None:
    with Client(held.target) as client:
        scene = client.put(LEVELS)
        with disk.hold_reads() as begun:
            # On a busy machine the time-out may come before the read.
            seconds = 1.0
            while not begun.exists():
                with pytest.raises(DeadlineExceeded):
                    draw(client, scene, timeout_s=seconds)
                seconds *= 2
            begun.unlink()
            with pytest.raises(TimeoutError):
                asyncio.run(cancelled_after(0.5, held, scene))
        assert np.array_equal(draw(client, scene).color, client.render(ROUNDED, ALL).color)


def test_a_scene_that_is_deleted_meanwhile_is_drawn_to_the_end(held: WorkerProcess, disk: HeldDisk) -> None:
    with Client(held.target) as client, ThreadPoolExecutor(1) as pool:
        scene = client.get(client.put(LEVELS).scene_id)
        with disk.hold_reads() as begun:
            frame = pool.submit(draw, client, scene)
            wait_until(begun.exists, "a read")
            client.delete(scene)
        assert np.array_equal(frame.result().color, client.render(ROUNDED, ALL).color)
        with pytest.raises(SceneNotFound):
            draw(client, scene)
        # Neither its pages nor its cut stay in memory. Pages are read ahead, perhaps still while it is deleted.
        wait_until(lambda: held.metric("lumigrad_scene_bytes") == 0)


def test_pages_that_are_read_after_a_delete_are_not_kept(held: WorkerProcess, disk: HeldDisk) -> None:
    with Client(held.target) as client:
        scene = client.get(client.put(LEVELS).scene_id)
        with disk.hold_reads() as begun:
            draw(client, scene, wait=False)
            wait_until(begun.exists, "a read")
            client.delete(scene)
        # A read that was queued behind that one has ended as well.
        draw(client, other := client.put(city(3, page_rows=64, seed=5)))
        client.delete(other)
        wait_until(lambda: held.metric("lumigrad_scene_bytes") == 0)


def test_a_scene_whose_last_put_is_taken_back_leaves_no_pages(held: WorkerProcess) -> None:
    with Client(held.target) as client:
        with stored(client, LEVELS) as scene:
            draw(client, scene)
            assert held.metric("lumigrad_scene_bytes") > 0
        assert held.metric("lumigrad_scene_bytes") == 0


def test_without_waiting_what_is_there_is_drawn_and_the_rest_is_read(held: WorkerProcess, disk: HeldDisk) -> None:
    with Client(held.target) as client:
        scene = client.put(LEVELS)
        with disk.hold_reads():
            nothing = draw(client, scene, wait=False)
            assert nothing.levels.missing_pages == nothing.levels.late_pages == len(LEVELS)
            assert not nothing.color.any()
        wait_until(lambda: draw(client, scene, wait=False).levels.late_pages == 0, "the last page")
        assert np.array_equal(draw(client, scene, wait=False).color, client.render(ROUNDED, ALL).color)
        with disk.hold_reads():
            # Level 0 is finer than is asked for, and only coarser levels stand in.
            coarse = draw(client, scene, max_error_px=1e6, wait=False)
            assert coarse.levels.missing_pages == len(LEVELS)
        coarsest = draw(client, scene, max_error_px=1e6)
        other = client.put(city(3, page_rows=64, seed=5))
        draw(client, other, max_error_px=1e6)
        with disk.hold_reads():
            stand_in = draw(client, other, wait=False)
        assert (stand_in.levels.missing_pages, stand_in.levels.late_pages) == (0, len(LEVELS))
        assert stand_in.levels.counts == coarsest.levels.counts


def test_a_picture_depends_on_the_call_and_not_on_what_is_in_memory(held: WorkerProcess, disk: HeldDisk) -> None:
    with Client(held.target) as client:
        exact, rounded = (client.render(plain, ALL).color for plain in (FINEST, ROUNDED))
        assert not np.array_equal(exact, rounded)
        scene = client.get(client.put(LEVELS).scene_id)
        assert np.array_equal(draw(client, scene, retain=True).color, exact)
        pages_and_cut = held.metric("lumigrad_scene_bytes")
        with disk.hold_reads():
            # No page is read: the pages in memory are packed.
            frame = draw(client, scene, wait=False)
        assert frame.levels is not None
        assert frame.levels.late_pages == 0
        assert np.array_equal(frame.color, rounded)
        assert held.metric("lumigrad_scene_bytes") > pages_and_cut
        client.delete(scene)
        assert held.metric("lumigrad_scene_bytes") == 0
        scene = client.put(LEVELS)
        assert np.array_equal(draw(client, scene).color, rounded)
        with disk.hold_reads():
            late = draw(client, scene, retain=True, wait=False).levels
        assert late is not None
        assert late.missing_pages == late.late_pages == len(LEVELS)
        assert np.array_equal(draw(client, scene, retain=True).color, exact)
        assert np.array_equal(draw(client, scene, wait=False).color, rounded)


def test_both_forms_of_a_page_are_read_at_the_same_time(held: WorkerProcess, disk: HeldDisk) -> None:
    with Client(held.target) as client, ThreadPoolExecutor(2) as pool:
        scene = client.put(LEVELS)
        with disk.hold_reads() as begun:
            frames = [pool.submit(draw, client, scene, retain=retain) for retain in (False, True)]
            wait_until(begun.exists, "a read")
            assert not wait(frames, 1).done
        for frame, plain in zip(frames, (ROUNDED, FINEST), strict=True):
            assert np.array_equal(frame.result().color, client.render(plain, ALL).color)


def test_a_view_that_is_larger_than_memory_is_drawn_coarser(tmp_path: Path) -> None:
    options = ("--max-payload-mib", "1", "--scene-mib", "1")
    with spooling(tmp_path, *options, supervised=False) as process, Client(process.target) as client:
        scene = client.put(LARGE)
        # A camera at the side, so that no two pages are equally far.
        side = Camera.look_at((31, -60, 17), (0, 0, 0), (0, 0, 1), width=96, height=64, fov_degrees=40)
        coarse = client.render(scene, side, max_error_px=1e-6)
        rows = sum(coarse.levels.counts)
        assert coarse.levels.coarse_pages > len(LARGE) / 2
        assert 92 * rows <= 1 << 19
        plain = as_drawn(LARGE, levels_of_pages(LARGE, side, coarse.levels.error_px * (1 + 1e-6)))
        assert rows == len(plain)
        assert np.array_equal(coarse.color, client.render(plain, side).color)
        assert process.metric("lumigrad_scene_bytes") <= 1 << 20


def test_items_of_a_batch_take_room_one_after_the_other(tmp_path: Path) -> None:
    """Each item takes nearly half of the room, so three at a time would wait for each other."""
    options = ("--max-payload-mib", "1", "--scene-mib", "1")
    with spooling(tmp_path, *options, supervised=False) as process, Client(process.target) as client:
        scene = client.put(LARGE)
        views = [
            Camera.look_at((x, -60, 17), (0, 0, 0), (0, 0, 1), width=96, height=64, fov_degrees=40)
            for x in (31, 23, 12, 5)
        ]
        with ThreadPoolExecutor(2) as pool:
            batches = list(
                pool.map(lambda _: client.render_batch([(scene, view) for view in views], max_error_px=1e-6), range(2))
            )
        for batch in batches:
            for view, frame in zip(views, batch, strict=True):
                assert isinstance(frame, Frame)
                assert np.array_equal(frame.color, client.render(scene, view, max_error_px=1e-6).color)


def test_pages_make_room_for_each_other_and_come_back(tmp_path: Path) -> None:
    options = ("--max-payload-mib", "1", "--scene-mib", "1")
    with spooling(tmp_path, *options, supervised=False) as process, Client(process.target) as client:
        scene = client.put(LARGE)
        views = [
            Camera.look_at((x, -8, z), (x, 0, z + 0.1), (0, 0, 1), width=48, height=48, fov_degrees=40)
            for x in (-8, 0, 8)
            for z in (-8, 0, 8)
        ]
        first = [client.render(scene, view, max_error_px=1e-6).color for view in views]
        assert process.metric("lumigrad_evictions_total", store="pages") > 0
        whole = client.put(joined(LARGE, [(page, 0) for page in range(4)]))
        again = [client.render(scene, view, max_error_px=1e-6).color for view in views]
        assert np.array_equal(first, again)
        assert client.get(whole.scene_id).kind == "gaussians"


def test_a_camera_that_moves_leaves_pages_in_memory(disk: HeldDisk, tmp_path: Path) -> None:
    """Copies for past views, and for their searches for hidden pages, are evicted before pages."""
    options = ("--max-payload-mib", "1", "--scene-mib", "1")
    levels = city(8, page_rows=64)
    path = [
        Camera.look_at((x, -24, 0.1), (x, 0, 0), (0, 0, 1), width=24, height=16, fov_degrees=40)
        for x in np.linspace(-14, 14, 12)
    ]
    with (
        spooling(tmp_path, *options, supervised=False, environment=disk.environment) as process,
        Client(process.target) as client,
    ):
        scene = client.put(levels)
        seen = [client.render(scene, camera, max_error_px=1e-6).levels for camera in path]
        assert process.metric("lumigrad_evictions_total", store="pages") > 0
        with disk.hold_reads():
            again = [client.render(scene, camera, max_error_px=1e-6, wait=False).levels for camera in path]
        assert [late.counts for late in again] == [first.counts for first in seen]
        assert len({sum(first.counts) for first in seen}) > 3
