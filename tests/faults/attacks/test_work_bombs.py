"""Small valid requests that would take any amount of memory or device time are refused, and no other tenant notices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from google.rpc import error_details_pb2

from lumigrad.protos import details
from lumigrad.v1 import errors_pb2, gaussians_pb2, training_pb2
from support.calls.distance_calls import DistanceClient, cuboid, world_of
from support.calls.gaussian_calls import gaussian_cloud, gaussian_spec
from support.calls.raw_calls import Array, RawClient, detail, failure, opencv_camera, spec_of, sphere_cloud
from support.calls.raw_training import RawTraining, cameras, put_target_image, start_of, taken_up
from support.workers.tenant import tenant_client
from support.workers.worker import WorkerProcess, worker

MIB = 1 << 20
CAPACITY_MIB = 512
HUGE, OTHER = "a-0123456789abcdef-0123", "b-0123456789abcdef-0123"
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


@contextmanager
def tenants(*options: str) -> Iterator[SimpleNamespace]:
    """A worker with two tenants: `a` misbehaves, `b` must not notice."""
    with (
        worker("--device", "cpu", *options, tokens={"a": HUGE, "b": OTHER}) as process,
        process.channel() as one,
        process.channel() as another,
    ):
        yield SimpleNamespace(process=process, a=tenant_client(one, HUGE), b=tenant_client(another, OTHER))


@pytest.fixture(scope="module")
def small() -> Iterator[SimpleNamespace]:
    """Two tenants of a worker with little memory."""
    sizes = ("--scene-mib", "128", "--max-payload-mib", "128", "--transit-mib", "256", "--lane-mib", "0")
    with tenants("--device-memory-mib", str(CAPACITY_MIB), *sizes) as people:
        yield people


@pytest.fixture(scope="module")
def impatient() -> Iterator[SimpleNamespace]:
    """Two tenants of a worker with little time for a call."""
    with tenants("--max-device-seconds", "2") as people:
        yield people


@contextmanager
def watched(process: WorkerProcess, b: RawClient) -> Iterator[SimpleNamespace]:
    """Records a worker's peak memory, and checks that it is healthy all the time."""
    seen, ended = SimpleNamespace(peak=0, health=set(), looks=0), threading.Event()
    memory = psutil.Process(process.process.pid).memory_info

    def watch() -> None:
        while not ended.is_set():
            seen.peak = max(seen.peak, memory().rss)
            if seen.looks % 20 == 0:
                seen.health.add(process.health())
            seen.looks += 1
            ended.wait(0.01)

    thread = threading.Thread(target=watch)
    seen.before = memory().rss
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()
    assert seen.health <= {1}
    assert works(b)


def works(client: RawClient) -> bool:
    spec = spec_of(opencv_camera(16, 16))
    return client.render(spec, cloud=sphere_cloud(20)).arrays["color"].shape == (1, 16, 16, 3)


def covering(count: int, opacity: float = 0.99) -> dict[str, Array]:
    """Gaussians each of which covers the image."""
    cloud = gaussian_cloud(count, coefficients=0)
    cloud["scales"][:] = 1000.0
    cloud["quats"][:] = (1.0, 0.0, 0.0, 0.0)
    cloud["opacities"][:] = opacity
    return cloud


def large_spheres(count: int) -> dict[str, Array]:
    cloud = sphere_cloud(count)
    cloud["radii"][:] = 3.0
    return cloud


# 10,000 primitives x 8,192 tiles x 4 bytes are 312 MiB, more than half of the memory.
COUNT, SIZE = 10_000, 2048
SURFELS = {"primitive": gaussians_pb2.PRIMITIVE_SURFEL}
CAMERA = opencv_camera(SIZE, SIZE)


def render(cloud: dict[str, Array], spec: Any, **options: Any) -> Callable[[RawClient], object]:
    return lambda client: client.render(spec, cloud=cloud, **options)


def backward(client: RawClient) -> object:
    gradient = np.ones((1, SIZE, SIZE), np.float32)
    return client.backward({"alpha": gradient}, spec=gaussian_spec(CAMERA, outputs=["alpha"]), cloud=covering(COUNT))


