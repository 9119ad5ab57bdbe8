"""Streams of frames whose workers, callers, connections or scenes fail, over real sockets."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from google.rpc import error_details_pb2

from lumigrad.client import Camera, Client, Spheres
from lumigrad.protos import details
from lumigrad.v1 import render_pb2, scene_pb2
from support.calls.raw_calls import RawClient, failure, opencv_camera, spec_of
from support.calls.raw_frames import CAMERA, RawFrames, stored_spec
from support.workers.fleet import cloud, end, fleet, targets
from support.workers.slow_render import SlowRender, wait_for, wait_for_device, wait_until
from support.workers.tenant import tenant_client
from support.workers.worker import WorkerProcess, worker, worker_fixture

Code = grpc.StatusCode
MIB = 1 << 20
STALL_SECONDS = 1.5
SETTINGS: dict[str, Any] = {"max_depth": 10.0}
process = worker_fixture("--stall-seconds", str(STALL_SECONDS))


def orbit(count: int, size: int = 64) -> list[Camera]:
    return [Camera.orbit((0, 0, 0), 4.0, 7.0 * i, 20.0, width=size, height=size) for i in range(count)]


@pytest.mark.parametrize("lane", ["stream", "shared"])
def test_a_stream_survives_the_crash_of_its_worker(lane: Any) -> None:
    scene, cameras = cloud(1), orbit(60, 300)
    with worker("--device", "cpu", supervised=True) as process, Client(process.target, lane=lane, retry_s=60) as client:
        with client.stream(client.put(scene), **SETTINGS) as stream:
            frames = []
            for frame in stream.frames(cameras):
                frames.append(frame)
                if len(frames) in (20, 40):
                    os.kill(process.worker_pid, signal.SIGKILL)
        assert [frame.request.cameras[0] for frame in frames] == cameras
        for number in (19, 21, 41, 59):
            expected = client.render(scene, cameras[number], **SETTINGS)
            np.testing.assert_array_equal(frames[number].color, expected.color)


def test_a_stream_goes_on_with_another_worker_when_its_own_is_stopped() -> None:
    scene, cameras = cloud(2), orbit(60)
    with fleet(2) as workers, Client(targets(workers)) as client:
        handle = client.put(scene)
        with client.stream(handle, **SETTINGS) as stream:
            stopped: WorkerProcess | None = None
            frames = zip(itertools.cycle(cameras), stream.frames(itertools.cycle(cameras)), strict=False)
            for count, (camera, frame) in enumerate(frames):
                assert frame.request.cameras == (camera,)
                if count == 50:
                    stopped = next(it for it in workers if it.metric("lumigrad_account_taken", resource="open_streams"))
                    other = next(it for it in workers if it is not stopped)
                    stopped.signal()
                has_ended = stopped is not None and stopped.process.poll() is not None
                if has_ended and other.metric("lumigrad_account_taken", resource="open_streams") == 1:
                    break
                time.sleep(0.01)
            assert stopped is not None and stopped.wait() == 0
        # Frames that had begun were finished.
        codes = {line.split("code=")[1].split()[0] for line in stopped.log.splitlines() if "RenderFrame" in line}
        assert codes <= {"OK", "UNAVAILABLE"}
        assert "stopped calls=0" in stopped.log
        end(other)


def test_a_drain_tells_streams_to_go_elsewhere_and_lets_their_frames_finish() -> None:
    process = WorkerProcess("--device", "cpu", "--lame-duck-seconds", "0", "--drain-seconds", "240")
    client = RawClient(process.target)
    with RawFrames(client) as idle, RawFrames(client) as busy:
        idle.send(stored_spec(client))
        assert idle.receive().reply is not None
        slow = SlowRender(client, count=1000)
        busy.send(slow.request().message.spec)
        wait_for_device(process)
        started = time.monotonic()
        process.signal()
        error = failure(idle.receive)
        assert error.code() == Code.UNAVAILABLE
        assert details.find(error.trailing_metadata(), error_details_pb2.RetryInfo) is not None
        assert busy.receive().reply is not None
        assert busy.status() == Code.UNAVAILABLE
        assert process.wait() == 0
        assert time.monotonic() - started < 200
    client.close()


def test_a_drain_leaves_no_frame_without_a_reply_in_a_stream_that_ends_well(tmp_path: Path) -> None:
    """The caller has sent all of its requests, and the last of them has not begun when the worker is told to stop."""
    ended = tmp_path / "ended"
    before = f"""
import pathlib
from lumigrad.server.rpc.render_stream import _Stream

plain = _Stream.finish

def finish(self, error):
    plain(self, error)
    if error is None:
        pathlib.Path({str(ended)!r}).touch()

