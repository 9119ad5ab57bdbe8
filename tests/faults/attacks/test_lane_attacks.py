"""Callers who break the rules of shared memory harm nobody, and learn nothing that is not theirs."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import grpc
import numpy as np
import pytest

from lumigrad.protos.lanes import LANE_METADATA
from lumigrad.protos.service import SINGLE_REPLY
from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import errors_pb2, render_pb2, scene_pb2
from support.calls.gaussian_calls import gaussian_cloud, gaussian_spec
from support.calls.lane_calls import (
    GRADIENT,
    HUGE,
    MIB,
    SPEC,
    backward,
    lane_worker,
    location,
    render,
    spanned,
    wait_for,
)
from support.calls.raw_calls import RawClient, detail, failure, opencv_camera, sphere_cloud, violation, with_scene
from support.calls.raw_lane import RawLane
from support.workers.worker import WorkerProcess, worker


@pytest.fixture(scope="module")
def process() -> Iterator[WorkerProcess]:
    with lane_worker() as started:
        yield started


def test_a_foreign_lane_is_one_that_does_not_exist(process: WorkerProcess, people: SimpleNamespace) -> None:
    with RawLane(people.alice) as lane:
        region = lane.lease(1, MIB)
        lost = process.metric("lumigrad_lane_fallbacks_total", reason="lost")
        assert location(render(people.bob, lane, 2)) == "payload"
        assert process.metric("lumigrad_lane_fallbacks_total", reason="lost") == lost + 1
        never = ((LANE_METADATA, f"{'0' * 32}:1"),)
        told = []
        for metadata in (lane.metadata(3), never):
            payload = PayloadWriter()
            request = render_pb2.RenderRequest(spec=with_scene(SPEC, sphere_cloud(50), payload))
            request.spec.scene.spheres.positions.CopyFrom(spanned(region)(sphere_cloud(50)["positions"]))
            frames = list(frames_of(request, payload))
            error = failure(lambda frames=frames, metadata=metadata: list(
                people.bob.render_stub.Render(iter(frames), metadata=metadata, timeout=60)
            ))  # fmt: skip
            assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
            assert detail(error, errors_pb2.LaneLost) is not None
            told.append(error.details())
        assert told[0] == told[1]


def test_nor_does_it_where_renders_need_no_python(people: SimpleNamespace) -> None:
    scene_id = people.bob.put(gaussian_cloud(60)).scene.scene_id
    spec = gaussian_spec(opencv_camera(400, 300), scene_id=scene_id, outputs=["color"])
    request = Frame(render_pb2.RenderRequest(spec=spec))
    with RawLane(people.alice) as foreign, RawLane(people.bob) as own:
        ask = people.bob.render_stub.Render.once
        for lease in range(1, 5):
            reply = ask(request, metadata=(*own.metadata(lease), SINGLE_REPLY), timeout=60)
            assert reply.message.outputs[0].tensor.HasField("region")
        error = failure(lambda: ask(request, metadata=(*foreign.metadata(1), SINGLE_REPLY), timeout=60))
        assert detail(error, errors_pb2.LaneLost) is not None
        assert len(foreign.regions) == 1, "none but that of its opening"


def test_memory_of_another_lane_cannot_be_named(people: SimpleNamespace) -> None:
    with RawLane(people.alice) as lane, RawLane(people.bob) as other:
        for lease in range(1, 8):
            region = lane.lease(lease, MIB)
        error = failure(lambda: render(people.bob, other, 9, spanned(region)))
        field, text = violation(error)
        assert field == "spec.scene.spheres.positions.region"
        assert text == f"expected a region that the caller has leased, got {region}"


def test_new_memory_is_zero(people: SimpleNamespace) -> None:
    with RawLane(people.alice) as lane:
        region = lane.lease(1, 8 * MIB)
        lane.regions[region][:] = 77
    with RawLane(people.bob) as other:
        region = other.lease(1, 8 * MIB)
        assert not other.regions[region].any()


@pytest.mark.parametrize("name", ["", "x", ":", "0" * 40, "é", f"{'0' * 32}:-1", f"{'0' * 32}:{'9' * 30}", "a" * 4000])
def test_names_that_are_none(people: SimpleNamespace, name: str) -> None:
    payload = PayloadWriter()
    request = render_pb2.RenderRequest(spec=with_scene(SPEC, sphere_cloud(50), payload))
    metadata = ((LANE_METADATA, name.encode().decode("latin-1") if name == "é" else name),)
    frames = frames_of(request, payload)
    if name.isascii():
        assert location(list(people.alice.render_stub.Render(frames, metadata=metadata, timeout=60))) == "payload"


@pytest.mark.parametrize(
    ("offset", "length", "text"),
    [
        (HUGE, 600, "a span inside the region of"),
        (HUGE - 300, 600, "a span inside the region of"),
        (0, HUGE, "a span inside the region of"),
        (MIB - 300, 600, "a span inside the region of"),
        (0, 0, "600 bytes for DTYPE_FLOAT32 50x3"),
        (0, 599, "600 bytes for DTYPE_FLOAT32 50x3"),
        (4, 601, "600 bytes for DTYPE_FLOAT32 50x3"),
    ],
)
def test_spans_that_do_not_fit(people: SimpleNamespace, offset: int, length: int, text: str) -> None:
    with RawLane(people.alice) as lane:
        region = lane.lease(1, MIB)
        error = failure(lambda: render(people.alice, lane, 2, spanned(region, offset, length)))
        assert text in violation(error)[1]


def test_regions_that_are_not_leased(people: SimpleNamespace) -> None:
    with RawLane(people.alice) as lane:
        region = lane.lease(1, MIB)
        lane.regions[region][:600] = sphere_cloud(50)["positions"].reshape(-1).view(np.uint8)
        assert location(render(people.alice, lane, 2, spanned(region))) == "region"
        lane.release(1)
        for number in (region, 0, 999, HUGE):
            error = failure(lambda number=number: render(people.alice, lane, 3, spanned(number)))
            assert violation(error)[1] == f"expected a region that the caller has leased, got {number}"
        error = failure(lambda: backward(people.alice, lane, 4, spanned(region, 0, GRADIENT.nbytes)(GRADIENT)))
        assert "a region that the caller has leased" in violation(error)[1]


def test_regions_without_a_lane(people: SimpleNamespace) -> None:
    error = failure(lambda: render(people.alice, None, 0, spanned(1)))
    assert violation(error)[1] == (
        "expected inline bytes or a payload span, for the call names no lane, got a region span"
    )


def test_lies_about_sizes(process: WorkerProcess, people: SimpleNamespace) -> None:
    with RawLane(people.alice) as lane:
        for length in (0, HUGE, 33 * MIB, 1 << 62):
            assert lane.lease(1, length) == 0
        assert process.metric("lumigrad_lane_bytes") <= MIB
        assert lane.lease(1, 30 * MIB)


def test_more_is_named_than_a_request_may_have() -> None:
    limits = ("--max-payload-mib", "1", "--lane-mib", "64")
    with worker("--device", "cpu", *limits) as process, process.channel() as channel:
        client = RawClient("", channel=channel)
        with RawLane(client) as lane:
            scene = scene_pb2.Scene()
            for name, array in sphere_cloud(30_000).items():
                getattr(scene.spheres, name).CopyFrom(lane.place(array, 1))
            # 360 KB of positions, 360 KB of colours, 120 KB of radii fit; more channels do not.
            put = scene_pb2.PutRequest(scene=scene)
            client.scene_stub.Put(frames_of(put, PayloadWriter()), metadata=lane.metadata(2), timeout=60)
            put.scene.spheres.colors.CopyFrom(lane.place(np.ones((30_000, 9), np.float32), 1))
            error = failure(lambda: client.scene_stub.Put(
                frames_of(put, PayloadWriter()), metadata=lane.metadata(3), timeout=60
            ))  # fmt: skip
            assert "at most 1048576 bytes in regions (the worker's --max-payload-mib)" in violation(error)[1]
        wait_for(lambda: process.metric("lumigrad_transit_bytes") == 0)
