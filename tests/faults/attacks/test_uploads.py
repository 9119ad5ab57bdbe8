"""Callers that stop half-way, vanish, or never read: the resources that they held are released."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import psutil
from google.rpc import error_details_pb2

from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import scene_pb2
from support.calls.raw_calls import (
    RawClient,
    color_gradient,
    detail,
    failure,
    opencv_camera,
    scene_of,
    spec_of,
    sphere_cloud,
)
from support.workers.forks import ForkedProcess
from support.workers.slow_render import wait_for
from support.workers.worker import WorkerProcess, worker, worker_fixture

MIB = 1 << 20
# About 7 MiB.
LARGE = sphere_cloud(262_000, radius=0.01)
LIMITS = ("--max-payload-mib", "8", "--transit-mib", "16", "--scene-mib", "16", "--stall-seconds", "600")
process = worker_fixture(*LIMITS)


def header_of(cloud: Any) -> tuple[scene_pb2.PutRequest, bytes]:
    payload = PayloadWriter()
    header = scene_pb2.PutRequest(scene=scene_of(cloud, payload))
    header.payload_bytes = payload.length
    return header, b"".join(payload.buffers)


def stalled(first: list[Frame[Any]], go_on: threading.Event) -> Iterator[Frame[Any]]:
    yield from first
    go_on.wait(240)


def test_payloads_beyond_all_the_room_are_refused_until_there_is_some(
    process: WorkerProcess, client: RawClient
) -> None:
    header, _ = header_of(LARGE)
    go_on = threading.Event()
    held = [client.scene_stub.Put.future(stalled([Frame(header)], go_on), timeout=240) for _ in range(2)]
    wait_for(process, "lumigrad_transit_bytes", 2 * header.payload_bytes)
    error = failure(lambda: client.put(LARGE))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details().startswith(
        f"{2 * header.payload_bytes} of {16 * MIB} bytes of payloads in progress are taken (--transit-mib)"
    )
    assert detail(error, error_details_pb2.RetryInfo).retry_delay.ToTimedelta().total_seconds() > 0
    # Small calls still pass.
    client.render(spec_of(opencv_camera(16, 16)), cloud=sphere_cloud(3))
    for call in held:
        call.cancel()
    wait_for(process, "lumigrad_transit_bytes", 0)
    client.put(LARGE)
    go_on.set()


def test_an_upload_that_stalls_is_ended_although_it_has_no_deadline() -> None:
    header, data = header_of(LARGE)
    go_on = threading.Event()
    first = [Frame(header), Frame(None, memoryview(data)[:MIB])]
    with (
        worker("--device", "cpu", *LIMITS, "--max-call-seconds", "3") as process,
        RawClient(process.target) as client,
    ):
        call = client.scene_stub.Put.future(stalled(first, go_on))
        assert call.exception(timeout=150).code() == grpc.StatusCode.CANCELLED
        process.wait_for_log("the call took longer than 3 s (--max-call-seconds)")
        wait_for(process, "lumigrad_transit_bytes", 0)
    go_on.set()


def request_id(value: str) -> tuple[tuple[str, str]]:
    return (("x-request-id", value),)


VANISH_HALF_WAY = """
import sys, threading
from support.calls.raw_calls import RawClient, scene_of, sphere_cloud
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import scene_pb2

payload = PayloadWriter()
header = scene_pb2.PutRequest(scene=scene_of(sphere_cloud(262_000), payload))
header.payload_bytes = payload.length

def frames():
    yield Frame(header)
    yield Frame(None, memoryview(bytes(1 << 20)))
    threading.Event().wait()

RawClient(sys.argv[1]).scene_stub.Put(frames(), timeout=60, metadata=(("x-request-id", "vanished"),))
"""


def test_a_caller_that_is_killed_leaves_nothing_behind(process: WorkerProcess) -> None:
    child = ForkedProcess([process.target], before=(VANISH_HALF_WAY,))
    wait_for(process, "lumigrad_transit_bytes", header_of(LARGE)[0].payload_bytes)
    child.kill()
    child.communicate(timeout=60)
    # The code is CANCELLED, or that of a short payload if the stream ends before the connection does.
    process.wait_for_log("request_id=vanished method=SceneService.Put code=")
    wait_for(process, "lumigrad_transit_bytes", 0)


def test_failed_and_finished_calls_leak_no_memory(process: WorkerProcess, client: RawClient) -> None:
    header, data = header_of(LARGE)
    spec = spec_of(opencv_camera(128, 128))
    bad = {**sphere_cloud(50_000), "radii": np.zeros(50_000, np.float32)}
    gradient = {"color": color_gradient(1, 128, 128, 3)}

    def round_of_calls() -> None:
        client.render(spec, cloud=LARGE, retain=False)
        failure(lambda: client.render(spec, cloud=bad))
        short = [Frame(header), Frame(None, memoryview(data)[:MIB])]
        failure(lambda: client.scene_stub.Put(iter(short), timeout=60))
        client.backward(gradient, spec=spec, cloud=sphere_cloud(1000))
        context_id = client.render(spec, cloud=sphere_cloud(1000), retain=True).header.context_id
        client.backward(gradient, context_id=context_id, release=True)

    memory = psutil.Process(process.process.pid)

    def growth() -> int:
        before = memory.memory_info().rss
        for _ in range(10):
            round_of_calls()
        return memory.memory_info().rss - before

    # The threads' heaps fill for some rounds, each in its own time, and then stay. A payload lost per round would be
    # 70 MiB in every ten of them.
    assert any(growth() < 20 * MIB for _ in range(10))
    assert process.metric("lumigrad_contexts") == 0
