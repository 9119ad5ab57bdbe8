"""Calls that the device has no memory for are refused at once, tried again, or end a worker that leaks."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2

from lumigrad.client import Camera, Client
from lumigrad.client.errors import ResourceExhausted, Unavailable
from lumigrad.protos import details
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import errors_pb2, render_pb2, scene_pb2
from support.calls.raw_calls import RawClient, color_gradient, detail, failure, opencv_camera, spec_of, sphere_cloud
from support.threads import run_at_once
from support.workers.client_load import CAMERA, cloud
from support.workers.faults import Faults, faulty_worker
from support.workers.slow_render import SlowRender, wait_for, wait_until
from support.workers.worker import WorkerProcess, worker

Faulty = tuple[WorkerProcess, Faults]
MIB = 1 << 20
SMALL, LARGE = opencv_camera(64, 64), opencv_camera(1024, 1024)
# Bytes of the colours alone.
LARGE_BYTES = 12 * MIB


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    with faulty_worker(tmp_path_factory.mktemp("faults"), "--device-memory-mib", "64") as started:
        yield started


@pytest.fixture
def client(faulty: Faulty) -> Iterator[RawClient]:
    with RawClient(faulty[0].target) as raw:
        yield raw


@pytest.mark.parametrize("fault", ["shortage", "host shortage"])
def test_a_shortage_that_passes_costs_no_call(faulty: Faulty, client: RawClient, fault: str) -> None:
    process, faults = faulty
    scene_id = client.put(sphere_cloud(50)).scene.scene_id
    expected = client.render(spec_of(scene_id=scene_id)).arrays["color"]
    before = process.metric("lumigrad_memory_shortages_total", result="relieved")
    faults.arm(fault)
    assert client.render(spec_of(scene_id=scene_id)).arrays["color"].tobytes() == expected.tobytes()
    assert process.metric("lumigrad_memory_shortages_total", result="relieved") == before + 1


def test_forward_states_make_room_first_the_least_recently_used(faulty: Faulty, client: RawClient) -> None:
    process, faults = faulty
    states = [client.render(spec_of(), cloud=sphere_cloud(3), retain=True).header.context_id for _ in range(4)]
    faults.arm("shortage")
    client.render(spec_of(), cloud=sphere_cloud(3))
    gradient = {"color": color_gradient(1, 48, 64, 3)}
    assert client.backward(gradient, context_id=states[-1]).arrays
    error = failure(lambda: client.backward(gradient, context_id=states[0]))
    assert detail(error, errors_pb2.ContextLost).context_id == states[0]
    for state in states:
        client.render_stub.Release(render_pb2.ReleaseRequest(context_id=state), timeout=60)
    assert process.metric("lumigrad_evictions_total", store="contexts", reason="room") >= 2


def test_a_shortage_that_lasts_is_told_with_numbers_and_the_scene_survives(faulty: Faulty, client: RawClient) -> None:
    process, faults = faulty
    scene_id = client.put(sphere_cloud(60)).scene.scene_id
    expected = client.render(spec_of(scene_id=scene_id)).arrays["color"]
    refused = process.metric("lumigrad_rejections_total", reason="device_memory")
    faults.arm("shortages")
    error = failure(lambda: client.render(spec_of(scene_id=scene_id)))
    faults.disarm("shortages")
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    short = detail(error, errors_pb2.DeviceMemoryShort)
    assert 0 < short.asked_bytes < short.available_bytes <= 64 * MIB
    assert detail(error, error_details_pb2.RetryInfo).retry_delay.ToTimedelta().total_seconds() > 0
    assert error.details() == (
        f"the call takes about {short.asked_bytes} bytes of the device's memory (--device-memory-mib), of which too "
        "little is free; try again later, or send fewer cameras, pixels, primitives or rows, or primitives that "
        "cover less of the image"
    )
    assert client.render(spec_of(scene_id=scene_id)).arrays["color"].tobytes() == expected.tobytes()
    assert process.metric("lumigrad_rejections_total", reason="device_memory") == refused + 1
    assert process.metric("lumigrad_worker_restarts_total") == 0


def test_calls_that_are_large_themselves_do_not_end_the_worker(faulty: Faulty, client: RawClient) -> None:
    process, faults = faulty
    faults.arm("shortages")
    for _ in range(7):
        error = failure(lambda: client.render(spec_of(*[LARGE] * 3), cloud=sphere_cloud(3)))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    faults.disarm("shortages")
    client.render(spec_of(), cloud=sphere_cloud(3))
    assert process.metric("lumigrad_worker_restarts_total") == 0


def test_a_call_that_never_fits_is_refused_at_once_whatever_the_device_does(faulty: Faulty, client: RawClient) -> None:
    process, _ = faulty
    slow = SlowRender(client)
    running = slow.start()
    wait_for(process, "lumigrad_calls_in_stage", 1, stage="device")
    error = failure(lambda: client.render(spec_of(*[LARGE] * 6), cloud=sphere_cloud(3)))
    assert running.is_active(), "it did not wait for the device"
    running.cancel()
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    short = detail(error, errors_pb2.DeviceMemoryShort)
    assert short.available_bytes == 64 * MIB < 6 * LARGE_BYTES <= short.asked_bytes
    assert details.find(error.trailing_metadata(), error_details_pb2.RetryInfo) is None
    assert error.details() == (
        f"the call takes about {short.asked_bytes} bytes of the device's memory (--device-memory-mib), of which it can "
        f"have at most {64 * MIB}; send fewer cameras, pixels, primitives or rows, or primitives that "
        "cover less of the image"
    )
    wait_for(process, "lumigrad_calls_in_progress", 0)
    wait_for(process, "lumigrad_predicted_bytes", 0)
    assert process.metric("lumigrad_device_memory_limit_bytes") == 64 * MIB


def test_forward_states_leave_when_a_call_needs_their_room(faulty: Faulty, client: RawClient) -> None:
    process, _ = faulty
    # A forward state has 28 bytes per pixel.
    first = client.render(spec_of(LARGE), cloud=sphere_cloud(3), retain=True).header.context_id
    assert first
    client.render(spec_of(*[LARGE] * 4), cloud=sphere_cloud(3))
    assert process.metric("lumigrad_contexts") == 0
    error = failure(lambda: client.backward({"color": color_gradient(1, 1024, 1024, 3)}, context_id=first))
    assert detail(error, errors_pb2.ContextLost).context_id == first


def test_who_waits_counts_and_clients_hear_when_to_come_back(tmp_path: Path) -> None:
    """A scene takes the room for the moment."""
    options = ("--max-payload-mib", "40", "--scene-mib", "40", "--device-memory-mib", "48")
    cameras = [Camera.look_at((0, -1, -5), (0, 0, 0), (0, -1, 0), width=1024, height=1024)] * 3
    with worker("--device", "cpu", *options) as process, Client(process.target) as client:
        raw = RawClient(process.target)
        scene_id = raw.put(sphere_cloud(700_000)).scene.scene_id
        with (
            Client(process.target, retry_s=0.0) as impatient,
            pytest.raises(ResourceExhausted, match=r"too little is free; .*; try again in 1 s") as error,
        ):
            impatient.render(cloud(), cameras)
        assert error.value.retry_after_s == 1.0
        raw.scene_stub.Delete(scene_pb2.DeleteRequest(scene_id=scene_id), timeout=60)
        client.render(cloud(), cameras)
        raw.close()


def test_a_leak_ends_the_worker_and_the_next_one_serves(tmp_path: Path) -> None:
    with faulty_worker(tmp_path) as (process, faults), Client(process.target, timeout_s=240, retry_s=120) as client:
        handle = client.put(cloud())
        expected = client.render(handle, CAMERA).color
        faults.arm("shortages")
        with Client(process.target, retry_s=0.0) as impatient:
            for number in range(50):
                # A test render of a device that is idle for long succeeds, and breaks a row of failures.
                with pytest.raises(ResourceExhausted if number < 4 else (ResourceExhausted, Unavailable)):
                    impatient.render(handle, CAMERA)
                if "it leaks" in process.log:
                    break
        faults.disarm("shortages")
        process.wait_for_log("5 consecutive calls failed to allocate memory that should be free: it leaks")
        process.wait_for_log("worker ended device=cpu code=6 reason=out_of_memory")
        assert np.array_equal(client.render(handle, CAMERA).color, expected)
        assert process.metric("lumigrad_worker_last_exit", reason="out_of_memory") == 1


def settled_address_space(process: WorkerProcess) -> int:
    """The bytes of a worker's address space, once it has freed what its calls took."""
    wait_for(process, "lumigrad_transit_bytes", 0)
    statm = Path(f"/proc/{process.process.pid}/statm")
    sizes: list[int] = []

    def has_settled() -> bool:
        sizes.append(int(statm.read_text().split()[0]))
        return len(sizes) > 10 and len(set(sizes[-10:])) == 1

    wait_until(has_settled, "an address space that does not change")
    return sizes[-1] * resource.getpagesize()


