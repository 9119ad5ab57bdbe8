"""Batches of renders beside other calls, which take turns with their items, and batches that are cancelled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from lumigrad.protos.wire import Frame
from lumigrad.v1 import render_pb2
from support.calls.raw_calls import RawClient, failure, opencv_camera, spec_of, sphere_cloud
from support.driving.scenes import frame, street
from support.driving.stubs import DrivingClient
from support.workers.slow_render import wait_for, wait_until
from support.workers.tenant import tenant_client
from support.workers.worker import WorkerProcess, worker, worker_fixture

Code = grpc.StatusCode
ALICE, BOB = (f"{name}-0123456789abcdef" for name in ("alice", "bob"))
ITEMS = 40
process = worker_fixture(tokens={"alice": ALICE, "bob": BOB})


def tenants(process: WorkerProcess) -> tuple[RawClient, RawClient]:
    channel = process.channel()
    return tenant_client(channel, ALICE), tenant_client(channel, BOB)


def slow_items(client: RawClient, count: int = ITEMS, size: int = 128) -> list[render_pb2.RenderItem]:
    """Items that each take long, all different."""
    scene_id = client.put(sphere_cloud(5000, radius=1.0, seed=99)).scene.scene_id
    camera = opencv_camera(size, size)
    specs = [spec_of(camera, scene_id=scene_id, outputs=["alpha"], gamma=1 - 1e-3 * number) for number in range(count)]
    return [render_pb2.RenderItem(spec=spec) for spec in specs]


def test_a_call_of_another_tenant_waits_for_an_item_and_not_for_the_batch(process: WorkerProcess) -> None:
    alice, bob = tenants(process)
    items = slow_items(alice)
    spec = spec_of(opencv_camera(16, 12), scene_id=bob.put(sphere_cloud(20)).scene.scene_id)
    bob.render(spec)
    # Each call waits for at most one item. The batch may be over before a busy machine lets this thread ask so often.
    done, tries = 0, 0
    while done < ITEMS // 4 and tries < 5:
        wait_for(process, "lumigrad_calls_in_progress", 0)
        batch = threading.Thread(target=lambda: alice.render_batch(*items))
        batch.start()
        begun = lambda: process.metric("lumigrad_calls_in_stage", stage="device") or not batch.is_alive()  # noqa: B023, E731
        wait_until(begun, "work of the device")
        done, tries = 0, tries + 1
        while batch.is_alive():
            bob.render(spec)
            done += batch.is_alive()
    assert done >= ITEMS // 4


def test_a_batch_that_is_cancelled_stops_between_its_items(process: WorkerProcess) -> None:
    alice, _ = tenants(process)
    # The others take minutes.
    items = slow_items(alice, 2) + slow_items(alice, ITEMS - 2, size=640)
    before = process.metric("lumigrad_batch_views_count")
    request = iter([Frame(render_pb2.RenderBatchRequest(items=items))])
    call = alice.render_stub.RenderBatch(request, timeout=240)
    wait_until(lambda: process.metric("lumigrad_batch_views_count") >= before + 2, "two items")
    call.cancel()
    wait_for(process, "lumigrad_calls_in_progress", 0)
    assert process.metric("lumigrad_batch_views_count") < before + ITEMS
    process.wait_for_log("method=RenderService.RenderBatch code=CANCELLED")


def test_a_batch_that_cannot_end_in_time_is_not_finished(process: WorkerProcess) -> None:
    alice, _ = tenants(process)
    items = slow_items(alice)
    before = process.metric("lumigrad_batch_views_count")
    error = failure(lambda: alice.render_batch(*items, timeout=0.1))
    assert error.code() == Code.DEADLINE_EXCEEDED
    wait_for(process, "lumigrad_calls_in_progress", 0)
    assert process.metric("lumigrad_batch_views_count") < before + ITEMS


def test_no_scene_of_another_tenant_is_found(process: WorkerProcess) -> None:
    alice, bob = tenants(process)
    mine, theirs = (client.put(sphere_cloud(20, seed=3)).scene.scene_id for client in (alice, bob))
    assert mine != theirs
    items = [render_pb2.RenderItem(spec=spec_of(opencv_camera(16, 12), scene_id=name)) for name in (mine, theirs)]
    reply = alice.render_batch(*items)
    assert [item.status.code for item in reply.items] == [0, Code.NOT_FOUND.value[0]]


def test_a_full_reply_is_refused_before_the_work(process: WorkerProcess) -> None:
    alice, _ = tenants(process)
    scene_id = alice.put(sphere_cloud(20, seed=3)).scene.scene_id
    spec = spec_of(opencv_camera(4096, 1024), scene_id=scene_id, outputs=["color", "alpha", "depth", "info"])
    wait_for(process, "lumigrad_calls_in_progress", 0)
    before = process.metric("lumigrad_batch_views_count")
    error = failure(lambda: alice.render_batch(*[render_pb2.RenderItem(spec=spec)] * 16))
    assert error.code() in (Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED)
    assert process.metric("lumigrad_batch_views_count") == before


@contextmanager
def full_queue(channel: grpc.Channel) -> Iterator[tuple[threading.Event, list[Code]]]:
    """Calls that fill the queue from when the event is set to the end of the block, and the codes of refused ones."""
    client = RawClient("", channel=channel)
    item, begins, has_ended, refused = slow_items(client, 1)[0], threading.Event(), threading.Event(), []

    def fill() -> None:
        begins.wait(300)
        while not has_ended.is_set():
            try:
                client.render(item.spec)
            except grpc.RpcError as error:
                refused.append(error.code())
                time.sleep(0.001)

    threads = [threading.Thread(target=fill) for _ in range(12)]
    for thread in threads:
        thread.start()
    try:
        yield begins, refused
    finally:
        has_ended.set()
        begins.set()
        for thread in threads:
            thread.join(150)


def batch_beside_a_full_queue(process: WorkerProcess, channel: grpc.Channel, ask: Callable[[], Any]) -> Any:
    """The reply to a batch while others fill the queue, who may be too late for it on a busy machine."""
    for _ in range(5):
        with full_queue(channel) as (begins, refused):
            batch = begun_batch(process, ask, begins)
            was_full = Code.RESOURCE_EXHAUSTED in refused
        if was_full:
            return batch
    raise AssertionError("the queue was never full")


FULL = ("--queue-size", "1", "--batch-views", "1")


def test_a_batch_that_has_begun_waits_for_places_in_a_full_queue() -> None:
    """The batch waits instead of failing, which would lose its rendered items."""
    with worker("--device", "cpu", *FULL) as process, process.channel() as channel:
        client = RawClient("", channel=channel)
        items = slow_items(client, 24)
        batch = batch_beside_a_full_queue(process, channel, lambda: client.render_batch(*items, timeout=600))
        assert [item.status.code for item in batch.items] == [0] * len(items)


def test_a_batch_of_a_driving_simulator_waits_for_places_too(tmp_path: Path) -> None:
    options = (*FULL, "--sensorsim", str(street(tmp_path).folder), "--sensorsim-preload")
    with (
        worker("--device", "cpu", *options) as process,
        process.channel() as channel,
        DrivingClient(process.target) as simulator,
    ):
        # Frames of different times are launches of their own.
        times = range(1_500_000, 1_500_024)
        frames = [frame(frame_start_us=time, frame_end_us=time, resolution_w=640, resolution_h=480) for time in times]
        items = [{"camera_name": str(number), "request": request} for number, request in enumerate(frames)]
        ask = lambda: simulator.call("batch_render_rgb", items=items, timeout=600)  # noqa: E731
        batch = batch_beside_a_full_queue(process, channel, ask)
        assert [item.success for item in batch.items] == [True] * len(items)


def begun_batch(process: WorkerProcess, ask: Callable[[], Any], begins: threading.Event) -> Any:
    """The reply to a batch while others, once its first item was drawn, make calls."""
    replies: list[Any] = []
    asking = threading.Thread(target=lambda: replies.append(ask()))
    before = process.metric("lumigrad_batch_views_count")
    asking.start()
    # The first item gets a place, since the queue is empty.
    drawn = lambda: process.metric("lumigrad_batch_views_count") > before or not asking.is_alive()  # noqa: E731
    wait_until(drawn, "the first item of the batch")
    begins.set()
    asking.join(600)
    assert replies, "the batch failed"
    return replies[0]


def test_what_does_not_fit_into_memory_together_is_rendered_one_by_one() -> None:
    with worker("--device", "cpu", "--device-memory-mib", "24") as process, RawClient(process.target) as client:
        scene_id = client.put(sphere_cloud(20, seed=3)).scene.scene_id
        # An image of 3 MiB, which takes as much again in the reply.
        item = render_pb2.RenderItem(spec=spec_of(opencv_camera(512, 512), scene_id=scene_id))
        huge = render_pb2.RenderItem(spec=spec_of(opencv_camera(1024, 512), scene_id=scene_id, outputs=["info"]))
        before = process.metric("lumigrad_batch_views_count")
        reply = client.render_batch(*[item] * 5)
        assert [one.status.code for one in reply.items] == [0] * 5
        assert process.metric("lumigrad_batch_views_count") == before + 5
        reply = client.render_batch(item, huge)
        assert [one.status.code for one in reply.items] == [0, Code.RESOURCE_EXHAUSTED.value[0]]
