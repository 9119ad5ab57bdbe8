"""Custom losses through shared memory: the same trainings as with the stream, and no memory is kept."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Camera, Client, Gaussians, InvalidArgument
from lumigrad.client.training import Trainer
from lumigrad.client.transport.lane import Lane
from support.fault_proxy import FaultProxy
from support.training.scenes import gaussian_lesson
from support.workers.client_load import client_fixture, descriptors, wait_for_lane
from support.workers.forks import run_program
from support.workers.slow_render import wait_until
from support.workers.worker import WorkerProcess, worker

SCENE = gaussian_lesson().scene
# Pictures of 0.9 MiB.
CAMERAS = [
    Camera.look_at((4 * np.sin(angle), 0, 4 * np.cos(angle)), (0, 0, 0), width=320, height=240, fov_degrees=45)
    for angle in (0.0, 1.0, 2.0)
]
RATES = {"means": 1e-3, "opacities": 1e-2, "sh0": 1e-2}


@contextmanager
def trained(client: Client, **options: int) -> Iterator[Trainer]:
    with client.trainer(SCENE, CAMERAS, rates=RATES, seed=3, **options) as trainer:
        yield trainer


def colors(trainer: Trainer, count: int, **options: int) -> Iterator[np.ndarray]:
    """Runs steps towards grey pictures; yields each picture before its gradient is sent."""
    for batch in trainer.batches(count, **options):
        yield batch.color
        batch.apply(color=1e-3 * (batch.color - np.float32(0.5)))


def run(trainer: Trainer, count: int, **options: int) -> None:
    """Runs steps, and keeps no picture."""
    for _ in colors(trainer, count, **options):
        pass


def tensors(trainer: Trainer) -> dict[str, np.ndarray]:
    scene = trainer.scene()
    assert isinstance(scene, Gaussians)
    return dict(scene.tensors)


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, array in expected.items():
        assert found[name].tobytes() == array.tobytes(), name


def lane_of(client: Client) -> Lane:
    lane = client._workers.members()[0].connection.lanes._lane
    assert lane is not None
    return lane


def holds_nothing(lane: Lane) -> bool:
    """Whether no array is in the lane's memory. Threads may leave garbage at any time, until they have ended."""
    gc.collect()
    return not lane._held


@pytest.fixture(scope="module")
def expected() -> dict[str, np.ndarray]:
    """The scene after twelve steps by the stream."""
    with worker("--device", "cpu") as process, Client(process.target, lane="stream") as client, trained(client) as own:
        run(own, 12)
        return tensors(own)


shared = client_fixture("running", lane="shared")


@pytest.mark.parametrize("in_flight", [1, 3])
def test_pictures_and_scenes_are_the_same_bit_for_bit(in_flight: int, running: WorkerProcess, shared: Client) -> None:
    results = []
    before = running.metric("lumigrad_lane_fallbacks_total")
    with Client(running.target, lane="stream") as stream:
        for client in (stream, shared):
            with trained(client) as trainer:
                pictures = [color.copy() for color in colors(trainer, 6, in_flight=in_flight)]
                results.append((pictures, tensors(trainer)))
    for expected, found in zip(results[0][0], results[1][0], strict=True):
        assert found.tobytes() == expected.tobytes()
    assert_same(results[1][1], results[0][1])
    assert running.metric("lumigrad_lane_fallbacks_total") == before


def test_nothing_large_travels_with_the_stream(running: WorkerProcess) -> None:
    with FaultProxy(running.target) as proxy, Client(proxy.target, lane="shared") as client, trained(client) as trainer:
        wait_for_lane(client)
        run(trainer, 1)
        passed = proxy.up.passed + proxy.down.passed
        run(trainer, 10)
        assert proxy.up.passed + proxy.down.passed < passed + (64 << 10)


def test_a_client_with_no_large_payload_yet_opens_a_lane_at_the_first_picture(running: WorkerProcess) -> None:
    with Client(running.target) as client, trained(client) as trainer:
        lanes = client._workers.members()[0].connection.lanes
        assert lanes._lane is None
        # The opening fails if a busy machine takes seconds for it, and is tried again with a later step.
        while lanes._lane is None:
            run(trainer, 2)
        assert lanes._lane.is_alive


def test_no_lease_is_left(shared: Client) -> None:
    with trained(shared) as trainer:
        run(trainer, 4, in_flight=2)
        wait_until(lambda: holds_nothing(lane_of(shared)))
        run(trainer, 30, in_flight=2)
        wait_until(lambda: holds_nothing(lane_of(shared)))
        # Two pictures, their gradients, and a few pictures that are not collected yet; each step brings two more.
        assert len(lane_of(shared)._regions) <= 10, "regions are used again"
        # Leaves one picture without a gradient, and one in flight.
        next(trainer.batches(2, in_flight=2))
        run(trainer, 1)
        wait_until(lambda: holds_nothing(lane_of(shared)))
        batch = next(trainer.batches(1))
        with pytest.raises(InvalidArgument, match=re.escape("expected [1, 240, 320, 3]")):
            # `Trainer.apply` does not check as `Batch.apply` does.
            trainer.apply(batch.images.number, {"color": (np.zeros((1, 1000, 100, 3), np.float32), None)})
        del batch
    wait_until(lambda: holds_nothing(lane_of(shared)))


