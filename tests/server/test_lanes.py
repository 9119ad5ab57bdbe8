"""Lanes of shared memory, requested with the messages and packets of the contract itself."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import torch

from lumigrad.protos.chunks import allocate_bytes
from lumigrad.protos.lanes import PACKET_BYTES, Packet, ToCaller, lane_metadata
from lumigrad.protos.service import SINGLE_REPLY
from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.server.core.accounts import Account
from lumigrad.server.core.config import Config, ConfigError
from lumigrad.server.core.errors import LaneLostError
from lumigrad.server.core.record import StageTimes
from lumigrad.server.shm.lane import Lane
from lumigrad.server.shm.payload import OpenLane
from lumigrad.v1 import errors_pb2, render_pb2, scene_pb2, tensor_pb2
from support.backends.emulated_copies import EmulatedCopies, emulated_transfer
from support.calls.raw_calls import RawClient, color_gradient, detail, failure, opencv_camera, spec_of, sphere_cloud
from support.calls.raw_lane import RawLane, offer_of
from support.workers.slow_render import wait_for
from support.workers.worker import WorkerProcess, worker, worker_fixture

MIB = 1 << 20
# 768 KiB of colours.
LARGE = opencv_camera(256, 256)
SPEC = spec_of(LARGE)


@pytest.fixture
def lane(client: RawClient) -> Iterator[RawLane]:
    with RawLane(client) as opened:
        yield opened


# A worker whose lanes have 4 MiB each.
narrow_worker = worker_fixture("--lane-mib", "8")


@pytest.fixture
def narrow(narrow_worker: WorkerProcess) -> WorkerProcess:
    """The worker once it has noticed that no lane is open any more."""
    wait_for(narrow_worker, "lumigrad_lanes", 0)
    wait_for(narrow_worker, "lumigrad_lane_bytes", 0)
    return narrow_worker


def render(client: RawClient, lane: RawLane, lease: int, spec: Any = SPEC) -> dict[str, Any]:
    """Returns the outputs of a render whose reply comes through a lane."""
    payload = PayloadWriter()
    request = render_pb2.RenderRequest(spec=with_cloud(spec, payload))
    frames = client.render_stub.Render(frames_of(request, payload), metadata=lane.metadata(lease), timeout=60)
    return lane.arrays(frames)


def with_cloud(spec: render_pb2.RenderSpec, payload: PayloadWriter) -> render_pb2.RenderSpec:
    copy = render_pb2.RenderSpec()
    copy.CopyFrom(spec)
    for name, array in sphere_cloud(50).items():
        getattr(copy.scene.spheres, name).CopyFrom(payload.add(array))
    return copy


def test_large_tensors_of_a_reply_lie_in_regions_and_small_ones_in_the_payload(
    client: RawClient, lane: RawLane
) -> None:
    spec = spec_of(LARGE, outputs=["color", "alpha", "hits"])
    small = spec_of(opencv_camera(32, 32), outputs=["color", "alpha"])
    for asked, in_lane in ((spec, [True, True, True]), (small, [False, False])):
        expected = client.render(asked, cloud=sphere_cloud(50)).arrays
        header = reply_header(client, lane, asked, lease=1 if all(in_lane) else 2)
        assert [entry.tensor.HasField("region") for entry in header.outputs] == in_lane
        got = render(client, lane, 3 if all(in_lane) else 4, asked)
        for name, array in expected.items():
            assert got[name].tobytes() == array.tobytes(), name


def reply_header(client: RawClient, lane: RawLane, spec: Any, lease: int) -> Any:
    payload = PayloadWriter()
    request = render_pb2.RenderRequest(spec=with_cloud(spec, payload))
    frames = list(client.render_stub.Render(frames_of(request, payload), metadata=lane.metadata(lease), timeout=60))
    return frames[0].message


def region_of(client: RawClient, lane: RawLane, lease: int) -> int:
    """Returns the region that holds the colours of a reply."""
    return reply_header(client, lane, SPEC, lease).outputs[0].tensor.region.region


def test_a_region_serves_again_once_it_was_released_and_not_before(client: RawClient, lane: RawLane) -> None:
    first = region_of(client, lane, 1)
    second = region_of(client, lane, 2)
    assert first != second
    lane.release(1)
    assert region_of(client, lane, 3) == first
    lane.release(2)
    lane.release(3)
    upload = lane.lease(4, 256 * 256 * 3 * 4)
    assert upload in (first, second), "uploads and replies share regions"


def test_uploads_through_a_lane_are_what_they_would_be_with_the_stream(client: RawClient, lane: RawLane) -> None:
    cloud = sphere_cloud(40_000, seed=7)
    scene = scene_pb2.Scene()
    for name, array in cloud.items():
        getattr(scene.spheres, name).CopyFrom(lane.place(array, 1) if array.nbytes > 256 << 10 else inline(array))
    frames = frames_of(scene_pb2.PutRequest(scene=scene), PayloadWriter())
    put = client.scene_stub.Put(frames, metadata=lane.metadata(2), timeout=60)
    lane.release(1)
    again = client.put(cloud, content_hash=put.scene.content_hash)
    assert again.existed and again.scene.scene_id == put.scene.scene_id
    _, arrays = client.get(scene_id=put.scene.scene_id, with_tensors=True)
    assert all(arrays[name].tobytes() == array.tobytes() for name, array in cloud.items())


def inline(array: Any) -> Any:
    payload = PayloadWriter()
    tensor = payload.add(array)
    tensor.inline = b"".join(payload.buffers)
    return tensor


def test_output_gradients_through_a_lane(client: RawClient, lane: RawLane) -> None:
    gradient = color_gradient(1, 256, 256, 3)
    expected = client.backward({"color": gradient}, spec=SPEC, cloud=sphere_cloud(50)).arrays
    payload = PayloadWriter()
    request = render_pb2.BackwardSpec(render=with_cloud(SPEC, payload))
    request.output_gradients.add(name="color", tensor=lane.place(gradient, 1))
    frames = frames_of(render_pb2.BackwardRequest(spec=request), payload)
    got = lane.arrays(client.render_stub.Backward(frames, metadata=lane.metadata(2), timeout=60))
    for name, array in expected.items():
        assert got[name].tobytes() == array.tobytes(), name


def test_payload_bytes_are_counted_whichever_way_they_go(
    shared_worker: WorkerProcess, client: RawClient, lane: RawLane
) -> None:
    counted = {"method": "RenderService.Render", "direction": "sent"}
    before = shared_worker.metric("lumigrad_payload_bytes_total", **counted)
    render(client, lane, 1)
    sent = shared_worker.metric("lumigrad_payload_bytes_total", **counted) - before
    assert sent == 256 * 256 * 3 * 4


def test_a_call_that_fails_leaves_no_lease(client: RawClient, lane: RawLane) -> None:
    region = region_of(client, lane, 1)
    lane.release(1)
    payload = PayloadWriter()
    request = render_pb2.RenderRequest(spec=with_cloud(SPEC, payload))
    frames = [*frames_of(request, payload), *frames_of(request, payload)]
    call = client.render_stub.Render(iter(frames), metadata=lane.metadata(2), timeout=60)
    error = failure(lambda: list(call))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert region_of(client, lane, 3) == region


def test_who_is_released_before_the_call_gets_the_stream(client: RawClient, lane: RawLane) -> None:
    lane.release(1)
    assert reply_header(client, lane, SPEC, lease=1).outputs[0].tensor.HasField("payload")
    region_of(client, lane, 2)
    assert reply_header(client, lane, SPEC, lease=2).outputs[0].tensor.HasField("payload"), "in use"


def test_who_is_released_during_an_attempt_gets_no_lane_for_the_next() -> None:
    """A caller releases a lease once, so the regions of a later attempt would stay leased."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        lane = Lane("", here, Account("bytes", 16 * MIB, "--lane-mib"))
        lease = lane.begin(1)
        assert lease is not None and lane.lease_region(lease, MIB) is not None
        lane.release(1)
        lane.end(lease, delivered=False)
        assert lane.begin(1) is None
        other = lane.begin(2)
        assert other is not None
        lane.end(other, delivered=False)
        assert lane.begin(2) is not None, "it was not released"
        lane.close()