def put_mesh(client: RawClient) -> object:
    """Stores three million triangles, with a payload of 58 MiB, and 600 MiB while the mesh is built."""
    side = 1300
    line = np.linspace(0, 1, side + 1, dtype=np.float32)
    flat = np.stack(np.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)
    vertices = np.c_[flat, 0.05 * np.sin(20 * flat[:, 0])].astype(np.float32)
    corner = np.arange(side * (side + 1)).reshape(side, side + 1)[:, :-1].ravel()
    over = corner + side + 1
    faces = np.r_[np.c_[corner, corner + 1, over], np.c_[corner + 1, over + 1, over]].astype(np.int32)
    return client.put({"vertices": vertices, "faces": faces})


MEMORY_BOMBS: dict[str, Callable[[RawClient], object]] = {
    "gaussians": render(covering(COUNT), gaussian_spec(CAMERA, outputs=["alpha"])),
    "retained": render(covering(COUNT), gaussian_spec(CAMERA, outputs=["alpha"]), retain=True),
    "surfels": render(covering(COUNT), gaussian_spec(CAMERA, outputs=["alpha"], **SURFELS)),
    "backward": backward,
    "mesh": put_mesh,
    "spheres": render(large_spheres(COUNT), spec_of(CAMERA, outputs=["alpha"])),
}


@pytest.mark.parametrize("kind", MEMORY_BOMBS)
def test_lists_of_tiles_count_as_memory_of_the_device(small: SimpleNamespace, kind: str) -> None:
    with watched(small.process, small.b) as seen:
        # Six failures in a row do not end the worker; five failures to allocate free memory would count as a leak.
        for _ in range(6 if kind == "gaussians" else 1):
            error = failure(lambda: MEMORY_BOMBS[kind](small.a))
            assert error.code() == EXHAUSTED
            assert "primitives that cover less of the image" in error.details()
            short = detail(error, errors_pb2.DeviceMemoryShort)
            assert short.asked_bytes > short.available_bytes > 0
            assert details.find(error.trailing_metadata(), error_details_pb2.RetryInfo) is None
    assert seen.peak - seen.before < CAPACITY_MIB * MIB


def test_views_that_fit_alone_are_drawn_in_one_call(small: SimpleNamespace) -> None:
    cloud, camera = covering(2000), opencv_camera(1024, 1024)
    with watched(small.process, small.b) as seen:
        many = small.a.render(gaussian_spec(*[camera] * 12, outputs=["alpha"]), cloud=cloud)
    one = small.a.render(gaussian_spec(camera, outputs=["alpha"]), cloud=cloud)
    for view in many.arrays["alpha"]:
        np.testing.assert_array_equal(view, one.arrays["alpha"][0])
    assert seen.peak - seen.before < 300 * MIB


def training_of(client: RawClient, cloud: dict[str, Array], size: int) -> training_pb2.TrainingStart:
    """A training whose view 0 is large and whose view 1 is small."""
    start = start_of(client, cloud)
    rate = start.spec.optimizer.rates
    for name in [name for name in rate if name.startswith("sh")]:
        del rate[name]
    rate["colors"].initial = 1e-3
    del start.views[:]
    target = put_target_image(client, size=(size, size))
    start.views.add(camera=opencv_camera(size, size), target=target)
    start.views.add(camera=cameras()[0], target=put_target_image(client))
    return start


def test_a_step_whose_lists_are_too_long_fails_and_changes_nothing(small: SimpleNamespace) -> None:
    training = RawTraining(small.b, training_of(small.b, covering(COUNT), SIZE))
    started = training.started()
    with watched(small.process, small.a) as seen:
        error = failure(lambda: training.step(0, (0,)))
        assert error.code() == EXHAUSTED
        assert detail(error, errors_pb2.DeviceMemoryShort).asked_bytes > 100 * MIB
        again = RawTraining(small.b, taken_up(started))
        assert again.started().step == 0
        assert [again.step(number, (1,)).number for number in range(2)] == [0, 1]
        again.finish()
    assert seen.peak - seen.before < CAPACITY_MIB * MIB


