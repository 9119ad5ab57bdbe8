"""One tenant abuses everything that tenants share: another goes on working, and all resources are released."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc
import psutil
import pytest
from google.rpc import error_details_pb2

from lumigrad.protos.service import TRAINING_SERVICE, Stub
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import render_pb2, scene_pb2, training_pb2
from support.calls.gaussian_calls import gaussian_cloud
from support.calls.raw_calls import RawClient, detail, failure, opencv_camera, scene_of, spec_of, sphere_cloud
from support.calls.raw_training import RawTraining, start_of
from support.workers.slow_render import wait_for, wait_until
from support.workers.tenant import tenant_client
from support.workers.worker import WorkerProcess, worker, worker_fixture

Code = grpc.StatusCode
MIB = 1 << 20
GREEDY, OTHER = "greedy-0123456789abcdef", "other-0123456789abcdef"
# A worker with 16 MiB for payloads, 4 of which each tenant may have.
process = worker_fixture(
    "--max-payload-mib", "2", "--transit-mib", "16", "--stall-seconds", "600", tokens={"a": GREEDY, "b": OTHER}
)


@pytest.fixture
def people(process: WorkerProcess) -> Iterator[SimpleNamespace]:
    with process.channel() as one, process.channel() as another:
        a, b = tenant_client(one, GREEDY), tenant_client(another, OTHER)
        yield SimpleNamespace(a=a, b=b, train=Stub(a.channel, TRAINING_SERVICE).Train)


def works(client: RawClient, seed: int) -> None:
    """Stores a scene and renders it, with 7 KiB and 3 KiB of payload."""
    scene_id = client.put(sphere_cloud(200, seed=seed)).scene.scene_id
    assert client.render(spec_of(opencv_camera(16, 16), scene_id=scene_id)).arrays["color"].shape == (1, 16, 16, 3)


def stalled_put(go_on: threading.Event) -> Iterator[Frame]:
    """A header that declares nearly 2 MiB, none of which arrive."""
    payload = PayloadWriter()
    scene = scene_of(sphere_cloud(74_000), payload)
    yield Frame(scene_pb2.PutRequest(scene=scene, payload_bytes=payload.length))
    go_on.wait(240)


def test_a_payload_that_is_declared_for_no_training_reserves_nothing(
    process: WorkerProcess, people: SimpleNamespace
) -> None:
    start = training_pb2.TrainRequest(start={"training_id": "x"})
    step = training_pb2.TrainRequest(step={"number": 0, "batch": 1}, payload_bytes=2 * MIB)
    gradients = training_pb2.TrainRequest(gradients={"number": 0}, payload_bytes=2 * MIB)
    for requests in [(start, step), (start, gradients), (step,), (gradients,)] * 4:
        error = failure(lambda requests=requests: list(people.train(iter(map(Frame, requests)), timeout=150)))
        assert error.code() in (Code.FAILED_PRECONDITION, Code.INVALID_ARGUMENT)
    works(people.b, 1)
    wait_for(process, "lumigrad_transit_bytes", 0)


def test_payloads_that_do_not_come_hold_the_share_of_their_tenant_only(
    process: WorkerProcess, people: SimpleNamespace
) -> None:
    go_on = threading.Event()
    nbytes = next(stalled_put(go_on)).message.payload_bytes
    held = [people.a.scene_stub.Put.future(stalled_put(go_on), timeout=240) for _ in range(2)]
    wait_for(process, "lumigrad_transit_bytes", 2 * nbytes)
    error = failure(lambda: people.a.put(sphere_cloud(10_000)))
    assert error.code() == Code.RESOURCE_EXHAUSTED
    told = f"you have {2 * nbytes} of {4 * MIB} bytes of payloads in progress (--tenant-transit-mib)"
    assert error.details().startswith(told)
    assert detail(error, error_details_pb2.RetryInfo).retry_delay.ToTimedelta().total_seconds() > 0
    works(people.b, 2)
    for call in held:
        call.cancel()
    go_on.set()
    wait_for(process, "lumigrad_transit_bytes", 0)
    works(people.a, 3)


def test_scenes_that_are_fetched_take_the_share_of_their_tenant(
    process: WorkerProcess, people: SimpleNamespace
) -> None:
    scenes = [tenant.put(sphere_cloud(60_000, seed=9)).scene for tenant in (people.a, people.b)]
    go_on = threading.Event()
    held = [people.a.scene_stub.Put.future(stalled_put(go_on), timeout=240) for _ in range(2)]
    wait_for(process, "lumigrad_transit_bytes", 2 * next(stalled_put(go_on)).message.payload_bytes)
    error = failure(lambda: people.a.get(scene_id=scenes[0].scene_id, with_tensors=True))
    assert error.code() == Code.RESOURCE_EXHAUSTED
    assert "bytes of payloads in progress (--tenant-transit-mib)" in error.details()
    assert detail(error, error_details_pb2.RetryInfo).retry_delay.ToTimedelta().total_seconds() > 0
    # The scene's description takes no payload, and another tenant has a share of its own.
    assert people.a.get(scene_id=scenes[0].scene_id)[0].info.scene_id == scenes[0].scene_id
    assert people.b.get(scene_id=scenes[1].scene_id, with_tensors=True)[1]["positions"].shape == (60_000, 3)
    for call in held:
        call.cancel()
    go_on.set()
    wait_for(process, "lumigrad_transit_bytes", 0)
    # Replies are left unread, and then cancelled.
    request = scene_pb2.GetRequest(scene_id=scenes[0].scene_id, with_tensors=True)
    calls = [people.a.scene_stub.Get(request, timeout=240) for _ in range(2)]
    for call in calls:
        next(call)
        call.cancel()
    wait_for(process, "lumigrad_transit_bytes", 0)
    assert people.a.get(scene_id=scenes[0].scene_id, with_tensors=True)[1]["positions"].shape == (60_000, 3)


@pytest.fixture(scope="module")
def trainings() -> Iterator[SimpleNamespace]:
    """A worker with 64 MiB for trainings, 32 of which each tenant may have, and two tenants."""
    options = ("--training-mib", "64", "--queue-size", "128")
    with (
        worker("--device", "cpu", *options, tokens={"a": GREEDY, "b": OTHER}) as process,
        process.channel() as one,
        process.channel() as another,
    ):
        a, b = tenant_client(one, GREEDY), tenant_client(another, OTHER)
        yield SimpleNamespace(process=process, a=a, b=b)


def resident(process: WorkerProcess) -> int:
    return psutil.Process(process.process.pid).memory_info().rss


def test_trainings_that_do_not_fit_are_refused_before_they_take_memory(trainings: SimpleNamespace) -> None:
    """72 trainings of 112 MB each are tried, twelve at a time."""
    process = trainings.process
    works(trainings.a, 1)
    starts = [start_of(trainings.a, gaussian_cloud(118_000, coefficients=16, seed=seed)) for seed in range(4)]

    def begin(start: training_pb2.TrainingStart) -> Any:
        # A scene has at most one training at a time.
        while (error := failure(RawTraining(trainings.a, start).started)).code() == Code.FAILED_PRECONDITION:
            pass
        return error

    before = resident(process)
    # A tenant has at most 16 open trainings.
    with ThreadPoolExecutor(12) as threads:
        begun = threads.map(begin, starts * 18)
        works(trainings.b, 1)
        errors = list(begun)
    assert len(errors) == 72
    for error in errors:
        assert error.code() == Code.RESOURCE_EXHAUSTED
        assert "--tenant-training-mib" in error.details()
    assert resident(process) - before < 64 * MIB
    wait_for(process, "lumigrad_training_bytes", 0)
    training = RawTraining(trainings.b, start_of(trainings.b))
    training.started()
    assert training.step(0).number == 0
    training.finish()


def test_states_that_wait_for_gradients_count_against_the_share_of_their_tenant(trainings: SimpleNamespace) -> None:
    """Each state has 1024x1024 pixels, and at most two fit; they are released with their call."""
    process = trainings.process
    start = start_of(trainings.a)
    for view in start.views:
        view.CopyFrom(training_pb2.TrainingView(camera=opencv_camera(1024, 1024)))
    start.spec.ClearField("loss")
    training = RawTraining(trainings.a, start)
    training.started()
    begun = process.metric("lumigrad_tenant_taken", resource="training", tenant="a")
    for number in range(4):
        training.send(step={"number": number, "views": [0], "own_loss": True, "outputs": ["alpha"]})
    error = failure(lambda: list(training.call))
    assert error.code() == Code.RESOURCE_EXHAUSTED
    # The error also names --device-memory-mib where memory is scarce.
    assert "of 33554432 bytes of trainings (--tenant-training-mib" in error.details()
    wait_for(process, "lumigrad_calls_in_progress", 0)
    assert process.metric("lumigrad_tenant_taken", resource="training", tenant="a") == begun < MIB
    other = RawTraining(trainings.b, start_of(trainings.b))
    other.started()
    assert other.step(0).number == 0
    other.finish()


@pytest.fixture(scope="module")
def small() -> Iterator[SimpleNamespace]:
    """A worker with less memory than its options allow for scenes and trainings, and two tenants."""
    options = ("--device-memory-mib", "96", "--max-payload-mib", "32", "--scene-mib", "64", "--stall-seconds", "600")
    with (
        worker("--device", "cpu", *options, tokens={"a": GREEDY, "b": OTHER}) as process,
        process.channel() as one,
        process.channel() as another,
    ):
        yield SimpleNamespace(process=process, a=tenant_client(one, GREEDY), b=tenant_client(another, OTHER))


def fill_with_trainings(client: RawClient) -> list[RawTraining]:
    """Begins trainings of 8,000 Gaussians, each held by a call, until memory is used up."""
    held = []
    for seed in range(40):
        training = RawTraining(client, start_of(client, gaussian_cloud(8000, coefficients=16, seed=seed)))
        try:
            training.started()
        except grpc.RpcError as error:
            assert error.code() == Code.RESOURCE_EXHAUSTED
            assert "(--tenant-training-mib, --device-memory-mib)" in error.details()
            return held
        held.append(training)
    raise AssertionError("there is no limit")


def test_what_a_tenant_stores_leaves_memory_for_the_calls_of_others(small: SimpleNamespace) -> None:
    process = small.process
    held = fill_with_trainings(small.a)
    assert held
    for seed in range(60):
        small.a.put(sphere_cloud(20_000, seed=seed))
    for seed in range(20):
        small.a.render(spec_of(opencv_camera(256, 256)), cloud=sphere_cloud(50, seed=seed), retain=True)
    taken = [process.metric(f"lumigrad_{store}_bytes") for store in ("scene", "training")]
    limits = [process.metric(f"lumigrad_{store}_limit_bytes") for store in ("scene", "training")]
    # The tenant has filled its shares: all of the scenes, and half of the trainings.
    assert 0.9 * limits[0] < taken[0] <= limits[0]
    assert taken[1] <= limits[1] / 2
    assert sum(limits) <= 48 * MIB
    scene_id = small.b.put(sphere_cloud(20_000, seed=999)).scene.scene_id
    shown = small.b.render(spec_of(opencv_camera(256, 256), scene_id=scene_id))
    assert shown.arrays["color"].shape == (1, 256, 256, 3)
    training = RawTraining(small.b, start_of(small.b))
    training.started()
    assert training.step(0).number == 0
    training.finish()
    for each in held:
        each.close()


def announced(request: Any, stub: Any, bytes_sent: int) -> tuple[Any, threading.Event]:
    """A call that sends its header and part of its payload, and then nothing until the event."""
    end = threading.Event()

    def frames() -> Iterator[Frame[Any]]:
        yield Frame(request, memoryview(bytes(bytes_sent)))
        end.wait(240)

    return stub(frames(), timeout=240), end


def test_what_is_only_announced_takes_no_memory_from_others(small: SimpleNamespace) -> None:
    """One tenant's scenes take 24 of 96 MiB; it announces three payloads of 19 MiB and three replies of 30 MiB."""
    process, calls = small.process, []
    for seed in range(60):
        small.a.put(sphere_cloud(20_000, seed=seed))
    payload = PayloadWriter()
    scene = scene_of(sphere_cloud(700_000), payload)
    # The payload's bytes are never sent.
    put = scene_pb2.PutRequest(scene=scene, payload_bytes=payload.length)
    image = PayloadWriter()
    spec = spec_of(opencv_camera(1900, 1400))
    spec.scene.CopyFrom(scene_of(sphere_cloud(5), image))
    render = render_pb2.RenderRequest(spec=spec, payload_bytes=image.length)
    try:
        for request, stub in ((put, small.a.scene_stub.Put.future), (render, small.a.render_stub.Render)):
            calls += [announced(request, stub, 50) for _ in range(3)]
        wait_for(process, "lumigrad_calls_in_progress", 6)
        # A call is in progress before its bytes are announced.
        wait_until(lambda: process.metric("lumigrad_transit_bytes") > 96 * MIB, "announced bytes")
        shown = small.b.render(spec_of(opencv_camera(512, 512)), cloud=sphere_cloud(50))
        assert shown.arrays["color"].shape == (1, 512, 512, 3)
        assert process.health() == 1
    finally:
        for call, end in calls:
            end.set()
            call.cancel()
    wait_for(process, "lumigrad_transit_bytes", 0)


def test_a_scene_that_is_larger_than_all_the_room_is_refused_with_the_limit(small: SimpleNamespace) -> None:
    reduced = "the limits of --scene-mib and --training-mib are reduced"
    small.process.wait_for_log(reduced)
    assert small.process.log.count(reduced) == 1
    error = failure(lambda: small.b.put(sphere_cloud(900_000)))
    assert error.code() == Code.RESOURCE_EXHAUSTED
    assert f"of {24 * MIB} that scenes may take (--scene-mib, --device-memory-mib)" in error.details()
    assert "try again" not in error.details()