def test_a_lane_whose_device_is_lost_leases_nothing_that_this_may_write_to() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        lane = Lane("", here, Account("bytes", 16 * MIB, "--lane-mib"))
        lease = lane.begin(1)
        assert lease is not None and lane.lease_region(lease, MIB) is not None
        lane.freeze()
        lane.end(lease, delivered=False)
        other = lane.begin(2)
        assert other is not None and lane.lease_region(other, MIB) is None
        assert lane.grant(3, MIB) is None and not lane.has_room(MIB)
        lane.close()


def test_a_full_lane_falls_back_to_the_stream_and_says_so(narrow: WorkerProcess) -> None:
    with narrow.channel() as channel:
        client = RawClient("", channel=channel)
        with RawLane(client) as lane:
            expected = client.render(SPEC, cloud=sphere_cloud(50)).arrays["color"]
            before = narrow.metric("lumigrad_lane_fallbacks_total", reason="full")
            places = []
            for lease in range(1, 9):
                tensor = reply_header(client, lane, SPEC, lease).outputs[0].tensor
                places.append(tensor.WhichOneof("location"))
                assert narrow.metric("lumigrad_lane_bytes") <= 4 * MIB
            assert places == ["region"] * 5 + ["payload"] * 3
            assert narrow.metric("lumigrad_lane_fallbacks_total", reason="full") == before + 3
            assert render(client, lane, 10)["color"].tobytes() == expected.tobytes()
            lane.release(1)
            assert reply_header(client, lane, SPEC, 11).outputs[0].tensor.HasField("region")


