"""A queue without a free place: callers of the client wait for one, within their time-out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from lumigrad.client import Client, Cuboid, DeadlineExceeded, Mesh, Obstacle, ResourceExhausted, World
from lumigrad.client.aio import AsyncClient
from support.calls.raw_calls import RawClient
from support.meshes.shapes import box
from support.threads import run_at_once
from support.training.scenes import gaussian_lesson
from support.workers.client_load import CAMERA, cloud
from support.workers.slow_render import SlowRender, wait_for, wait_for_device
from support.workers.worker import WorkerProcess, worker_fixture

process = worker_fixture("--queue-size", "1")


class FullQueue:
    """A call on the device and another that waits for it, until `empty`."""

    def __init__(self, process: WorkerProcess, client: RawClient) -> None:
        self._process = process
        self._slow = SlowRender(client)
        self._slow.start()
        # The first call has left the queue, whose only place is for the next.
        wait_for_device(process)
        self._slow.start()
        wait_for(process, "lumigrad_queue_depth", 1)
        self._refused = self._refusals()

    def _refusals(self) -> float:
        return self._process.metric("lumigrad_rejections_total", reason="busy")

    def wait_for_refusals(self, count: int = 1) -> None:
        """Wait until `count` calls have been refused since the queue was filled."""
        until = time.monotonic() + 60
        while self._refusals() < self._refused + count:
            assert time.monotonic() < until, "nobody was refused"
            time.sleep(0.02)

    def empty(self) -> None:
        """Cancel the calls that fill the queue."""
        self._slow.cancel()


@pytest.fixture
def full(process: WorkerProcess, client: RawClient) -> Iterator[Callable[[], FullQueue]]:
    filled: list[FullQueue] = []

    def fill() -> FullQueue:
        filled.append(FullQueue(process, client))
        return filled[-1]

    yield fill
    for queue in filled:
        queue.empty()
    wait_for(process, "lumigrad_calls_in_progress", 0)


def verbs(client: Client) -> dict[str, Callable[[], object]]:
    frame = client.render(cloud(), CAMERA, retain=True)
    world = World([Obstacle(Cuboid((1.0, 1.0, 1.0)))])
    shape = box((1.0, 2.0, 3.0))
    return {
        "render": lambda: client.render(cloud(), CAMERA),
        "backward": lambda: frame.backward(np.ones_like(frame.color)),
        "query": lambda: client.query(world, np.zeros((1, 4), np.float32)),
        "put": lambda: client.put(Mesh(shape.vertices, shape.faces)),
    }


@pytest.mark.parametrize("targets", ["lone", "pool"])
def test_every_call_waits_for_a_place(process: WorkerProcess, full: Callable[[], FullQueue], targets: str) -> None:
    several = [process.target, process.target.replace("127.0.0.1", "localhost")]
    with Client(process.target if targets == "lone" else several) as client:
        calls = verbs(client)
        queue = full()
        with ThreadPoolExecutor(len(calls)) as threads:
            begun = {name: threads.submit(call) for name, call in calls.items()}
            queue.wait_for_refusals(len(calls))
            queue.empty()
            for name, call in begun.items():
                assert call.result(150) is not None, name


def test_a_step_of_a_training_waits_for_a_place(process: WorkerProcess, full: Callable[[], FullQueue]) -> None:
    lesson = gaussian_lesson()
    with (
        Client(process.target) as client,
        client.trainer(lesson.scene, lesson.cameras, lesson.wrapped(client)) as trainer,
        ThreadPoolExecutor(1) as threads,
    ):
        assert trainer.step().number == 0
        queue = full()
        begun = threads.submit(trainer.step)
        queue.wait_for_refusals()
        queue.empty()
        assert begun.result(150).number == 1


def test_coroutines_wait_for_a_place_and_one_that_is_cancelled_does_not(
    process: WorkerProcess, full: Callable[[], FullQueue]
) -> None:
    async def main() -> None:
        async with AsyncClient(process.target) as client:
            await client.info()
            queue = full()
            waiting = asyncio.create_task(client.render(cloud(), CAMERA))
            given_up = asyncio.create_task(client.render(cloud(), CAMERA))
            await asyncio.to_thread(queue.wait_for_refusals, 2)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            queue.empty()
            assert (await waiting).color.shape == (CAMERA.height, CAMERA.width, 3)

    asyncio.run(main())


def test_who_has_too_little_time_or_wants_no_repetition_hears_at_once(
    process: WorkerProcess, full: Callable[[], FullQueue]
) -> None:
    full()
    with Client(process.target, retry_s=0.0) as impatient, pytest.raises(ResourceExhausted) as refused:
        impatient.render(cloud(), CAMERA)
    assert refused.value.retry_after_s
    began = time.monotonic()
    # The worker may refuse because the deadline is too near.
    with Client(process.target) as client, pytest.raises((ResourceExhausted, DeadlineExceeded)):
        client.render(cloud(), CAMERA, timeout_s=2.0)
    assert time.monotonic() - began < 60


def test_training_loops_of_many_threads_share_a_queue_of_one(process: WorkerProcess) -> None:
    torch = pytest.importorskip("torch")
    from lumigrad.client.torch import render_spheres

    scene, failures = cloud(), []

    def steps(client: Client) -> None:
        positions = torch.tensor(scene.positions, requires_grad=True)
        colors, radii = torch.tensor(scene.colors), torch.tensor(scene.radii)
        try:
            for _ in range(8):
                picture = render_spheres(positions, colors, radii, CAMERA, gamma=0.1, max_depth=20.0, client=client)
                picture.color.square().sum().backward()
        except Exception as error:
            failures.append(error)

    with Client(process.target) as client:
        run_at_once(*[partial(steps, client)] * 6)
    assert not failures
