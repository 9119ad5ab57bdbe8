"""Trainings over a link with a long round trip, which steps in flight hide."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from lumigrad.client import Client
from lumigrad.client.training import Trainer
from support.fault_proxy import FaultProxy
from support.training.scenes import gaussian_lesson
from support.workers.worker import WorkerProcess

LESSON = gaussian_lesson(2000, degree=3)
RATES = {"means": 1e-4, "sh0": 1e-3}
# Longer and longer, until a busy machine's computation is little beside them.
ROUND_TRIPS = (0.05, 0.2, 0.8, 3.2)


@pytest.fixture
def link(running: WorkerProcess) -> Iterator[FaultProxy]:
    with FaultProxy(running.target) as proxy:
        yield proxy


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def test_the_worker_s_loss_is_nearly_as_fast_far_away(link: FaultProxy) -> None:
    with Client(link.target, lane="stream") as client:
        target_images = LESSON.target_images(client)
        with client.trainer(LESSON.scene, LESSON.cameras, target_images, rates=RATES) as trainer:
            late = []
            for round_trip in ROUND_TRIPS:
                link.up.delay = link.down.delay = 0.0
                list(trainer.steps(4))
                near = seconds(lambda: list(trainer.steps(60, batch=4)))
                link.up.delay = link.down.delay = round_trip / 2
                far = seconds(lambda: list(trainer.steps(60, batch=4)))
                late.append((far - near) / round_trip)
                if late[-1] < 10:
                    break
    assert late[-1] < 10, f"60 steps far away take so many round trips more: {late}"


def own_steps(trainer: Trainer, count: int, in_flight: int) -> list[int]:
    done = []
    for batch in trainer.batches(count, image_format="bfloat16", in_flight=in_flight):
        gradient = 0.01 * (batch.color - np.float32(0.5))
        done.append(batch.apply(color=gradient, gradient_format="bfloat16"))
    return [result.number for result in done]


def test_gradients_do_not_wait_for_the_steps_before(link: FaultProxy) -> None:
    """A step costs two round trips, of the picture and of its gradient; with four in flight, it costs less than one."""
    count = 20
    with (
        Client(link.target, lane="stream") as client,
        client.trainer(LESSON.scene, LESSON.cameras, rates=RATES) as trainer,
    ):
        own_steps(trainer, 2, 1)
        for round_trip in ROUND_TRIPS[1:]:
            link.up.delay = link.down.delay = round_trip / 2
            first = trainer.step_number
            start = time.perf_counter()
            assert own_steps(trainer, count, 4) == list(range(first, first + count))
            taken = time.perf_counter() - start
            assert trainer.step_number == first + count
            if taken < count * round_trip:
                break
        assert taken < count * round_trip
        # A check of the link itself: no step is faster than its round trips.
        assert seconds(lambda: own_steps(trainer, 3, 1)) >= 0.95 * 2 * 3 * round_trip