def single_reply(client: RawClient, metadata: Any, spec: Any = SPEC) -> Any:
    """Returns the single message of a render's reply."""
    payload = PayloadWriter()
    (request,) = frames_of(render_pb2.RenderRequest(spec=with_cloud(spec, payload)), payload)
    return client.render_stub.Render.once(request, metadata=(*metadata, SINGLE_REPLY), timeout=60)


def test_a_single_reply_has_in_regions_what_is_too_long_for_its_message(client: RawClient, lane: RawLane) -> None:
    # The outputs have 49, 147 and 49 KiB.
    spec = spec_of(opencv_camera(112, 112), outputs=["alpha", "color", "hits"])
    expected = client.render(spec, cloud=sphere_cloud(50)).arrays
    reply = single_reply(client, lane.metadata(1), spec)
    assert [entry.tensor.HasField("region") for entry in reply.message.outputs] == [False, True, True]
    assert reply.message.payload_bytes == reply.data.nbytes == 112 * 112 * 4
    got = lane.arrays(iter([reply]))
    for name, array in expected.items():
        assert got[name].tobytes() == array.tobytes(), name


def test_a_single_reply_without_room_is_refused_before_the_work(narrow: WorkerProcess) -> None:
    with narrow.channel() as channel:
        client = RawClient("", channel=channel)
        with RawLane(client) as lane:
            assert lane.lease(1, 7 * MIB // 2)
            full = narrow.metric("lumigrad_lane_fallbacks_total", reason="full")
            blend = {"engine": "spheres", "op": "forward", "stage": "blend"}
            renders = narrow.metric("lumigrad_kernel_seconds_count", **blend)
            error = failure(lambda: single_reply(client, lane.metadata(2)))
            assert detail(error, errors_pb2.LaneLost) is not None
            assert narrow.metric("lumigrad_kernel_seconds_count", **blend) == renders
            assert narrow.metric("lumigrad_lane_fallbacks_total", reason="full") == full + 1
            lane.release(1)
            assert single_reply(client, lane.metadata(3)).message.outputs[0].tensor.HasField("region")


def test_a_single_reply_by_a_lane_that_is_not_open_is_refused(client: RawClient) -> None:
    for spec in (SPEC, spec_of(opencv_camera(74, 74))):
        error = failure(lambda spec=spec: single_reply(client, (lane_metadata(b"0" * 16, 1),), spec))
        assert detail(error, errors_pb2.LaneLost) is not None


def test_regions_of_no_use_make_room_for_others(narrow: WorkerProcess) -> None:
    with narrow.channel() as channel, RawLane(RawClient("", channel=channel)) as lane:
        small = [lane.lease(lease, MIB) for lease in range(1, 4)]
        assert 0 not in small
        assert lane.lease(4, 3 * MIB) == 0, "all are held"
        for lease in range(1, 4):
            lane.release(lease)
        assert lane.lease(5, 3 * MIB)
        assert len(lane.dropped) >= 2


def test_lanes_share_one_budget(narrow: WorkerProcess) -> None:
    with narrow.channel() as channel:
        client = RawClient("", channel=channel)
        with RawLane(client) as one, RawLane(client) as other, RawLane(client) as third:
            assert one.lease(1, 7 * MIB // 2) and other.lease(1, 7 * MIB // 2)
            assert third.lease(1, MIB) == 0
            one.release(1)
            assert narrow.metric("lumigrad_lane_bytes") <= 8 * MIB
            assert narrow.metric("lumigrad_lanes") == 3


def test_memory_that_nobody_uses_goes_back_after_a_while() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        account = Account("bytes", 16 * MIB, "--lane-mib")
        lane = Lane("", here, account)
        held, idle = lane.grant(1, MIB), lane.grant(2, MIB)
        assert held is not None and idle is not None and account.taken == 2 * MIB
        idle.memory[:] = 7
        lane.release(2)
        lane.trim(idle_seconds=60)
        assert account.taken == 2 * MIB, "it may serve again soon"
        lane.trim(idle_seconds=0)
        assert account.taken == MIB
        assert not idle.memory.any(), "the pages are gone, whoever has them mapped"
        kinds = [Packet.unpack(there.recv(PACKET_BYTES)) for _ in range(3)]
        assert kinds[-1] == Packet(ToCaller.DROP, idle.number)
        lane.close()
        assert account.taken == 0


def test_of_who_is_no_longer_admitted_the_replies_stay_and_the_uploads_go() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        account = Account("bytes", 16 * MIB, "--lane-mib")
        lane = Lane("", here, account)
        upload, lease = lane.grant(1, MIB), lane.begin(2)
        assert upload is not None and lease is not None
        reply = lane.lease_region(lease, MIB)
        assert reply is not None
        upload.memory[:] = reply.memory[:] = 7
        lane.end(lease, delivered=True)
        lane.close(has_left=False)
        assert account.taken == 0 and (reply.memory == 7).all()
        assert not upload.memory.any(), "the pages are gone, whoever has them mapped"


def test_what_is_let_go_of_while_it_is_read_is_not_used() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        lane = Lane("", here, Account("bytes", 16 * MIB, "--lane-mib"))
        region, lease = lane.grant(1, MIB), lane.begin(2)
        assert region is not None and lease is not None
        reply = OpenLane(lane, lease, StageTimes(), lambda _: None)
        span = tensor_pb2.RegionSpan(region=region.number, length=MIB)
        tensor = tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_UINT8, shape=[MIB], region=span)
        held = reply.reader(memoryview(b""), MIB, allocate_bytes)
        assert held.read(tensor, "held").nbytes == MIB

        def allocate(length: int) -> memoryview:
            lane.release(1)
            lane.grant(3, MIB)
            return allocate_bytes(length)

        with pytest.raises(LaneLostError):
            reply.reader(memoryview(b""), MIB, allocate).read(tensor, "let go of")


@pytest.mark.parametrize("ends", ["released", "used again", "closed"])
def test_what_was_read_in_place_must_still_be_leased_when_it_was_used(ends: str) -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        lane = Lane("", here, Account("bytes", 16 * MIB, "--lane-mib"))
        region, lease = lane.grant(1, MIB), lane.begin(2)
        assert region is not None and lease is not None
        request = OpenLane(lane, lease, StageTimes(), lambda _: None)
        span = tensor_pb2.RegionSpan(region=region.number, length=MIB)
        tensor = tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_UINT8, shape=[MIB], region=span)
        seen = request.reader(memoryview(b""), 0, allocate_bytes).read_in_place(tensor, "gradient")
        request.check_held()
        assert seen.ctypes.data == region.memory.ctypes.data
        if ends == "closed":
            lane.close()
        else:
            lane.release(1)
        if ends == "used again":
            assert lane.grant(1, MIB) is region
        with pytest.raises(LaneLostError):
            request.check_held()


