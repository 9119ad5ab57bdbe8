"""Frames that are drawn to a lane without Python keep the promises of all frames, however they end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress

import grpc
import pytest

from lumigrad.protos.frame_stream import FrameAnswer
from lumigrad.protos.wire import Frame
from lumigrad.v1 import image_pb2, render_pb2, scene_pb2
from support.calls.gaussian_calls import gaussian_cloud
from support.calls.lane_frames import SIZE, LaneFrames, camera, expected, region_of, stored_request
from support.calls.raw_calls import RawClient
from support.calls.raw_lane import RawLane
from support.workers.slow_render import SlowRender, wait_for, wait_for_device
from support.workers.tenant import tenant_client
from support.workers.worker import WorkerProcess, worker, worker_fixture

Code = grpc.StatusCode
METHOD = "RenderService.RenderFrame"
TOKENS = {name: f"{name}-0123456789abcdef" for name in ("alice", "bob")}


def code_of(answer: FrameAnswer) -> Code | None:
    return None if answer.status is None else next(code for code in Code if code.value[0] == answer.status.code)


process = worker_fixture()


@pytest.fixture
def client(process: WorkerProcess) -> Iterator[RawClient]:
    made = RawClient(process.target)
    yield made
    made.close()
    wait_for(process, "lumigrad_lanes", 0)
    wait_for(process, "lumigrad_lane_bytes", 0)
    wait_for(process, "lumigrad_transit_bytes", 0)
    wait_for(process, "lumigrad_calls_in_progress", 0)


def test_frames_may_change_their_way(client: RawClient) -> None:
    """Frames without a lane come in messages, and so do small images with a lane."""
    large, small = stored_request(client), stored_request(client, size=(64, 48))
    with RawLane(client) as lane, LaneFrames(client, large, lane) as frames:
        for view, has_lane in enumerate([False, False, True, True, False, True]):
            if has_lane:
                frames.ask(view)
                assert frames.read() == expected(client, large, view)
                continue
            frames.send(cameras=[camera(view)])
            assert [bytes(frames.receive().data)] == expected(client, large, view)
        frames.send(render=small, lane=frames.named())
        assert [bytes(frames.receive().data)] == expected(client, small, 0)
        for view in range(3):
            frames.send(cameras=[camera(view, (64, 48))], lane=frames.named())
            assert [bytes(frames.receive().data)] == expected(client, small, view)


def test_bytes_are_counted_as_those_of_renders(process: WorkerProcess, client: RawClient) -> None:
    counted = {"method": METHOD, "direction": "sent"}
    render = stored_request(client, ("color", "alpha"), image_pb2.IMAGE_FORMAT_UINT8)
    with RawLane(client) as lane, LaneFrames(client, render, lane) as frames:
        before = process.metric("lumigrad_payload_bytes_total", **counted)
        frames.ask(3, pipelined=False)
        frames.read()
        after = process.metric("lumigrad_payload_bytes_total", **counted)
        assert after - before == SIZE[0] * SIZE[1] * (3 + 4)


def test_a_lane_that_is_lost_takes_no_frame_with_it(process: WorkerProcess, client: RawClient) -> None:
    render = stored_request(client)
    with RawLane(client) as lane, LaneFrames(client, render, lane) as frames:
        lost = process.metric("lumigrad_lane_fallbacks_total", reason="lost")
        frames.send(cameras=[camera(1)], lane="0" * 32 + ":1")
        assert [bytes(frames.receive().data)] == expected(client, render, 1)
        lane.close()
        wait_for(process, "lumigrad_lanes", 0)
        frames.ask(2)
        assert [bytes(frames.receive().data)] == expected(client, render, 2)
        assert process.metric("lumigrad_lane_fallbacks_total", reason="lost") == lost + 2


def test_names_that_are_no_text_end_the_stream_as_without_a_kind(client: RawClient) -> None:
    def ended(first: list[bytes]) -> Code:
        base = render_pb2.FrameRequest(number=1, render=stored_request(client)).SerializeToString()
        call = client.channel.stream_stream("/lumigrad.v1.RenderService/RenderStream")(
            iter([base, *first, b"\x08\x09\x32\x02\xff\xfe" + like]), timeout=60
        )
        with suppress(grpc.RpcError):
            list(call)
        found: Code = call.code()
        return found

    like = render_pb2.FrameRequest(cameras=[camera(1)]).SerializeToString()
    with RawLane(client) as lane:
        named = render_pb2.FrameRequest(number=2, cameras=[camera(1)], lane=lane.metadata(1)[0][1])
        codes = [ended([]), ended([named.SerializeToString()])]
    assert codes == [Code.INVALID_ARGUMENT] * 2


def test_an_error_ends_its_frame_and_not_the_stream(client: RawClient) -> None:
    render = stored_request(client)
    scene_id = render.spec.scene_ref.scene_id
    with RawLane(client) as lane, LaneFrames(client, render, lane) as frames:
        client.update(scene_id, 1, {"opacities": gaussian_cloud(60)["opacities"] * 0.5})
        frames.ask(1)
        answer = frames.receive()
        assert answer.reply is not None and answer.reply.scene.version == 2
        assert frames.outputs(answer) == expected(client, render, 1)
        client.scene_stub.Delete(scene_pb2.DeleteRequest(scene_id=scene_id), timeout=60)
        frames.ask(1)
        assert code_of(frames.receive()) == Code.NOT_FOUND
        other = stored_request(client)
        frames.send(render=other, lane=frames.named())
        assert frames.outputs(frames.receive()) == expected(client, other, 0)


@pytest.mark.parametrize("end", ["cancelled", "late", "released and cancelled", "without its lane"])
@pytest.mark.parametrize("pipelined", [False, True])
def test_the_memory_of_a_frame_that_has_ended_serves_again(
    process: WorkerProcess, client: RawClient, end: str, pipelined: bool
) -> None:
    render, slow = stored_request(client), SlowRender(client)
    with RawLane(client) as lane, LaneFrames(client, render, lane) as frames:
        frames.ask(1)
        region = region_of(frames.receive())
        lane.release(frames.lease)
        taken = process.metric("lumigrad_lane_bytes")
        slow.start()
        wait_for_device(process)
        frames.ask(2, pipelined=pipelined, timeout_ms=500 if end == "late" else 0)
        if end != "late":
            wait_for(process, "lumigrad_queue_depth", 1)
        if end == "without its lane":
            lane.close()
            wait_for(process, "lumigrad_lane_bytes", 0)
            slow.cancel()
            assert region_of(frames.receive()) == region
            return
        if end == "released and cancelled":
            lane.release(frames.lease)
        if end == "late":
            assert code_of(frames.receive()) == Code.DEADLINE_EXCEEDED
        frames.call.cancel()
        wait_for(process, "lumigrad_queue_depth", 0)
        lane.release(frames.lease)
        slow.cancel()
        wait_for(process, "lumigrad_calls_in_progress", 0)
        # Regions of this and earlier leases are free.
        metadata = lane.metadata(frames.lease + 1)
        again = client.render_stub.Render.once(Frame(render), metadata=metadata, timeout=60)
        assert again.message.outputs[0].tensor.region.region == region
        assert process.metric("lumigrad_lane_bytes") == taken


def test_frames_that_wait_have_memory_of_their_own(process: WorkerProcess, client: RawClient) -> None:
    render, slow = stored_request(client), SlowRender(client)
    with RawLane(client) as lane, LaneFrames(client, render, lane) as frames:
        slow.start()
        wait_for_device(process)
        for view in range(4):
            frames.ask(view)
        wait_for(process, "lumigrad_queue_depth", 4)
        slow.cancel()
        answers = [frames.receive() for _ in range(4)]
        assert len({region_of(answer) for answer in answers}) == 4
        assert [frames.outputs(answer) for answer in answers] == [expected(client, render, view) for view in range(4)]


def test_only_the_latest_of_those_that_wait_is_rendered(process: WorkerProcess, client: RawClient) -> None:
    render, slow = stored_request(client), SlowRender(client)
    with RawLane(client) as lane, LaneFrames(client, render, lane) as frames:
        slow.start()
        wait_for_device(process)
        for view in range(5):
            frames.ask(view, latest_only=True)
        # All earlier frames have arrived once these two wait.
        kept, last = frames.ask(5), frames.ask(6, latest_only=True)
        wait_for(process, "lumigrad_queue_depth", 2)
        slow.cancel()
        answers = [frames.receive() for _ in range(2)]
        assert [answer.number for answer in answers] == [kept, last]
        assert [frames.outputs(answer) for answer in answers] == [expected(client, render, view) for view in (5, 6)]
        frames.ask(7)
        assert frames.read() == expected(client, render, 7)


def test_a_lane_without_room_leaves_them_to_the_stream() -> None:
    with worker("--device", "cpu", "--lane-mib", "4") as process:
        client = RawClient(process.target)
        render, slow = stored_request(client), SlowRender(client)
        # A lane may have half of the memory, which is room for one image.
        with RawLane(client) as lane, LaneFrames(client, render, lane) as frames:
            slow.start()
            wait_for_device(process)
            for view in range(3):
                frames.ask(view)
            slow.cancel()
            first, *others = [frames.receive() for _ in range(3)]
            assert frames.outputs(first) == expected(client, render, 0)
            assert [[bytes(answer.data)] for answer in others] == [expected(client, render, view) for view in (1, 2)]
            # The general way began their leases anew, so none was lost.
            fallbacks = [process.metric("lumigrad_lane_fallbacks_total", reason=why) for why in ("full", "lost")]
            assert fallbacks == [2, 0]
        client.close()
        wait_for(process, "lumigrad_lane_bytes", 0)


def test_sigterm_lets_them_end() -> None:
    with worker("--device", "cpu", "--lame-duck-seconds", "0", "--drain-seconds", "60") as process:
        client = RawClient(process.target)
        render = stored_request(client)
        wanted = [expected(client, render, view) for view in range(3)]
        with RawLane(client) as lane, LaneFrames(client, render, lane) as frames:
            slow = SlowRender(client)
            slow.start()
            wait_for_device(process)
            for view in range(3):
                frames.ask(view)
            wait_for(process, "lumigrad_queue_depth", 3)
            process.signal(signal.SIGTERM)
            process.wait_for_log("draining")
            slow.cancel()
            answers = [frames.receive() for _ in range(3)]
            assert frames.status() == Code.UNAVAILABLE
            assert process.wait() == 0
            assert [frames.outputs(answer) for answer in answers] == wanted
        client.close()


def test_a_foreign_lane_is_one_that_does_not_exist() -> None:
    with worker("--device", "cpu", tokens=TOKENS) as process, process.channel() as channel:
        alice, bob = (tenant_client(channel, token) for token in TOKENS.values())
        render = stored_request(bob)
        with RawLane(alice) as foreign, RawLane(bob) as lane, LaneFrames(bob, render, lane) as frames:
            frames.send(cameras=[camera(1)], lane=foreign.metadata(1)[0][1])
            assert [bytes(frames.receive().data)] == expected(bob, render, 1)
            frames.ask(2)
            assert frames.read() == expected(bob, render, 2)
            assert len(foreign.regions) == 1, "none but that of its opening"
        wait_for(process, "lumigrad_lane_bytes", 0)
