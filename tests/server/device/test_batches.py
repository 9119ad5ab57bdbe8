"""Calls for the same work that wait together are computed as one, and none of them can tell."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels import spheres
from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.server.core.errors import BusyError, CancelledError, DeviceMemoryError, InvalidArgumentError
from lumigrad.server.device.executor import DeviceExecutor
from lumigrad.server.device.jobs import BatchEntry
from lumigrad.server.device.memory import Cost, DeviceMemory
from lumigrad.v1 import distance_pb2, gaussians_pb2, image_pb2, render_pb2
from support.calls.distance_calls import DistanceClient
from support.calls.distance_worlds import SWEPT, stored, ways
from support.calls.gaussian_calls import gaussian_cloud, gaussian_spec
from support.calls.raw_calls import (
    SECONDS,
    Arrays,
    RawClient,
    opencv_camera,
    pulsar_camera,
    reply_of,
    spec_of,
    sphere_cloud,
)
from support.workers.held_device import Asked, StandInCall, held
from support.workers.slow_render import SlowRender, wait_for, wait_for_work
from support.workers.worker import WorkerProcess, worker_fixture

CALLS = 6
CPU = torch.device("cpu")
Ask = Callable[[int], Arrays]
process = worker_fixture("--batch-views", "8")


@pytest.fixture(scope="module")
def slow(client: RawClient) -> SlowRender:
    return SlowRender(client)


def views(number: int) -> list[Any]:
    """Returns one or two views, different for each call."""
    return [opencv_camera(32, 24, x=0.1 * number + 0.05 * view) for view in range(1 + number % 2)]


def sphere_asks(client: RawClient) -> Ask:
    """Asks for colours in different formats, which are no reason to compute the calls apart.

    Calls with Pulsar's cameras are not prepared; prepared calls would run one by one on the CPU.
    """
    scene_id = client.put(sphere_cloud(80, seed=4)).scene.scene_id
    kinds = (image_pb2.IMAGE_FORMAT_FLOAT32, image_pb2.IMAGE_FORMAT_PNG, image_pb2.IMAGE_FORMAT_BFLOAT16)

    def ask(number: int) -> Arrays:
        cameras = [pulsar_camera(32, 24, x=0.1 * number + 0.05 * view) for view in range(1 + number % 2)]
        spec = spec_of(*cameras, scene_id=scene_id, outputs=["color", "depth", "info"], min_depth=0.0)
        formats = [image_pb2.OutputFormat(name="color", format=kinds[number % 3])]
        return client.render(spec, formats=formats).arrays

    return ask


def gaussian_asks(client: RawClient) -> Ask:
    scene_id = client.put(gaussian_cloud(80, seed=4)).scene.scene_id
    settings = {"outputs": ["color", "expected_depth", "radii"], "background": [0.1, 0.2, 0.3], "antialiased": True}
    # Calls with a transform are not prepared either.
    settings["transforms"] = [gaussians_pb2.SliceTransform(end=40, matrix=np.eye(4).reshape(-1))]
    return lambda number: client.render(gaussian_spec(*views(number), scene_id=scene_id, **settings)).arrays


def distance_asks(client: RawClient) -> Ask:
    distances = DistanceClient(client)
    world_id = stored(client, distances)
    outputs = ["cost", "gradient", "distance", "obstacle", "beyond"]

    def ask(number: int) -> Arrays:
        environments = np.array([0, number % 2], np.int32)
        spheres = ways(batches=2, horizon=2, count=3, seed=number)
        payload = PayloadWriter()
        spec = distances.spec(world_id, spheres, payload, environments=environments, outputs=outputs, **SWEPT)
        # Queries with spheres in the header are not prepared either.
        spec.spheres.inline = spheres.tobytes()
        frames = frames_of(distance_pb2.QueryRequest(spec=spec), payload)
        return reply_of(distances.stub.Query(frames, timeout=SECONDS), lambda header: header.outputs).arrays

    return ask


def at_once(
    process: WorkerProcess, slow: SlowRender, asks: Sequence[Callable[[], Any]]
) -> tuple[list[Any], tuple[float, float]]:
    """Returns the results of calls that waited together, and the numbers of their launches and views."""
    for _ in range(10):
        before, cancelled = launches(process), cancellations(process)
        results = after_slow_one(process, slow, asks)
        # The slow call may be over before all others wait, if a busy machine holds them up.
        if cancellations(process) > cancelled:
            count, views = (after - former for after, former in zip(launches(process), before, strict=True))
            return results, (count, views)
    pytest.fail("the slow call was over before all others waited")


def after_slow_one(process: WorkerProcess, slow: SlowRender, asks: Sequence[Callable[[], Any]]) -> list[Any]:
    """Returns the results of calls that wait for a slow one, which is cancelled once all of them do."""
    results: list[Any] = [None] * len(asks)

    def run(number: int) -> None:
        results[number] = asks[number]()

    running = slow.start()
    wait_for_work(process)
    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(asks))]
    for depth, thread in enumerate(threads, 1):
        thread.start()
        while process.metric("lumigrad_queue_depth") != depth and thread.is_alive():
            time.sleep(0.02)
    running.cancel()
    for thread in threads:
        thread.join(120)
    wait_for(process, "lumigrad_calls_in_progress", 0)
    return results


def cancellations(process: WorkerProcess) -> float:
    return process.metric("lumigrad_calls_total", method="RenderService.Render", code="CANCELLED")


def launches(process: WorkerProcess) -> tuple[float, float]:
    """Returns the numbers of launches of calls that may be computed together, and of their views."""
    return process.metric("lumigrad_batch_views_count"), process.metric("lumigrad_batch_views_sum")


@pytest.mark.parametrize("make", [sphere_asks, gaussian_asks, distance_asks])
def test_results_are_the_same_bit_by_bit(
    process: WorkerProcess, client: RawClient, slow: SlowRender, make: Callable[[RawClient], Ask]
) -> None:
    ask = make(client)
    expected = [ask(number) for number in range(CALLS)]
    for _ in range(5):
        asks = [lambda number=number: ask(number) for number in range(CALLS)]
        together, (count, of_all) = at_once(process, slow, asks)
        assert of_all == (CALLS if make is distance_asks else 9)
        for found, wanted in zip(together, expected, strict=True):
            assert {name: array.tobytes() for name, array in found.items()} == {
                name: array.tobytes() for name, array in wanted.items()
            }
        # On a busy machine, calls may just have taken so long that computing them together did not seem worthwhile.
        if count < CALLS:
            return
    pytest.fail("nothing was computed together")


def test_what_differs_in_anything_but_cameras_is_not_computed_together(
    process: WorkerProcess, client: RawClient, slow: SlowRender
) -> None:
    scenes = [client.put(sphere_cloud(40, seed=seed)).scene.scene_id for seed in (1, 2)]
    # Calls with these cameras are not prepared, and are computed together if they are alike.
    camera, larger = pulsar_camera(32, 24), pulsar_camera(33, 24)

    def spec(view: Any, scene_id: str, **settings: Any) -> render_pb2.RenderSpec:
        return spec_of(view, scene_id=scene_id, **{"min_depth": 0.0, **settings})

    specs = [
        spec(camera, scenes[0]),
        spec(camera, scenes[1]),
        spec(camera, scenes[0], gamma=0.2),
        spec(camera, scenes[0], outputs=["alpha"]),
        spec(larger, scenes[0]),
    ]
    asks = [lambda each=each: client.render(each) for each in specs]
    asks += [lambda: client.render(specs[0], retain=True)] * 2 + [
        lambda: client.render(spec(camera, ""), cloud=sphere_cloud(40))
    ] * 2
    for _ in range(3):
        for ask in asks:
            ask()
    assert at_once(process, slow, asks)[1] == (5, 5)


SPHERE = torch.tensor([[0.0, 0.0, 4.0]]), torch.ones(1, 3), torch.ones(1)
VIEW = spheres.Camera.opencv(16, 16, 8, 8, np.eye(3), np.zeros(3), 16, 16)


class Together:
    """Work that returns its parts, unless one of them makes it fail."""

    def __init__(self) -> None:
        self.executor = DeviceExecutor(CPU, DeviceMemory(CPU, 1 << 30), queue_size=32)
        self.sizes: list[int] = []
        self.fails: dict[Any, Exception] = {}
        self.begun, self.go = threading.Event(), threading.Event()
        self.go.set()
        # Most of so many take hardly any time even on a busy machine.
        for _ in range(16):
            self.ask(0).wait()
        self.sizes.clear()

    def ask(self, part: Any, tenant: str = "", fill: float = 0.25, key: str = "kind") -> Asked:
        self.call = StandInCall(tenant)
        entry = BatchEntry(key, fill, (part, self.call), self._run)
        return Asked(self.executor, lambda: self._one(part), self.call, Cost("kind", is_repeatable=True), entry)

    def _run(self, parts: Sequence[Any]) -> list[Any]:
        self.begun.set()
        self.go.wait(60)
        self.sizes.append(len(parts))
        # The kernels stop here if that was requested.
        spheres.forward(*SPHERE, [VIEW], spheres.Settings(gamma=0.1, max_depth=10.0))
        if all(call.ended() for _, call in parts):
            raise CancelledError
        return [self._one(part) for part, _ in parts]

    def _one(self, part: Any) -> Any:
        if part in self.fails:
            raise self.fails[part]
        return part


@pytest.fixture
def together() -> Iterator[Together]:
    made = Together()
    yield made
    made.executor.close()


def test_no_more_go_together_than_there_is_room_for(together: Together) -> None:
    with held(together.executor):
        asked = [together.ask(number) for number in range(6)] + [together.ask(6, fill=0.75)]
    assert [each.wait().result for each in asked] == list(range(7))
    assert together.sizes == [4, 2]


def test_the_wait_in_the_queue_is_told_in_milliseconds(together: Together) -> None:
    began = time.perf_counter()
    with held(together.executor):
        asked = together.ask(1)
        time.sleep(0.02)
    asked.wait()
    assert 20 <= together.call.times.milliseconds["queue"] <= (time.perf_counter() - began) * 1e3


def test_tenants_do_not_share(together: Together) -> None:
    with held(together.executor):
        asked = [together.ask(number, tenant) for number, tenant in enumerate("abab")]
    assert [each.wait().result for each in asked] == list(range(4))
    assert together.sizes == [2, 2]


def test_jobs_with_different_keys_do_not_go_together(together: Together) -> None:
    with held(together.executor):
        asked = [together.ask(number, key=key) for number, key in enumerate(("kind", "other", "kind"))]
    assert [each.wait().result for each in asked] == list(range(3))
    assert together.sizes == [2]


def test_one_who_leaves_the_queue_is_not_waited_for(together: Together) -> None:
    with held(together.executor):
        first = together.ask(1)
        second, leaving = together.ask(2), together.call
        third = together.ask(3)
        leaving.cancel()
    assert isinstance(second.wait().error, CancelledError)
    assert (first.wait().result, third.wait().result) == (1, 3)
    assert together.sizes == [2]


def test_one_who_leaves_while_it_is_computed_ends_nothing(together: Together) -> None:
    together.go.clear()
    together.begun.clear()
    with held(together.executor):
        first = together.ask(1)
        second, leaving = together.ask(2), together.call
    assert together.begun.wait(60)
    leaving.cancel()
    together.go.set()
    assert first.wait().result == 1
    second.wait()


def test_an_error_goes_to_all(together: Together) -> None:
    together.fails[2] = RuntimeError("the device failed")
    with held(together.executor):
        asked = [together.ask(number) for number in range(3)]
    assert [each.wait().error for each in asked] == [together.fails[2]] * 3


@pytest.mark.parametrize("fault", [InvalidArgumentError("cameras", "others", "these"), DeviceMemoryError(2, 1)])
def test_what_may_be_the_fault_of_one_is_told_to_that_one_only(together: Together, fault: Exception) -> None:
    together.fails[2] = fault
    with held(together.executor):
        asked = [together.ask(number) for number in range(4)]
    assert [each.wait().error for each in asked] == [None, None, fault, None]
    assert [each.result for each in asked] == [0, 1, None, 3]
    # The error lives as long as the module, and its frames would hold the native objects of the batch.
    fault.__traceback__ = None


def test_a_job_that_waits_gets_a_place_when_there_is_one_and_ends_with_its_call() -> None:
    executor = DeviceExecutor(CPU, DeviceMemory(CPU, 1 << 30), queue_size=1)
    begun, go = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        go.wait(60)

    jobs = [threading.Thread(target=lambda: executor.run(hold, StandInCall())) for _ in range(2)]  # type: ignore[arg-type]
    jobs[0].start()
    assert begun.wait(60)
    jobs[1].start()
    while executor.queue.depth < 1:
        time.sleep(0.001)
    with pytest.raises(BusyError):
        executor.run(lambda: 1, StandInCall())  # type: ignore[arg-type]
    over = StandInCall()
    over.cancel()
    with pytest.raises(CancelledError):
        executor.run(lambda: 2, over, waits=True)  # type: ignore[arg-type]
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(executor.run(lambda: 3, StandInCall(), waits=True)))  # type: ignore[arg-type]
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    go.set()
    for thread in (*jobs, waiting):
        thread.join(60)
    assert found == [3]
    executor.close()
