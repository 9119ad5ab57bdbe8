"""Trainings from coroutines: the steps of the blocking trainer, and steps that nobody waits for."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import numpy as np
import pytest

from lumigrad.client import Client, Gaussians, InvalidArgument, TrainingHeld
from lumigrad.client.aio import AsyncBatch, AsyncClient, AsyncTrainer
from lumigrad.client.training import Batch, Trainer
from support.training.scenes import Lesson, gaussian_lesson
from support.workers.worker import WorkerProcess

LESSON: Lesson = gaussian_lesson()
RATES = {"means": 2e-3, "quats": 1e-3, "scales": 5e-3, "opacities": 2e-2, "sh0": 5e-3, "sh_rest": 2e-4}
# Methods that only code built on a trainer needs.
INTERNAL = {"apply", "receive_step", "send_step", "settle"}


def run(process: WorkerProcess, main: Callable[[AsyncClient], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with AsyncClient(process.target) as client:
            await main(client)

    asyncio.run(whole())


def assert_same(found: object, expected: object) -> None:
    assert isinstance(found, Gaussians) and isinstance(expected, Gaussians)
    for name, array in found.tensors.items():
        assert np.array_equal(array, expected.tensors[name]), name


@asynccontextmanager
async def cancelled_soon(awaitable: Awaitable[object]) -> AsyncIterator[None]:
    """Runs the block while `awaitable` is under way, then cancels it."""
    task = asyncio.ensure_future(awaitable)
    await asyncio.sleep(0)
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_trainers_have_the_same_verbs() -> None:
    for blocking, awaited in ((Trainer, AsyncTrainer), (Batch, AsyncBatch)):
        verbs = {name for name in dir(blocking) if not name.startswith("_")}
        if blocking is Trainer:
            verbs -= INTERNAL
        assert verbs <= set(dir(awaited))
        for name in verbs:
            verb = getattr(blocking, name)
            if inspect.isfunction(verb):
                assert str(inspect.signature(getattr(awaited, name))) == str(inspect.signature(verb)), name


def test_steps_are_those_of_the_blocking_trainer(running: WorkerProcess, client: Client) -> None:
    target_images = LESSON.wrapped(client)
    with client.trainer(LESSON.scene, LESSON.cameras, target_images, rates=RATES, seed=2) as trainer:
        expected = [step.loss for step in trainer.steps(20)]
        after = trainer.scene()

    async def main(own: AsyncClient) -> None:
        async with own.trainer(LESSON.scene, LESSON.cameras, target_images, rates=RATES, seed=2) as training:
            assert isinstance(training, AsyncTrainer)
            losses = [step.loss async for step in training.steps(19, in_flight=4)]
            losses.append((await training.step()).loss)
            assert losses == expected and training.step_number == 20
            assert_same(await training.scene(), after)
            assert (await training.views())[1] is None
        # The training has ended: another one may begin.
        again = await own.trainer(LESSON.scene, LESSON.cameras, target_images, rates=RATES)
        await again.close(finish=False)
        async with own.resume_trainer(again.training_id, again.lease) as resumed:
            assert (await resumed.step()).number == 0

    run(running, main)


def test_own_losses_are_those_of_the_blocking_trainer(running: WorkerProcess, client: Client) -> None:
    with client.trainer(LESSON.scene, LESSON.cameras, rates=RATES, seed=2) as trainer:
        for batch in trainer.batches(10, in_flight=2):
            batch.apply(color=2 * batch.color)
        expected = trainer.scene()

    async def main(own: AsyncClient) -> None:
        async with own.trainer(LESSON.scene, LESSON.cameras, rates=RATES, seed=2) as training:
            async for batch in training.batches(10, in_flight=2):
                assert isinstance(batch, AsyncBatch) and len(batch.views) == 1
                late = await batch.apply(color=2 * batch.color)
            assert (await late.result()).number == late.number == 9
            assert_same(await training.scene(), expected)

    run(running, main)


@pytest.mark.parametrize("asked", ["publish", "scene", "cameras"])
def test_a_loop_ends_when_it_is_left(running: WorkerProcess, asked: str) -> None:
    """A generator alone would end some time later, and the next call could find its images without gradients."""

    async def main(own: AsyncClient) -> None:
        async with own.trainer(LESSON.scene, LESSON.cameras, rates=RATES) as training:
            async for batch in training.batches(3, in_flight=2):
                assert batch.color.any()
                break
            assert training._blocking._loop is None
            assert await getattr(training, asked)()
            batches = training.batches(3)
            await anext(batches)
            assert training._blocking._loop is not None
            await batches.aclose()
            assert training._blocking._loop is None
            with pytest.raises(StopAsyncIteration):
                await anext(batches)
            assert training.step_number == 0

    run(running, main)


def test_errors_are_those_of_the_blocking_trainer(running: WorkerProcess) -> None:
    async def main(own: AsyncClient) -> None:
        with pytest.raises(InvalidArgument, match="expected at least one camera"):
            await own.trainer(LESSON.scene, [])
        async with own.trainer(LESSON.scene, LESSON.cameras) as training:
            with pytest.raises(InvalidArgument, match="target images and a loss"):
                await training.step()
            with pytest.raises(TrainingHeld):
                await own.trainer(LESSON.scene, LESSON.cameras)

    run(running, main)


def test_steps_that_were_cancelled_are_made_before_the_next_ones(running: WorkerProcess, client: Client) -> None:
    target_images = LESSON.wrapped(client)

    async def main(own: AsyncClient) -> None:
        async with own.trainer(LESSON.scene, LESSON.cameras, target_images, rates=RATES) as training:

            async def many() -> None:
                async for _ in training.steps(100_000, in_flight=8):
                    pass

            async with cancelled_soon(many()):
                while training.step_number < 5:
                    await asyncio.sleep(0.01)
            reached = training.step_number
            step = await training.step()
            # The steps in flight were made, but not a hundred thousand.
            assert reached <= step.number <= reached + 16
            assert training.step_number == step.number + 1
            assert len((await training.views())[0]) == len(LESSON.cameras)

    run(running, main)


def test_batches_that_were_cancelled_are_rendered_again(running: WorkerProcess) -> None:
    async def main(own: AsyncClient) -> None:
        async with own.trainer(LESSON.scene, LESSON.cameras, rates=RATES) as training:
            applied = asyncio.Event()

            async def one() -> None:
                async for batch in training.batches(5, in_flight=2):
                    await batch.apply(color=batch.color)
                    applied.set()
                    await asyncio.sleep(600)

            async with cancelled_soon(one()):
                await applied.wait()
            numbers = []
            async for batch in training.batches(3):
                numbers.append((await batch.apply(color=batch.color)).number)
            assert numbers == [1, 2, 3]

    run(running, main)


async def _begun(own: AsyncClient) -> AsyncTrainer:
    return await own.trainer(LESSON.scene, LESSON.cameras)


def test_a_training_that_was_cancelled_while_it_began_holds_nothing(running: WorkerProcess) -> None:
    async def main(own: AsyncClient) -> None:
        for pause in (0.0, 0.002, 0.005, 0.01, 0.02, 0.05):
            with suppress(asyncio.TimeoutError, TrainingHeld):
                training = await asyncio.wait_for(_begun(own), pause)
                await training.close()
        until = time.monotonic() + 150
        while time.monotonic() < until:
            with suppress(TrainingHeld):
                async with own.trainer(LESSON.scene, LESSON.cameras) as training:
                    assert training.step_number == 0
                    return
            # The threads that began a training are just ending it.
            await asyncio.sleep(0.1)
        raise AssertionError("the scene is still held")

    run(running, main)
