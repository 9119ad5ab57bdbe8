"""RenderStream: each frame has the answer of a Render, in order, and its own status."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import numpy as np
import pytest

from lumigrad.protos import details
from lumigrad.protos.frame_stream import FRAME_BYTES, FrameAnswer
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.v1 import errors_pb2, image_pb2, render_pb2
from support.calls.gaussian_calls import camera_of, gaussian_cloud, gaussian_spec
from support.calls.raw_calls import RawClient, failure, opencv_camera, spec_of, sphere_cloud, with_scene
from support.calls.raw_frames import CAMERA, RawFrames, stored_spec
from support.calls.raw_lane import RawLane
from support.workers.slow_render import SlowRender, wait_for, wait_for_device
from support.workers.worker import WorkerProcess, worker_fixture

Code = grpc.StatusCode


@contextmanager
def busy_device(client: RawClient, process: WorkerProcess) -> Iterator[Callable[[], None]]:
    """Keeps the device busy until the block ends, or until the yielded function is called."""
    slow = SlowRender(client)
    slow.start()
    wait_for_device(process)
    try:
        yield slow.cancel
    finally:
        slow.cancel()


def arrays_of(answer: FrameAnswer) -> dict[str, np.ndarray]:
    assert answer.reply is not None, answer.status
    reader = PayloadReader(answer.data)
    return {named.name: reader.read(named.tensor, named.name) for named in answer.reply.outputs}


def code_of(answer: FrameAnswer) -> grpc.StatusCode:
    assert answer.status is not None
    return next(code for code in Code if code.value[0] == answer.status.code)


def detail_of(answer: FrameAnswer, kind: type) -> object:
    assert answer.status is not None
    return details.find((details.trailer(answer.status),), kind)


@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize("kind", ["spheres", "gaussians"])
def test_frames_are_equal_to_renders_bit_by_bit(client: RawClient, kind: str, pipelined: bool) -> None:
    if kind == "spheres":
        cloud, spec = sphere_cloud(50), spec_of(CAMERA, outputs=["color", "alpha"])
        cameras = [opencv_camera(32, 24, x=x) for x in (0.5, 1.0, 1.5)]
    else:
        cloud, spec = gaussian_cloud(50), gaussian_spec(camera_of(), outputs=["color", "depth"])
        cameras = [camera_of(width=width) for width in (32, 40, 48)]
    spec.scene_ref.scene_id = client.put(cloud).scene.scene_id
    with RawFrames(client) as frames:
        frames.send(spec)
        for camera in cameras:
            frames.send(cameras=[camera], pipelined=pipelined)
        for number, camera in enumerate((spec.cameras[0], *cameras), 1):
            answer = frames.receive()
            assert answer.number == number
            del spec.cameras[:]
            spec.cameras.append(camera)
            expected = client.render(spec)
            assert answer.reply is not None
            assert answer.reply.scene == expected.header.scene
            assert answer.reply.timings.total_milliseconds > 0
            for name, array in arrays_of(answer).items():
                np.testing.assert_array_equal(array, expected.arrays[name])
        frames.end()
        assert frames.status() == Code.OK


@pytest.mark.parametrize("name", ["FLOAT16", "BFLOAT16", "UINT8", "PNG", "JPEG"])
def test_frames_come_in_every_format(client: RawClient, name: str) -> None:
    formats = [image_pb2.OutputFormat(name="color", format=f"IMAGE_FORMAT_{name}")]
    spec = stored_spec(client)
    with RawFrames(client) as frames:
        frames.send(render=render_pb2.RenderRequest(spec=spec, formats=formats))
        frames.send(cameras=spec.cameras)
        answers = frames.receive(), frames.receive()
    (frame,) = client.render(spec, formats=formats).frames
    assert [answer.data for answer in answers] == [frame.data, frame.data]


def test_a_payload_above_the_size_of_one_message_comes_in_several(client: RawClient) -> None:
    spec = stored_spec(client, opencv_camera(640, 480))
    with RawFrames(client) as frames:
        frames.send(spec)
        frames.send(cameras=[CAMERA])
        first = frames.receive()
        assert first.reply is not None
        length = first.reply.payload_bytes
        assert length == 640 * 480 * 12 > FRAME_BYTES
        chunks = [first]
        while sum(chunk.data.nbytes for chunk in chunks) < length:
            chunks.append(frames.receive())
        assert {chunk.number for chunk in chunks} == {1}
        payload = b"".join(chunk.data for chunk in chunks)
        color = PayloadReader(payload).read(first.reply.outputs[0].tensor, "color")
        np.testing.assert_array_equal(color, client.render(spec).arrays["color"])
        assert frames.receive().number == 2


def test_an_error_ends_its_frame_and_not_the_stream(client: RawClient) -> None:
    spec, unknown, late = stored_spec(client), spec_of(CAMERA, scene_id="none"), stored_spec(client)
    late.scene_ref.version += 1
    with RawFrames(client) as frames:
        for request in (spec, unknown, late, render_pb2.RenderSpec(), spec):
            frames.send(request)
        answers = [frames.receive() for _ in range(5)]
    assert [answer.number for answer in answers] == [1, 2, 3, 4, 5]
    assert answers[0].data == answers[4].data
    assert [code_of(answer) for answer in answers[1:4]] == [
        *(Code.NOT_FOUND, Code.FAILED_PRECONDITION, Code.INVALID_ARGUMENT),
    ]
    assert detail_of(answers[1], errors_pb2.SceneNotFound) == errors_pb2.SceneNotFound(scene_id="none")
    assert isinstance(detail_of(answers[2], errors_pb2.VersionMismatch), errors_pb2.VersionMismatch)


def test_cameras_alone_need_a_render_of_a_stored_scene_before(client: RawClient) -> None:
    spec, inline = stored_spec(client), render_pb2.RenderRequest()
    with RawFrames(client) as frames:
        frames.send(cameras=[CAMERA])
        assert code_of(frames.receive()) == Code.INVALID_ARGUMENT
        frames.send(render=inline, cameras=[CAMERA])
        assert "cameras: expected none beside render, got 1" in frames.receive().status.message
        inline.spec.CopyFrom(spec_of(CAMERA))
        inline.spec.scene.spheres.positions.inline = b"1"
        frames.send(render=inline)
        assert code_of(frames.receive()) == Code.INVALID_ARGUMENT
        frames.send(cameras=[CAMERA])
        answer = frames.receive()
        limit = "one, since the last was not of a stored scene alone, in at most 256 KiB"
        assert answer.status.message == f"render: expected {limit}, got none"
        frames.send(spec)
        frames.send(cameras=[CAMERA])
        assert frames.receive().data == frames.receive().data


def test_a_scene_may_come_with_its_frame(client: RawClient) -> None:
    payload = PayloadWriter()
    spec = with_scene(spec_of(CAMERA), sphere_cloud(20), payload)
    data = b"".join(payload.buffers)
    with RawFrames(client) as frames:
        frames.send(render=render_pb2.RenderRequest(spec=spec, payload_bytes=len(data), data=data))
        frames.send(render=render_pb2.RenderRequest(spec=spec, payload_bytes=len(data) + 1, data=data))
        whole, short = frames.receive(), frames.receive()
    expected = client.render(spec_of(CAMERA), cloud=sphere_cloud(20)).arrays["color"]
    np.testing.assert_array_equal(arrays_of(whole)["color"], expected)
    assert code_of(short) == Code.INVALID_ARGUMENT


def test_states_are_kept_for_backward(client: RawClient) -> None:
    spec = stored_spec(client)
    with RawFrames(client) as frames:
        frames.send(render=render_pb2.RenderRequest(spec=spec, retain=True))
        frames.send(cameras=[CAMERA])
        names = [frames.receive().reply.context_id for _ in range(2)]
    assert len(set(names)) == 2
    gradient = {"color": np.ones((1, 24, 32, 3), np.float32)}
    first, second = (client.backward(gradient, context_id=name, release=True).arrays for name in names)
    np.testing.assert_array_equal(first["positions"], second["positions"])


@pytest.mark.parametrize("raw", [b"\xff\xff", b"\x12\x05abc", render_pb2.FrameRequest(number=1).SerializeToString()])
def test_what_names_no_frame_ends_the_stream(client: RawClient, raw: bytes) -> None:
    good = render_pb2.FrameRequest(number=1, render=render_pb2.RenderRequest(spec=stored_spec(client)))
    path = "/lumigrad.v1.RenderService/RenderStream"
    replies = client.channel.stream_stream(path)(iter((good.SerializeToString(), raw)), timeout=60)
    # The first frame is answered.
    assert render_pb2.FrameReply.FromString(next(replies)).reply.payload_bytes
    error = failure(lambda: next(replies))
    assert error.code() == Code.INVALID_ARGUMENT


def test_a_deadline_ends_its_frame_alone(client: RawClient, shared_worker: WorkerProcess) -> None:
    spec = stored_spec(client)
    with RawFrames(client) as frames, busy_device(client, shared_worker) as free:
        frames.send(spec, timeout_ms=50)
        frames.send(spec)
        assert code_of(frames.receive()) == Code.DEADLINE_EXCEEDED
        free()
        assert frames.receive().reply is not None


def test_only_the_latest_of_those_that_wait_is_rendered(client: RawClient, shared_worker: WorkerProcess) -> None:
    spec = stored_spec(client)
    with RawFrames(client) as frames:
        frames.send(spec)
        assert frames.receive().reply is not None
        with busy_device(client, shared_worker) as free:
            for _ in range(50):
                frames.send(cameras=[CAMERA], latest_only=True)
            kept = frames.send(spec)
            last = frames.send(cameras=[CAMERA], latest_only=True)
            wait_for(shared_worker, "lumigrad_queue_depth", 2)
            free()
            # Frames that may not be skipped are answered.
            assert [frames.receive().number for _ in range(2)] == [kept, last]
        frames.end()
        assert frames.status() == Code.OK


def test_no_more_than_four_frames_are_taken_in(client: RawClient, shared_worker: WorkerProcess) -> None:
    spec = stored_spec(client)
    with RawFrames(client) as frames, busy_device(client, shared_worker) as free:
        numbers = [frames.send(spec) for _ in range(20)]
        wait_for(shared_worker, "lumigrad_queue_depth", 4)
        time.sleep(0.2)
        assert shared_worker.metric("lumigrad_queue_depth") == 4
        free()
        assert [frames.receive().number for _ in numbers] == numbers


def test_each_frame_and_the_stream_are_recorded(client: RawClient, shared_worker: WorkerProcess) -> None:
    labels = {"method": "RenderService.RenderFrame"}
    before = [shared_worker.metric("lumigrad_calls_total", **labels, code=code) for code in ("OK", "NOT_FOUND")]
    with RawFrames(client, metadata=[("x-request-id", "of-this-test")]) as frames:
        frames.send(stored_spec(client))
        frames.receive()
        assert shared_worker.metric("lumigrad_account_taken", resource="open_streams") == 1
        assert shared_worker.metric("lumigrad_calls_total", **labels, code="OK") == before[0] + 1
        frames.send(spec_of(CAMERA, scene_id="none"))
        frames.receive()
        assert shared_worker.metric("lumigrad_calls_total", **labels, code="NOT_FOUND") == before[1] + 1
        frames.end()
        assert frames.status() == Code.OK
    shared_worker.wait_for_log("request_id=of-this-test method=RenderService.RenderStream code=OK")
    frame = r"request_id=of-this-test\.1 method=RenderService\.RenderFrame code=OK ms=\S+ received=0 sent=9216"
    assert re.search(frame, shared_worker.log)


def test_large_arrays_of_frames_travel_through_shared_memory(client: RawClient) -> None:
    spec = stored_spec(client, opencv_camera(640, 480))
    with RawLane(client) as lane, RawFrames(client) as frames:
        for lease in (1, 2):
            frames.send(spec, lane=lane.metadata(lease)[0][1])
            answer = frames.receive()
            assert answer.reply is not None
            tensor = answer.reply.outputs[0].tensor
            assert tensor.region.length == 640 * 480 * 12
            assert not answer.data.nbytes
        frames.send(spec, lane="0" * 32 + ":1")
        assert arrays_bytes(frames.receive(), frames)


def arrays_bytes(answer: FrameAnswer, frames: RawFrames) -> bytes:
    """Returns the payload of a reply, which may come in several messages."""
    assert answer.reply is not None
    data = bytes(answer.data)
    while len(data) < answer.reply.payload_bytes:
        data += frames.receive().data
    return data


small = worker_fixture("--max-streams", "2", "--queue-size", "1")


def test_streams_have_an_account_of_their_own(small: WorkerProcess) -> None:
    client = RawClient(small.target)
    spec = stored_spec(client)
    with RawFrames(client) as first, RawFrames(client) as second:
        for frames in (first, second):
            frames.send(spec)
            assert frames.receive().reply is not None
        third = RawFrames(client)
        error = failure(third.receive)
        assert error.code() == Code.RESOURCE_EXHAUSTED
        assert "2 of 2 open streams are taken (--max-streams)" in error.details()
    wait_for(small, "lumigrad_account_taken", 0, resource="open_streams")
    client.close()


def test_a_full_queue_refuses_the_frame_and_not_the_stream(small: WorkerProcess) -> None:
    client = RawClient(small.target)
    spec = stored_spec(client)
    refused = small.metric("lumigrad_rejections_total", reason="busy")
    with RawFrames(client) as frames, busy_device(client, small) as free:
        frames.send(spec)
        wait_for(small, "lumigrad_queue_depth", 1)
        frames.send(spec)
        wait_for(small, "lumigrad_rejections_total", refused + 1, reason="busy")
        free()
        assert frames.receive().reply is not None
        assert code_of(frames.receive()) == Code.RESOURCE_EXHAUSTED
        frames.send(spec)
        assert frames.receive().reply is not None
    client.close()
