"""Coroutines that stop waiting, clients that are closed, and workers that die during many awaited calls."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Cancelled, Client, SceneHandle, Spheres, Unavailable
from lumigrad.client.aio import AsyncClient
from support.fault_proxy import FaultProxy
from support.training.scenes import gaussian_lesson
from support.workers.client_load import CAMERA, cloud
from support.workers.slow_render import wait_for
from support.workers.slow_scene import CAMERAS, SETTINGS, slow_spheres
from support.workers.worker import WorkerProcess, worker

CALLS = 4


@pytest.fixture(scope="module")
def slow(process: WorkerProcess) -> SceneHandle:
    with Client(process.target) as client:
        return client.put(slow_spheres())


async def until(process: WorkerProcess, metric: str, value: float) -> None:
    """Like `wait_for`, without blocking the event loop."""
    await asyncio.to_thread(wait_for, process, metric, value)


def run(process: WorkerProcess, main: Callable[[AsyncClient], Awaitable[None]], **options: Any) -> None:
    async def whole() -> None:
        async with AsyncClient(process.target, calls=CALLS, **options) as client:
            await main(client)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(whole())
    wait_for(process, "lumigrad_calls_in_progress", 0)
    wait_for(process, "lumigrad_transit_bytes", 0)


@pytest.mark.parametrize("lane", ["stream", "auto"])
def test_a_time_out_ends_the_work(process: WorkerProcess, slow: SceneHandle, lane: str) -> None:
    async def main(client: AsyncClient) -> None:
        render = asyncio.create_task(client.render(slow, CAMERAS, **SETTINGS))
        await until(process, "lumigrad_calls_in_progress", 1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(render, 0.01)
        await until(process, "lumigrad_calls_in_progress", 0)

    run(process, main, lane=lane)


def test_calls_are_bounded_and_cancelled_wherever_they_are(process: WorkerProcess, slow: SceneHandle) -> None:
    async def main(client: AsyncClient) -> None:
        renders = [asyncio.create_task(client.render(slow, CAMERAS, **SETTINGS)) for _ in range(60)]
        await until(process, "lumigrad_calls_in_progress", CALLS)
        for _ in range(5):
            assert await asyncio.to_thread(process.metric, "lumigrad_calls_in_progress") <= CALLS
        for render in renders:
            render.cancel()
        ended = await asyncio.gather(*renders, return_exceptions=True)
        assert all(isinstance(error, asyncio.CancelledError) for error in ended)
        await until(process, "lumigrad_calls_in_progress", 0)
        # No thread and no place is lost.
        frames = await asyncio.gather(*(client.render(cloud(), CAMERA) for _ in range(2 * CALLS)))
        assert len(frames) == 2 * CALLS

    run(process, main)


def test_the_loop_goes_on_while_calls_wait(process: WorkerProcess, slow: SceneHandle) -> None:
    async def main(client: AsyncClient) -> None:
        render = asyncio.create_task(client.render(slow, CAMERAS, **SETTINGS))
        await until(process, "lumigrad_calls_in_progress", 1)
        for _ in range(20):
            assert await client.info()
        assert not render.done()
        render.cancel()

    run(process, main)


def test_closing_cancels_what_is_under_way_and_what_waits(process: WorkerProcess, slow: SceneHandle) -> None:
    async def whole() -> None:
        client = AsyncClient(process.target, calls=CALLS)
        renders = [asyncio.create_task(client.render(slow, CAMERAS, **SETTINGS)) for _ in range(2 * CALLS)]
        await until(process, "lumigrad_calls_in_progress", CALLS)
        await client.close()
        ended = await asyncio.gather(*renders, return_exceptions=True)
        assert [type(error) for error in ended] == [Cancelled] * len(ended)
        await until(process, "lumigrad_calls_in_progress", 0)

    asyncio.run(whole())


def test_a_stream_that_is_left_ends_the_work(process: WorkerProcess, slow: SceneHandle) -> None:
    async def main(client: AsyncClient) -> None:
        async with client.stream(slow, in_flight=3, **SETTINGS) as stream:
            async for frame in stream.frames([CAMERAS[0]] * 100):
                assert frame.alpha.shape == (256, 256)
                break
        await until(process, "lumigrad_calls_in_progress", 0)

    run(process, main)


def test_gradients_are_cancelled_and_asked_for_again(process: WorkerProcess, slow: SceneHandle) -> None:
    async def main(client: AsyncClient) -> None:
        frame = await client.render(slow, CAMERAS[:8], gamma=1.0, outputs=("alpha",), retain=True)
        gradient = np.ones_like(frame.alpha)
        is_done = True
        # A pass may be over before it is seen on a busy machine.
        while is_done:
            backward = asyncio.create_task(frame.backward(alpha=gradient))
            while not (is_done := backward.done()):
                if await asyncio.to_thread(process.metric, "lumigrad_calls_in_progress") == 1:
                    break
        backward.cancel()
        with pytest.raises(asyncio.CancelledError):
            await backward
        await until(process, "lumigrad_calls_in_progress", 0)
        gradients = await frame.backward(alpha=gradient, wanted=("positions",), release=True)
        assert np.abs(gradients.positions).max() > 0

    run(process, main)


def test_an_upload_is_cancelled_on_its_way(process: WorkerProcess) -> None:
    large = Spheres(np.zeros((1 << 20, 3), np.float32), np.zeros((1 << 20, 3)), np.ones(1 << 20))
    with FaultProxy(process.target) as proxy:

        async def whole() -> None:
            async with AsyncClient(proxy.target, lane="stream") as client:
                await client.info()
                proxy.up.bytes_per_second = 1e6
                put = asyncio.create_task(client.put(large))
                # The worker has reserved room for the payload.
                while not await asyncio.to_thread(process.metric, "lumigrad_transit_bytes"):
                    await asyncio.sleep(0.02)
                put.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await put
                await until(process, "lumigrad_transit_bytes", 0)

        asyncio.run(whole())


def test_nobody_waits_for_a_worker_that_is_not_there_longer_than_asked() -> None:
    async def whole() -> None:
        client = AsyncClient("localhost:1", retry_s=600, timeout_s=600)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.info(), 0.3)
        began = time.monotonic()
        info = asyncio.create_task(client.info())
        await asyncio.sleep(0.3)
        await client.close()
        with pytest.raises(Cancelled):
            await info
        # The client must not keep trying for ten minutes.
        assert time.monotonic() - began < 60
        async with AsyncClient("localhost:1", retry_s=0) as hasty:
            with pytest.raises(Unavailable):
                await hasty.info()

    asyncio.run(whole())


def test_a_killed_worker_is_repaired_under_many_calls() -> None:
    with (
        worker("--device", "cpu", supervised=True) as process,
        Client(process.target, timeout_s=120, retry_s=60) as blocking,
    ):
        expected = blocking.render(cloud(), CAMERA).color

        async def main(client: AsyncClient) -> None:
            handle = await client.put(cloud())
            renders = [asyncio.create_task(client.render(handle, CAMERA)) for _ in range(60)]
            await renders[5]
            os.kill(process.worker_pid, signal.SIGKILL)
            for frame in await asyncio.gather(*renders):
                assert np.array_equal(frame.color, expected)
            # The new worker lacks the scene.
            assert np.array_equal((await client.render(handle, CAMERA)).color, expected)

        run(process, main, timeout_s=120, retry_s=60)
        process.wait_for_log("worker started", count=2)


def test_a_killed_worker_goes_on_with_an_awaited_training(tmp_path: Path) -> None:
    lesson = gaussian_lesson()
    with (
        worker("--device", "cpu", "--spool", str(tmp_path / "spool"), supervised=True) as process,
        Client(process.target) as blocking,
    ):
        target_images = lesson.wrapped(blocking)

        async def main(client: AsyncClient) -> None:
            async with client.trainer(lesson.scene, lesson.cameras, target_images, snapshot_every=4) as trainer:
                numbers = []
                async for step in trainer.steps(20, in_flight=4):
                    numbers.append(step.number)
                    if step.number == 9:
                        os.kill(process.worker_pid, signal.SIGKILL)
                assert numbers == list(range(20)) and trainer.resumed == 1

        run(process, main, retry_s=60, timeout_s=120)