def test_pictures_stay_as_they_are_after_the_training(shared: Client) -> None:
    with trained(shared) as trainer:
        kept = list(colors(trainer, 5))
        copies = [color.copy() for color in kept]
        run(trainer, 5)
    list(shared.render(SCENE, CAMERAS[0]).items())
    for color, copy in zip(kept, copies, strict=True):
        assert color.tobytes() == copy.tobytes()


def test_a_full_lane_falls_back_to_the_stream(expected: dict[str, np.ndarray]) -> None:
    """The lane's 1 MiB has room for one picture."""
    with (
        worker("--device", "cpu", "--lane-mib", "2") as process,
        Client(process.target, lane="shared") as client,
        trained(client) as trainer,
    ):
        wait_for_lane(client)
        kept = list(colors(trainer, 12))
        assert process.metric("lumigrad_lane_fallbacks_total", reason="full") == 11
        assert lane_of(client).is_alive
        assert_same(tensors(trainer), expected)
        assert len(kept) == 12


def test_a_lost_lane_costs_no_step(running: WorkerProcess, shared: Client, expected: dict[str, np.ndarray]) -> None:
    with trained(shared) as trainer:
        for number, _ in enumerate(colors(trainer, 12)):
            if number == 4:
                lane_of(shared)._token = bytes(16)
        assert trainer.resumed == 1
        assert_same(tensors(trainer), expected)
    assert running.metric("lumigrad_lane_fallbacks_total", reason="lost") > 0


def test_memory_that_cannot_be_mapped_costs_no_step(shared: Client, expected: dict[str, np.ndarray]) -> None:
    with trained(shared) as trainer:
        wait_for_lane(shared)
        # Garbage that is collected meanwhile may return a descriptor.
        gc.collect()
        with descriptors(1), pytest.warns(RuntimeWarning, match="no shared memory"):
            run(trainer, 12)
            assert shared.lane == "stream"
        assert_same(tensors(trainer), expected)


@pytest.mark.parametrize("lane", ["stream", "shared"])
def test_a_connection_that_breaks_before_a_gradient_costs_no_step(
    lane: str, running: WorkerProcess, expected: dict[str, np.ndarray], caplog: pytest.LogCaptureFixture
) -> None:
    """No snapshot is needed: the step whose picture is here is rendered again for its gradient.

    A log handler that keeps its records keeps no picture.
    """
    caplog.set_level(logging.INFO, "lumigrad")
    with FaultProxy(running.target) as proxy, Client(proxy.target, lane=lane, retry_s=60) as client:  # type: ignore[arg-type]
        if lane == "shared":
            wait_for_lane(client)
        with trained(client) as trainer:
            for count in (3, 4, 5):
                # The gradient of the last of these does not arrive.
                for left, _color in zip(range(count, 0, -1), colors(trainer, count), strict=True):
                    if left == 1 and count < 5:
                        proxy.up.cut(after=100)
                del _color
            assert trainer.resumed == 2
            assert_same(tensors(trainer), expected)
        if lane == "shared":
            wait_until(lambda: holds_nothing(lane_of(client)))


def test_a_killed_worker_s_successor_gets_the_gradients_again(tmp_path: Path, expected: dict[str, np.ndarray]) -> None:
    with (
        worker("--device", "cpu", "--spool", str(tmp_path / "spool"), supervised=True) as process,
        Client(process.target, lane="shared", retry_s=60) as client,
        trained(client, snapshot_every=4) as trainer,
    ):
        wait_for_lane(client)
        for number, color in enumerate(colors(trainer, 12, in_flight=2)):
            if number == 6:
                first, copy = lane_of(client), color.copy()
                os.kill(process.worker_pid, signal.SIGKILL)
                # The dead worker's picture stays as it was.
                assert color.tobytes() == copy.tobytes()
        assert trainer.resumed == 1
        wait_for_lane(client)
        assert lane_of(client) is not first
        wait_until(lambda: holds_nothing(first))


VANISHING = """
import os, signal, sys
import numpy as np
from lumigrad.client import Camera, Client
from end_to_end.training.test_training_lanes import SCENE, CAMERAS, RATES, colors
client = Client(sys.argv[1], lane="shared")
trainer = client.trainer(SCENE, CAMERAS, rates=RATES, seed=3)
kept = list(colors(trainer, 5))
batch = next(trainer.batches(1))
print(trainer.training_id, trainer.lease, flush=True)
trainer._ahead = 2
batch.apply(color=np.zeros_like(batch.color))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_client_leaves_no_memory_and_a_whole_training(expected: dict[str, np.ndarray]) -> None:
    """The gradient under way when it died was either applied as a whole or not at all."""
    # Lanes of other tests may still be ending, hence a worker of its own.
    with worker("--device", "cpu") as process:
        done = run_program(VANISHING, process.target)
        assert done.returncode == -signal.SIGKILL, done.stderr
        wait_until(lambda: process.metric("lumigrad_lanes") == 0)
        with Client(process.target, lane="stream") as client, client.resume_trainer(*done.stdout.split()) as trainer:
            assert trainer.step_number in (5, 6)
            found = tensors(trainer)
            assert all(np.isfinite(array).all() for array in found.values())
            assert any(array.tobytes() != expected[name].tobytes() for name, array in found.items())