def slow_backward(client: RawClient) -> object:
    camera = opencv_camera(1536, 1536)
    gradient = np.ones((1, 1536, 1536), np.float32)
    spec = gaussian_spec(camera, outputs=["alpha"])
    return client.backward({"alpha": gradient}, spec=spec, cloud=covering(3000, 0.0045))


def slow_query(client: RawClient) -> object:
    distances, random = DistanceClient(client), np.random.default_rng(1)
    boxes = random.uniform(-50, 50, (16_000, 3)).tolist()
    world = distances.put(world_of(*(cuboid(1, 1, 1, pose={"values": (*place, 1, 0, 0, 0)}) for place in boxes)))
    spheres = random.uniform(-50, 50, (1, 1, 400_000, 4)).astype(np.float32)
    spheres[..., 3] = 0.1
    return distances.query(world.scene.scene_id, spheres)


FAINT = covering(6000, 0.0045)
TIME_BOMBS: dict[str, Callable[[RawClient], object]] = {
    "one view": render(FAINT, gaussian_spec(CAMERA, outputs=["alpha"])),
    "many views": render(covering(3000, 0.0045), gaussian_spec(*[opencv_camera(512, 512)] * 64, outputs=["alpha"])),
    "surfels": render(FAINT, gaussian_spec(CAMERA, outputs=["alpha"], **SURFELS)),
    "spheres": render(large_spheres(6000), spec_of(CAMERA, outputs=["alpha"], gamma=1.0)),
    "backward": slow_backward,
    "query": slow_query,
}


@pytest.mark.parametrize("kind", TIME_BOMBS)
def test_a_call_that_takes_too_long_is_refused_and_the_worker_lives(impatient: SimpleNamespace, kind: str) -> None:
    a, b, process = impatient.a, impatient.b, impatient.process
    spec = gaussian_spec(opencv_camera(32, 32))
    kept = b.render(spec, cloud=gaussian_cloud(100), retain=True)
    with watched(process, b):
        error = failure(lambda: TIME_BOMBS[kind](a))
        assert error.code() == EXHAUSTED
        assert "more than the 2 s of the device" in error.details() and "--max-device-seconds" in error.details()
        assert details.find(error.trailing_metadata(), error_details_pb2.RetryInfo) is None
    gradients = b.backward({"color": np.ones((1, 32, 32, 3), np.float32)}, context_id=kept.header.context_id)
    assert np.isfinite(gradients.arrays["means"]).all()


def test_a_step_that_takes_too_long_fails_and_changes_nothing(impatient: SimpleNamespace) -> None:
    training = RawTraining(impatient.a, training_of(impatient.a, FAINT, SIZE))
    started = training.started()
    error = failure(lambda: training.step(0, (0,)))
    assert error.code() == EXHAUSTED and "more than the 2 s of the device" in error.details()
    again = RawTraining(impatient.a, taken_up(started))
    assert again.started().step == 0
    assert [again.step(number, (1,)).number for number in range(2)] == [0, 1]
    again.finish()
    assert works(impatient.b)


@pytest.mark.parametrize("more", [0, 1], ids=["of the limit of a hang", "longer"])
def test_work_that_makes_progress_is_no_hang(more: float) -> None:
    # A busy machine may take seconds for a part of the work that is no progress yet, or for the worker's test render.
    for hang in (2, 6, 18):
        # `--hang-seconds` is the limit of a call unless `--max-device-seconds` is set.
        longer = ("--max-device-seconds", str(hang + more)) if more else ()
        log = ""
        try:
            with tenants("--hang-seconds", str(hang), *longer) as people:
                try:
                    with watched(people.process, people.b):
                        error = failure(lambda: TIME_BOMBS["one view"](people.a))
                    assert error.code() == EXHAUSTED
                    assert f"more than the {hang + more} s of the device" in error.details()
                    return
                except (AssertionError, grpc.RpcError):
                    # The refusal of a call may arrive before the line of the log.
                    people.process.wait_for_log("the device did not come back")
        except RuntimeError as error:
            log = str(error)
        assert not log or "the device did not come back" in log
    raise AssertionError("work that makes progress was taken for a hang")
