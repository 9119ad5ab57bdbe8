"""Frames of a prepared kind, which run without Python, have the order, errors, deadlines and accounts of others."""

from __future__ import annotations

import time
from threading import Event, Thread
from typing import Any

import grpc
import numpy as np
import pytest

from lumigrad.protos.frame_stream import FrameAnswer
from lumigrad.server.core.call import PRIORITY
from lumigrad.v1 import image_pb2, render_pb2, scene_pb2
from support.calls.gaussian_calls import gaussian_cloud, gaussian_spec
from support.calls.raw_calls import RawClient, opencv_camera, spec_of
from support.calls.raw_frames import RawFrames
from support.workers.slow_render import SlowRender, wait_for, wait_for_device
from support.workers.worker import WorkerProcess, worker

Code = grpc.StatusCode
FORMATS = (image_pb2.OutputFormat(name="color", format=image_pb2.IMAGE_FORMAT_UINT8),)


def camera(view: int, width: int = 32) -> object:
    return opencv_camera(width, 24, x=0.01 * view)


def stored(client: RawClient, seed: int = 1, *, version: int = 0) -> render_pb2.RenderRequest:
    info = client.put(gaussian_cloud(50, seed=seed)).scene
    spec = gaussian_spec(camera(0), scene_id=info.scene_id, outputs=["color"])
    spec.scene_ref.version = version
    return render_pb2.RenderRequest(spec=spec, formats=FORMATS)


def prepared(client: RawClient, render: render_pb2.RenderRequest, **options: Any) -> RawFrames:
    """Returns a stream whose frames with cameras of the usual size are prepared from now on."""
    frames = RawFrames(client, **options)
    frames.send(render=render)
    frames.receive()
    for view in range(2):
        frames.send(cameras=[camera(view)])
        frames.receive()
    return frames


def expected(client: RawClient, render: render_pb2.RenderRequest, *cameras: object) -> bytes:
    """Returns the payload of the same render by a Render call."""
    spec = render_pb2.RenderSpec()
    spec.CopyFrom(render.spec)
    del spec.cameras[:]
    spec.cameras.extend(cameras)
    (frame,) = client.render(spec, formats=render.formats).frames
    return bytes(frame.data)


def code_of(answer: FrameAnswer) -> grpc.StatusCode | None:
    return None if answer.status is None else next(code for code in Code if code.value[0] == answer.status.code)


@pytest.mark.parametrize("most", [1, 2, 4])
def test_frames_of_any_depth_are_equal_to_renders(client: RawClient, most: int) -> None:
    render = stored(client)
    wanted = [expected(client, render, camera(view)) for view in range(12)]
    with prepared(client, render) as frames:
        first, waiting, found = frames.sent + 1, 0, []
        for view in range(12):
            frames.send(cameras=[camera(view)], pipelined=most > 1 and view % 5 != 4)
            waiting += 1
            if waiting == most:
                found.append(frames.receive())
                waiting -= 1
        found += [frames.receive() for _ in range(waiting)]
        frames.end()
        assert frames.status() == Code.OK
    assert [answer.number for answer in found] == list(range(first, first + 12))
    assert [bytes(answer.data) for answer in found] == wanted