def test_a_gpu_writes_to_regions_which_are_pinned_until_nothing_uses_them() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        copies = EmulatedCopies()
        lane = Lane("", here, Account("bytes", 16 * MIB, "--lane-mib"), copies)
        lease = lane.begin(1)
        assert lease is not None
        reply = OpenLane(lane, lease, StageTimes(), lambda _: None)
        assert lane.lease_region(lease, MIB) is not None
        assert copies.pinned == {}, "what the worker itself writes needs not be pinned"
        copies.go.clear()
        download = emulated_transfer(copies).start_download([torch.ones(MIB // 4), torch.ones(10)], [reply, reply])
        assert lease.regions[-1].memory.ctypes.data == download.arrays[0].ctypes.data
        assert sorted(copies.pinned.values()) == [64 << 10, MIB], "small tensors go through other pinned memory"
        lane.close()
        assert len(copies.pinned) == 2, "the copy goes on"
        copies.go.set()
        download.wait()
        assert (download.arrays[0] == 1).all()
        del download, reply, lease
        assert MIB not in copies.pinned.values()
        assert copies.mistakes == []


def test_where_cuda_refuses_to_pin_a_region_it_stays_free() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        copies = EmulatedCopies()
        copies.refuses = True
        lane = Lane("", here, Account("bytes", 16 * MIB, "--lane-mib"), copies)
        lease = lane.begin(1)
        assert lease is not None
        reply = OpenLane(lane, lease, StageTimes(), lambda _: None)
        (array,) = emulated_transfer(copies).start_download([torch.ones(MIB // 4)], [reply]).arrays
        assert lease.regions == []
        region = lane.lease_region(lease, MIB)
        assert region is not None and region.memory.ctypes.data != array.ctypes.data
        assert lane.lease_region(lease, MIB) is not region
        lane.close()


def test_a_worker_without_shared_memory_offers_none() -> None:
    with worker("--device", "cpu", "--lane-mib", "0") as process, process.channel() as channel:
        error = failure(lambda: offer_of(RawClient("", channel=channel)))
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert error.details() == "this worker has no shared memory to offer (--lane-mib 0)"


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="--lane-mib: expected a size >= 0, got -1"):
        Config(lane_mib=-1)
