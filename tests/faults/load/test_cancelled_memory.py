"""A call that its caller cancels leaves nothing behind: neither its payload nor the forward state it asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lumigrad.protos.wire import Frame
from lumigrad.v1 import render_pb2
from support.calls.raw_calls import RawClient, opencv_camera, spec_of, sphere_cloud
from support.workers.slow_render import SlowRender, wait_for, wait_for_work, wait_until
from support.workers.worker import WorkerProcess

BYTES = ("lumigrad_transit_bytes", "lumigrad_context_bytes")


@pytest.fixture
def client(process: WorkerProcess) -> Iterator[RawClient]:
    raw = RawClient(process.target)
    # A forward state that must stay.
    kept = raw.render(spec_of(), cloud=sphere_cloud(3), retain=True).header.context_id
    yield raw
    raw.render_stub.Release(render_pb2.ReleaseRequest(context_id=kept), timeout=60)
    raw.close()


def start(client: RawClient, spec: render_pb2.RenderSpec) -> Any:
    return client.render_stub.Render(iter([Frame(render_pb2.RenderRequest(spec=spec, retain=True))]), timeout=60)


def bytes_at_rest(process: WorkerProcess) -> list[float]:
    """The counted bytes once replies of finished calls have been sent, which callers may have a little earlier."""
    wait_for(process, "lumigrad_transit_bytes", 0)
    return [process.metric(name) for name in BYTES]


def assert_as_before(process: WorkerProcess, before: list[float]) -> None:
    wait_for(process, "lumigrad_calls_in_progress", 0)
    for name, value in zip(BYTES, before, strict=True):
        wait_for(process, name, value)


@pytest.mark.parametrize("when", ["while it waits", "while it runs"])
def test_a_retained_render_is_given_up(process: WorkerProcess, client: RawClient, when: str) -> None:
    before = bytes_at_rest(process)
    slow = SlowRender(client)
    first = start(client, slow.request().message.spec)
    wait_for_work(process)
    if when == "while it waits":
        second = start(client, slow.request().message.spec)
        wait_for(process, "lumigrad_queue_depth", 1)
        second.cancel()
        wait_for(process, "lumigrad_queue_depth", 0)
    # A call counts as in progress before its payload is counted.
    wait_until(lambda: process.metric("lumigrad_transit_bytes") > before[0], "the payload of the call")
    first.cancel()
    assert_as_before(process, before)


def test_a_reply_is_not_taken_to_its_end(process: WorkerProcess, client: RawClient) -> None:
    """The header has named the forward state, which nobody will ask for."""
    before = bytes_at_rest(process)
    scene_id = client.put(sphere_cloud(20)).scene.scene_id
    # A reply larger than the buffers between the worker and a caller who does not read.
    call = start(client, spec_of(*[opencv_camera(1024, 1024)] * 8, scene_id=scene_id, outputs=["color", "info"]))
    assert next(call).message.context_id
    assert process.metric("lumigrad_context_bytes") > before[1]
    call.cancel()
    assert_as_before(process, before)
