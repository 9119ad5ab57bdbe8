"""The simulation of a cluster agrees with what can be worked out by hand."""

from __future__ import annotations

import pytest

from tests.benchmarks.scale_out.model import KEPT_SCENES, affinity, limits, training
from tests.benchmarks.scale_out.simulation import Memory, Queue, Stage, measured_machine, owners, steps_per_second
from tests.benchmarks.scale_out.workloads import WORKLOADS, Cluster, Workload

BY_NAME = {work.name: work for work in WORKLOADS}


def test_one_caller_waits_for_each_part_of_its_call() -> None:
    device = Queue("device")
    rate, _ = steps_per_second(1, lambda _: [Stage((), 0.003), Stage(((device, 0.007),))], 50)
    assert rate == pytest.approx(100)


def test_many_callers_are_as_fast_as_the_slowest_queue() -> None:
    first, second, both = Queue("first"), Queue("second"), Queue("both", servers=2)
    rate, elapsed = steps_per_second(
        9, lambda _: [Stage(((first, 0.002), (both, 0.002))), Stage(((second, 0.005),))], 100
    )
    assert rate == pytest.approx(200, rel=0.02)
    assert second.share(elapsed) > 0.95 and first.share(elapsed) == pytest.approx(0.4, rel=0.1)
    assert both.share(elapsed) == pytest.approx(0.2, rel=0.1)


def test_memory_forgets_what_was_used_least_recently() -> None:
    memory = Memory(2)
    assert [memory.has(scene) for scene in (1, 2, 1, 3, 1, 2)] == [False, False, True, False, True, False]


@pytest.mark.parametrize("work", WORKLOADS, ids=lambda work: work.name)
def test_a_trainer_alone_is_as_fast_as_on_paper(work: Workload) -> None:
    alone = limits(work, Cluster())["one call at a time"]
    assert training(1, work, 0).per_second == pytest.approx(alone, rel=1e-6)
    # Eight trainers share links, which limit them where they are not wide enough for all.
    shared = min(alone, limits(work, Cluster())["trainers' link"]) * 8
    assert 0.6 * shared < training(8, work, 0).per_second <= shared * 1.01


def test_scenes_that_are_hashed_leave_workers_without_work_unless_there_are_several_for_each() -> None:
    steps = BY_NAME["steps on the worker"]
    even = training(64, steps, 0).per_second
    # A worker has no scene with a probability of 1/e if there are as many scenes as workers.
    assert training(64, steps, 1).per_second / even == pytest.approx(0.63, abs=0.12)
    assert training(64, steps, 4).per_second > training(64, steps, 1).per_second * 1.4
    counts = [owners(256, 64).count(worker) for worker in range(64)]
    assert sum(counts) == 256 and max(counts) < 16


def test_affinity_saves_what_would_be_sent_again() -> None:
    scenes = 4 * KEPT_SCENES
    hashed, sent_hashed = affinity(8, scenes, "by hash", 40)
    anyhow, sent_anyhow = affinity(8, scenes, "at random", 40)
    assert sent_hashed < 0.2 * sent_anyhow and hashed > 3 * anyhow
    # Three quarters of the scenes that are asked for are not there.
    assert sent_anyhow == pytest.approx(0.75 * 236, rel=0.15)
    # If every worker has room for all scenes, each scene is sent to each worker once.
    assert affinity(8, 8, "at random", 40)[1] < 0.05 * 236


def test_workers_on_one_machine_share_its_cores() -> None:
    # Enough cores: the worker itself is the limit.
    assert measured_machine(1, 0.01, 0.0, callers=8, cores=8) == pytest.approx(100, rel=0.02)
    # Two cores for 12 ms of work, however many workers there are.
    for workers in (2, 4):
        assert measured_machine(workers, 0.01, 0.002, callers=8, cores=2) == pytest.approx(2 / 0.012, rel=0.1)