def test_frames_of_other_kinds_between_them_are_answered_in_order(client: RawClient) -> None:
    render, other = stored(client), stored(client, seed=2)
    other.formats[0].format = image_pb2.IMAGE_FORMAT_PNG
    unknown = render_pb2.RenderRequest(spec=spec_of(camera(0), scene_id="none"))
    with prepared(client, render) as frames:
        kinds = [
            ({"cameras": [camera(1)]}, expected(client, render, camera(1))),
            ({"cameras": [camera(1, 40)]}, expected(client, render, camera(1, 40))),
            ({"cameras": [camera(1)], "lane": "none"}, None),
            ({"cameras": [camera(1), camera(2)]}, expected(client, render, camera(1), camera(2))),
            ({"cameras": [camera(3)], "timeout_ms": 60_000}, expected(client, render, camera(3))),
            ({"render": unknown}, Code.NOT_FOUND),
            ({"cameras": [camera(3)]}, Code.NOT_FOUND),
            ({"render": other}, None),
            ({"render": render}, expected(client, render, camera(0))),
            ({"cameras": [camera(4)]}, expected(client, render, camera(4))),
        ]
        chosen = np.random.default_rng(3).integers(len(kinds) - 4, size=40).tolist()
        # Frames without a scene of their own fail after a render of an unknown scene, which ends what they build on.
        sent = [kinds[index] for index in (*(index % 5 for index in chosen), *range(len(kinds)), 9, 0, 9)]
        numbers = []
        answers = []
        for fields, _ in sent:
            numbers.append(frames.send(**fields))
            if len(numbers) - len(answers) == 4:
                answers.append(frames.receive())
        answers += [frames.receive() for _ in range(len(numbers) - len(answers))]
    assert [answer.number for answer in answers] == numbers
    for answer, (fields, wanted) in zip(answers, sent, strict=True):
        if isinstance(wanted, bytes):
            assert bytes(answer.data) == wanted, fields
        elif wanted is not None:
            assert code_of(answer) == wanted, fields


def test_a_scene_is_looked_up_for_each_frame(client: RawClient) -> None:
    newest = stored(client)
    scene_id = newest.spec.scene_ref.scene_id
    with prepared(client, newest) as frames:
        client.update(scene_id, 1, {"opacities": np.full(50, 0.3, np.float32)})
        frames.send(cameras=[camera(5)])
        answer = frames.receive()
        assert answer.reply.scene.version == 2
        assert bytes(answer.data) == expected(client, newest, camera(5))
        for _ in range(2):
            frames.send(cameras=[camera(5)])
            assert frames.receive().data == answer.data
        client.scene_stub.Delete(scene_pb2.DeleteRequest(scene_id=scene_id), timeout=60)
        frames.send(cameras=[camera(5)])
        assert code_of(frames.receive()) == Code.NOT_FOUND


def test_a_frame_of_a_version_that_is_replaced_is_refused(client: RawClient) -> None:
    render = stored(client, version=1)
    with prepared(client, render) as frames:
        client.update(render.spec.scene_ref.scene_id, 1, {"opacities": np.full(50, 0.3, np.float32)})
        frames.send(cameras=[camera(5)])
        assert code_of(frames.receive()) == Code.FAILED_PRECONDITION


def test_a_number_that_does_not_grow_ends_the_stream(client: RawClient) -> None:
    with prepared(client, stored(client)) as frames:
        frames.send(cameras=[camera(1)], number=2)
        assert frames.status() == Code.INVALID_ARGUMENT


def test_a_deadline_ends_its_frame_alone(client: RawClient, process: WorkerProcess) -> None:
    slow = SlowRender(client)
    with prepared(client, stored(client)) as frames:
        slow.start()
        wait_for_device(process)
        frames.send(cameras=[camera(1)], timeout_ms=100)
        frames.send(cameras=[camera(2)], pipelined=False)
        frames.send(cameras=[camera(3)])
        # The deadline passes before the device is free.
        assert code_of(frames.receive()) == Code.DEADLINE_EXCEEDED
        slow.cancel()
        assert [code_of(frames.receive()) for _ in range(2)] == [None, None]


def test_four_frames_wait_and_a_cancelled_stream_leaves_the_queue(client: RawClient, process: WorkerProcess) -> None:
    slow = SlowRender(client)
    with prepared(client, stored(client)) as frames:
        slow.start()
        wait_for_device(process)
        for view in range(20):
            frames.send(cameras=[camera(view)])
        wait_for(process, "lumigrad_queue_depth", 4)
        time.sleep(0.2)
        assert process.metric("lumigrad_queue_depth") == 4
        # Four frames, the stream and the slow call are in progress.
        wait_for(process, "lumigrad_calls_in_progress", 6)
        before = process.metric("lumigrad_calls_total", method="RenderService.RenderFrame", code="CANCELLED")
        frames.call.cancel()
        wait_for(process, "lumigrad_queue_depth", 0)
        wait_for(process, "lumigrad_calls_in_progress", 1)
        slow.cancel()
    wait_for(process, "lumigrad_transit_bytes", 0)
    cancelled = process.metric("lumigrad_calls_total", method="RenderService.RenderFrame", code="CANCELLED")
    assert cancelled == before + 4