def test_a_process_that_may_have_no_more_memory_refuses_and_goes_on(tmp_path: Path) -> None:
    """The address space is limited later, which the prediction does not know."""
    with worker("--device", "cpu", "--device-memory-mib", "65536") as process:
        client = RawClient(process.target)
        scene_id = client.put(sphere_cloud(100)).scene.scene_id
        small = spec_of(SMALL, scene_id=scene_id)
        # Starts all threads that calls need.
        run_at_once(*[partial(client.render, small)] * 16)
        expected = client.render(small).arrays["color"]
        limit = settled_address_space(process) + 128 * MIB
        resource.prlimit(process.process.pid, resource.RLIMIT_AS, (limit, limit))
        # The kernels would allocate 392 MiB of info, and the worker 168 MiB for a payload.
        large = sphere_cloud(6_000_000)
        asks: list[Any] = [
            lambda: client.render(spec_of(*[LARGE] * 2, scene_id=scene_id, outputs=["info"], n_track=23)),
            lambda: client.put(large),
        ]
        for ask in asks * 2:
            error = failure(ask)
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert detail(error, error_details_pb2.RetryInfo)
            assert client.render(small).arrays["color"].tobytes() == expected.tobytes()
        client.close()
        assert " ERROR " not in process.log


def test_a_reply_of_a_known_kind_that_there_is_no_memory_for_leaves_nothing_reserved() -> None:
    """The reply has 192 MiB, to which native code would write."""
    with worker("--device", "cpu") as process:
        client = RawClient(process.target)
        scene_id = client.put(sphere_cloud(100)).scene.scene_id
        small, large = (spec_of(opencv_camera(size, size), scene_id=scene_id) for size in (64, 4096))
        for _ in range(2):
            expected = client.render(small).arrays["color"]
            client.render(large)
        limit = settled_address_space(process) + 64 * MIB
        resource.prlimit(process.process.pid, resource.RLIMIT_AS, (limit, limit))
        for _ in range(2):
            error = failure(lambda: client.render(large))
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert detail(error, error_details_pb2.RetryInfo)
            assert client.render(small).arrays["color"].tobytes() == expected.tobytes()
            wait_for(process, "lumigrad_transit_bytes", 0)
        client.close()
        assert " ERROR " not in process.log


def test_a_backward_whose_payload_is_on_its_way_holds_no_state(faulty: Faulty, client: RawClient) -> None:
    process, _ = faulty
    state = client.render(spec_of(), cloud=sphere_cloud(3), retain=True).header.context_id
    payload, complete = PayloadWriter(), threading.Event()
    request = render_pb2.BackwardSpec(context_id=state)
    request.output_gradients.add(name="color", tensor=payload.add(color_gradient(1, 48, 64, 3)))

    def frames() -> Iterator[Frame[Any]]:
        yield Frame(render_pb2.BackwardRequest(spec=request, payload_bytes=payload.length))
        complete.wait(60)
        yield Frame(None, memoryview(b"".join(payload.buffers)))

    call = client.render_stub.Backward(frames(), timeout=60)
    # The worker has found the state once it reserves room for the payload.
    wait_until(lambda: process.metric("lumigrad_transit_bytes") >= payload.length, "room for the payload")
    client.render_stub.Release(render_pb2.ReleaseRequest(context_id=state), timeout=60)
    complete.set()
    assert detail(failure(lambda: list(call)), errors_pb2.ContextLost).context_id == state
    wait_for(process, "lumigrad_transit_bytes", 0)