_Stream.finish = finish
"""
    options = ("--device", "cpu", "--lame-duck-seconds", "0", "--drain-seconds", "240")
    process = WorkerProcess(*options, before=(before,))
    client = RawClient(process.target)
    with RawFrames(client) as frames:
        frames.send(SlowRender(client, count=1000).request().message.spec)
        wait_for_device(process)
        for _ in range(3):
            frames.send(stored_spec(client), latest_only=True)
        frames.end()
        wait_until(ended.exists, "the end of the requests")
        process.signal()
        replies = []
        with suppress(grpc.RpcError):
            for reply in frames.call:
                replies.append(reply)
        assert replies[0].number == 1 and replies[0].reply is not None
        assert frames.status() == Code.UNAVAILABLE or replies[-1].number == frames.sent
        assert process.wait() == 0
    client.close()


def test_a_scene_that_changes_between_frames(process: WorkerProcess) -> None:
    client = RawClient(process.target)
    spec = stored_spec(client, count=33)
    newest = render_pb2.RenderSpec()
    newest.CopyFrom(spec)
    newest.scene_ref.version = 0
    with RawFrames(client) as frames:
        frames.send(newest)
        before = frames.receive()
        radii = np.full(33, 0.3, np.float32)
        client.update(spec.scene_ref.scene_id, spec.scene_ref.version, {"radii": radii})
        frames.send(cameras=[CAMERA])
        after = frames.receive()
        assert before.reply is not None and after.reply is not None
        assert after.reply.scene.version == before.reply.scene.version + 1
        assert after.data != before.data
        frames.send(spec)
        old = frames.receive()
        assert old.status is not None and old.status.code == Code.FAILED_PRECONDITION.value[0]
        client.scene_stub.Delete(scene_pb2.DeleteRequest(scene_id=spec.scene_ref.scene_id), timeout=60)
        frames.send(newest)
        gone = frames.receive()
        assert gone.status is not None and gone.status.code == Code.NOT_FOUND.value[0]
    client.close()


def test_scenes_that_are_evicted_between_frames_are_stored_again() -> None:
    scenes = [Spheres(**large(seed)) for seed in range(4)]
    limits = ("--scene-mib", "12", "--max-payload-mib", "12")
    with worker("--device", "cpu", *limits) as process, Client(process.target) as client:
        handles = [client.put(scene) for scene in scenes]
        streams = [client.stream(handle, **SETTINGS) for handle in handles]
        camera = orbit(1, 16)[0]
        for _ in range(3):
            for stream in streams:
                stream.send(camera)
            for stream in streams:
                assert stream.receive().color.shape == (16, 16, 3)
        for stream in streams:
            stream.close()
        assert process.metric("lumigrad_scene_puts_total", result="stored") > len(scenes)


def large(seed: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    count = 150_000
    return {
        "positions": generator.normal(size=(count, 3)).astype("f4"),
        "colors": generator.random((count, 3)).astype("f4"),
        "radii": np.full(count, 0.01, "f4"),
    }


def test_a_cancelled_stream_leaves_the_device(process: WorkerProcess) -> None:
    client = RawClient(process.target)
    slow = SlowRender(client)
    with RawFrames(client) as frames:
        for _ in range(6):
            frames.send(slow.request().message.spec)
        wait_for(process, "lumigrad_queue_depth", 3)
        frames.call.cancel()
        wait_for(process, "lumigrad_calls_in_progress", 0)
        wait_for(process, "lumigrad_transit_bytes", 0)
    client.close()


def test_a_stream_whose_replies_nobody_takes_is_given_up(process: WorkerProcess) -> None:
    # gRPC would otherwise widen its window until it holds the replies unread.
    client = RawClient(process.target, [("grpc.http2.bdp_probe", 0)])
    spec = stored_spec(client, opencv_camera(1280, 720))
    why = "took nothing, or less than 64 KiB of a payload, in 1.5 s (--stall-seconds)"
    given_up = process.log.count(why)
    with RawFrames(client) as frames:
        for _ in range(10):
            frames.send(spec)
        process.wait_for_log(why, count=given_up + 1)
        wait_for(process, "lumigrad_account_taken", 0, resource="open_streams")
        wait_for(process, "lumigrad_transit_bytes", 0)
        assert frames.status() == Code.CANCELLED
    client.close()


def test_a_stream_that_asks_for_nothing_is_kept_for_a_while_only() -> None:
    with worker("--device", "cpu", "--max-call-seconds", "3") as process:
        client = RawClient(process.target)
        with RawFrames(client) as frames:
            frames.send(stored_spec(client))
            assert frames.receive().reply is not None
            assert frames.status() == Code.CANCELLED
        process.wait_for_log("the caller sent no request for 3 s (--max-call-seconds)")
        client.close()
        with Client(process.target) as own, own.stream(cloud(3), **SETTINGS) as stream:
            for _ in range(2):
                assert len(list(stream.frames(orbit(1)))) == 1
                wait_for(process, "lumigrad_account_taken", 0, resource="open_streams")


def test_a_token_that_is_revoked_ends_its_stream(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    alice, bob = "alice-0123456789abcdef", "bob-0123456789abcdef"
    tokens.write_text(f"alice: {alice}\nbob: {bob}\n")
    with worker("--device", "cpu", "--tokens-file", str(tokens)) as process, process.channel() as channel:
        streams = []
        for token in (alice, alice, bob):
            client = tenant_client(channel, token)
            streams.append(RawFrames(client))
            streams[-1].send(stored_spec(client))
            assert streams[-1].receive().reply is not None
        idle, busy, other = streams
        tokens.write_text(f"bob: {bob}\n")
        started = time.monotonic()
        with pytest.raises(grpc.RpcError) as caught:
            while time.monotonic() - started < 60:
                busy.send(cameras=[CAMERA])
                assert busy.receive().reply is not None
                time.sleep(0.05)
        assert caught.value.code() == Code.UNAUTHENTICATED
        assert time.monotonic() - started < 60
        assert idle.status() == Code.UNAUTHENTICATED
        other.send(cameras=[CAMERA])
        assert other.receive().reply is not None
        for stream in streams:
            stream.__exit__(None, None, None)


def test_a_stream_leaves_another_tenant_its_share() -> None:
    alice, bob = "alice-0123456789abcdef", "bob-0123456789abcdef"
    options = ("--batch-views", "1", "--max-streams", "8", "--stall-seconds", "600")
    with (
        worker("--device", "cpu", *options, tokens={"alice": alice, "bob": bob}) as process,
        process.channel() as channel,
    ):
        greedy, other = tenant_client(channel, alice), tenant_client(channel, bob)
        spec = SlowRender(greedy, count=500).request(8).message.spec
        small = stored_spec(other)
        streams = [RawFrames(greedy) for _ in range(4)]
        for stream in streams:
            for _ in range(20):
                stream.send(spec)
        # Frames begin on several threads, in any order.
        wait_for(process, "lumigrad_account_taken", 4, resource="open_streams")
        assert failure(RawFrames(greedy).receive).code() == Code.RESOURCE_EXHAUSTED
        wait_until(lambda: process.metric("lumigrad_queue_depth") > 10, "a queue of frames")
        waited = []
        for _ in range(5):
            started = time.monotonic()
            assert other.render(small).arrays
            waited.append(time.monotonic() - started)
        one = time.monotonic()
        assert greedy.render(spec).arrays
        # The renders wait for a running frame, not for all that are queued.
        assert min(waited) < 0.5 * (time.monotonic() - one) + 0.5
        for stream in streams:
            stream.call.cancel()


def test_thousands_of_frames_take_no_more_memory_than_a_few(process: WorkerProcess) -> None:
    client = RawClient(process.target)
    spec, running = stored_spec(client), psutil.Process(process.process.pid)

    def render(count: int) -> None:
        for number in range(count):
            frames.send(cameras=[CAMERA], latest_only=bool(number % 2))
            if number % 4 == 3:
                while frames.receive().number < frames.sent:
                    pass

    with RawFrames(client) as frames:
        frames.send(spec)
        frames.receive()
        render(1000)
        before, threads = running.memory_info().rss, running.num_threads()
        render(4000)
        assert running.memory_info().rss - before < 6 * MIB
        # A busy machine may need one more for frames that meet.
        assert running.num_threads() < threads + 8
        # The last frame ends once its reply has been sent.
        wait_until(lambda: process.metric("lumigrad_transit_bytes") == 0, "the end of the last frame")
        wait_until(lambda: process.metric("lumigrad_calls_in_progress") == 1, "the end of the last frame")
    client.close()


def test_any_order_of_requests_leaves_the_stream_alive(process: WorkerProcess) -> None:
    client, chosen = RawClient(process.target), random.Random(7)
    spec, bad = stored_spec(client), spec_of(CAMERA, scene_id="none")
    with RawFrames(client) as frames:
        expected = []
        for _ in range(300):
            fields = chosen.choice(
                [
                    {"spec": spec},
                    {"spec": bad},
                    {"cameras": [CAMERA]},
                    {"cameras": [render_pb2.RenderSpec().cameras.add()]},
                    {"render": render_pb2.RenderRequest(payload_bytes=9)},
                    {"render": render_pb2.RenderRequest(spec=spec, data=b"more")},
                    {"spec": spec, "timeout_ms": 1},
                    {"spec": spec, "lane": "none"},
                    {},
                ]
            )
            expected.append(frames.send(**fields))
        assert [frames.receive().number for _ in expected] == expected
        frames.send(spec)
        assert frames.receive().reply is not None
    client.close()