def test_a_frame_that_waits_for_longer_than_a_call_may_take_is_ended() -> None:
    """Other calls keep the device busy all the time, though none of them takes that long."""
    with worker("--device", "cpu", "--max-call-seconds", "5") as process, RawClient(process.target) as client:
        assert any(is_frame_ended(client, process) for _ in range(5))


def is_frame_ended(client: RawClient, process: WorkerProcess) -> bool:
    """Has a frame wait for longer than 5 s; returns whether it is ended, and not its whole stream.

    A stream is ended if its caller sends nothing for that time, as on a busy machine.
    """
    slow, has_ended = SlowRender(client), Event()

    def keep_busy() -> None:
        while not has_ended.wait(0.5):
            slow.start()

    with prepared(client, stored(client), metadata=((PRIORITY, "batch"),)) as frames:
        slow.start()
        wait_for_device(process)
        busy = Thread(target=keep_busy)
        busy.start()
        try:
            for view in range(3):
                frames.send(cameras=[camera(view)])
                time.sleep(1.8)
            answer = frames.receive()
        except grpc.RpcError as error:
            assert error.code() == Code.CANCELLED
            return False
        finally:
            has_ended.set()
            busy.join()
            slow.cancel()
        assert code_of(answer) == Code.CANCELLED
        assert answer.status is not None and "longer than 5 s (--max-call-seconds)" in answer.status.message
        frames.send(cameras=[camera(3)])
        later = [code_of(frames.receive()) for _ in range(3)]
        assert later[-1] is None
    return True


def test_each_frame_is_recorded(client: RawClient, process: WorkerProcess) -> None:
    labels = {"method": "RenderService.RenderFrame", "code": "OK"}
    with prepared(client, stored(client)) as frames:
        before = process.metric("lumigrad_calls_total", **labels)
        for view in range(5):
            frames.send(cameras=[camera(view)], pipelined=False)
            frames.receive()
            assert process.metric("lumigrad_calls_total", **labels) == before + view + 1
    process.wait_for_log(f".{frames.sent} method=RenderService.RenderFrame code=OK")


def test_a_full_queue_does_not_end_the_stream() -> None:
    with worker("--device", "cpu", "--queue-size", "1") as small, RawClient(small.target) as client:
        slow = SlowRender(client)
        with prepared(client, stored(client)) as frames:
            slow.start()
            wait_for_device(small)
            frames.send(cameras=[camera(1)])
            wait_for(small, "lumigrad_queue_depth", 1)
            frames.send(cameras=[camera(2)])
            time.sleep(0.2)
            slow.cancel()
            assert code_of(frames.receive()) is None
            # The queue may have room again when it is this frame's turn.
            assert code_of(frames.receive()) in (None, Code.RESOURCE_EXHAUSTED)
            frames.send(cameras=[camera(3)])
            assert code_of(frames.receive()) is None


def test_a_drain_lets_frames_that_wait_for_the_device_finish() -> None:
    process = WorkerProcess("--device", "cpu", "--lame-duck-seconds", "0", "--drain-seconds", "250")
    client = RawClient(process.target)
    slow = SlowRender(client, count=1000)
    with prepared(client, stored(client), timeout=250) as frames:
        # The slow call takes long enough for the frames to be queued even on a busy machine.
        call = slow.start(300, timeout=250)
        wait_for_device(process)
        for view in range(3):
            frames.send(cameras=[camera(view)])
        wait_for(process, "lumigrad_queue_depth", 3)
        process.signal()
        list(call)
        assert [code_of(frames.receive()) for _ in range(3)] == [None] * 3
        assert frames.status() == Code.UNAVAILABLE
    assert process.wait() == 0
    client.close()
