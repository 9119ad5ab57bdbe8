"""Streams of frames over both lanes: their results, and the losses that the client repairs unnoticed."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lumigrad.client import (
    Camera,
    Client,
    DeadlineExceeded,
    Gaussians,
    InvalidArgument,
    LumigradError,
    SceneHandle,
    SceneNotFound,
    Spheres,
    VersionMismatch,
)
from lumigrad.client.rendering.frame_exchange import FrameExchange
from lumigrad.client.transport.call import Cancellation
from support.fault_proxy import FaultProxy
from support.files.documents import ROOT, run_code_of
from support.gaussians.clouds import post
from support.workers.client_load import wait_for_lane
from support.workers.slow_scene import CAMERAS, slow_spheres
from support.workers.slow_scene import SETTINGS as SETTINGS_OF_SLOW
from support.workers.worker import WorkerProcess, worker

SETTINGS: dict[str, Any] = {"max_depth": 8.0, "gamma": 0.1}

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"image_format": "png"},
    {"outputs": ("color", "hits"), "image_format": {"color": "uint8"}},
)


def cloud(seed: int = 0) -> Spheres:
    generator = np.random.default_rng(seed)
    positions, colors = generator.uniform(-1, 1, (60, 3)), generator.random((60, 3))
    return Spheres(positions, colors, 0.1 + 0.1 * generator.random(60))


def orbit(count: int, width: int = 40, height: int = 30) -> list[Camera]:
    return [Camera.orbit((0, 0, 0), 4.0, 40.0 * i, 20.0, width=width, height=height) for i in range(count)]


@pytest.fixture
def handle(client: Client) -> SceneHandle:
    return client.put(cloud())


@pytest.mark.parametrize("lane", ["stream", "shared"])
@pytest.mark.parametrize("in_flight", [1, 4])
def test_frames_are_those_of_render(worker_process: WorkerProcess, lane: Any, in_flight: int) -> None:
    cameras = [*orbit(3), *orbit(2, 640, 480), orbit(2), *orbit(3)]
    with Client(worker_process.target, lane=lane) as client:
        wait_for_lane(client, lane)
        handle = client.put(cloud())
        for options in OPTIONS:
            with client.stream(handle, in_flight=in_flight, **SETTINGS, **options) as stream:
                frames = list(stream.frames(cameras))
            assert stream.pending == 0
            for frame, camera in zip(frames, cameras, strict=True):
                expected = client.render(handle, camera, **SETTINGS, **options)
                assert frame.encoded == expected.encoded
                assert dict(frame).keys() == dict(expected).keys()
                for name, array in frame.items():
                    np.testing.assert_array_equal(array, expected[name])
                assert frame.request == expected.request
                assert frame.timings.worker_ms > 0 and frame.timings.round_trip_ms > 0
        assert client.lane == lane


def test_settings_that_depend_on_the_camera_are_those_of_each_frame(client: Client) -> None:
    cameras = [Camera.orbit((0, 0, 0), distance, 10.0, 20.0, width=40, height=30) for distance in (2.0, 4.0, 8.0)]
    handle = client.put(cloud())
    with client.stream(handle) as stream:
        for frame, camera in zip(stream.frames(cameras), cameras, strict=True):
            expected = client.render(handle, camera)
            assert frame.request.settings == expected.request.settings
            np.testing.assert_array_equal(frame.color, expected.color)


def test_the_code_of_the_documentation_runs(worker_process: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMIGRAD_TARGET", worker_process.target)
    names = run_code_of(ROOT / "docs" / "streams.md")
    assert names["frame"].color.shape == (72, 96, 3)
    names["client"].close()


def test_later_requests_carry_cameras_alone(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    original = FrameExchange._fill

    def spy(self: FrameExchange, message: Any, *rest: Any) -> None:
        original(self, message, *rest)
        sent.append(message.ByteSize())

    monkeypatch.setattr(FrameExchange, "_fill", spy)
    with client.stream(client.put(post())) as stream:
        for _ in stream.frames(orbit(5)):
            pass
    assert len(set(sent[1:])) == 1
    assert sent[1] < 170 < sent[0]


def test_a_scene_without_a_handle_is_stored_for_as_long_as_the_stream_is_open(client: Client) -> None:
    scene = cloud(seed=77)
    before = {handle.scene_id for handle in client.list()}
    with client.stream(scene, **SETTINGS) as stream:
        (frame,) = stream.frames(orbit(1))
        assert {handle.scene_id for handle in client.list()} > before
    np.testing.assert_array_equal(frame.color, client.render(scene, orbit(1)[0], **SETTINGS).color)
    assert {handle.scene_id for handle in client.list()} == before


def test_states_may_be_kept(client: Client, handle: SceneHandle) -> None:
    with client.stream(handle, retain=True, **SETTINGS) as stream:
        frames = list(stream.frames(orbit(2)))
    for frame, camera in zip(frames, orbit(2), strict=True):
        expected = client.render(handle, camera, **SETTINGS).backward(np.ones_like(frame.color))
        gradients = frame.backward(np.ones_like(frame.color), release=True)
        np.testing.assert_array_equal(gradients.positions, expected.positions)


def test_an_error_comes_in_its_turn_and_the_stream_goes_on(client: Client, handle: SceneHandle) -> None:
    good = orbit(2)
    huge = Camera.orbit((0, 0, 0), 4.0, 0.0, 20.0, width=9000, height=9000)
    with client.stream(handle, **SETTINGS) as stream:
        for camera in (good[0], huge, good[1]):
            stream.send(camera)
        first = stream.receive()
        with pytest.raises(InvalidArgument, match="cameras"):
            stream.receive()
        last = stream.receive()
    assert (first.request.cameras, last.request.cameras) == ((good[0],), (good[1],))


def test_wrong_use_is_refused(client: Client, handle: SceneHandle) -> None:
    for options in ({"in_flight": 0}, {"in_flight": 5}, {"latest_only": "yes"}, {"nonsense": 1}, {"spread": True}):
        with pytest.raises(InvalidArgument, match=next(iter(options))):
            client.stream(handle, **options)
    with pytest.raises(InvalidArgument, match="scene"):
        client.stream("scene")  # type: ignore[arg-type]
    with client.stream(handle, in_flight=2, **SETTINGS) as stream:
        with pytest.raises(InvalidArgument, match="no frame is pending"):
            stream.receive()
        with pytest.raises(InvalidArgument, match="camera"):
            stream.send("camera")  # type: ignore[arg-type]
        stream.send(orbit(1)[0])
        stream.send(orbit(1)[0])
        with pytest.raises(InvalidArgument, match="at most in_flight = 2 pending frames"):
            stream.send(orbit(1)[0])
        assert stream.pending == 2
    with pytest.raises(LumigradError, match="closed"):
        stream.send(orbit(1)[0])
    stream.close()


def test_only_the_latest_camera_counts(client: Client, handle: SceneHandle) -> None:
    cameras = orbit(300, 320, 240)
    with client.stream(handle, latest_only=True, **SETTINGS) as stream:
        for camera in cameras:
            stream.send(camera)
        frames = []
        while stream.pending:
            frames.append(stream.receive())
    shown = [cameras.index(frame.request.cameras[0]) for frame in frames]
    assert shown == sorted(shown) and shown[-1] == 299 and len(shown) < 300
    np.testing.assert_array_equal(frames[-1].color, client.render(handle, cameras[-1], **SETTINGS).color)


def test_one_thread_may_send_while_another_receives(client: Client, handle: SceneHandle) -> None:
    cameras, room = orbit(8) * 20, threading.Semaphore(4)
    with client.stream(handle, **SETTINGS) as stream:

        def send() -> None:
            for camera in cameras:
                room.acquire()
                stream.send(camera)

        sender = threading.Thread(target=send)
        sender.start()
        for camera in cameras:
            while not stream.pending:
                threading.Event().wait(0.001)
            assert stream.receive().request.cameras == (camera,)
            room.release()
        sender.join()


def test_a_scene_that_the_worker_lost_is_stored_again(client: Client) -> None:
    handle = client.put(cloud(seed=5))
    cameras = orbit(12)
    with client.stream(handle, **SETTINGS) as stream:
        frames = stream.frames(cameras)
        first = [next(frames) for _ in range(3)]
        client.delete(handle)
        rest = list(frames)
    assert [frame.request.cameras[0] for frame in (*first, *rest)] == cameras
    np.testing.assert_array_equal(rest[-1].color, client.render(cloud(seed=5), cameras[-1], **SETTINGS).color)


def test_a_scene_without_a_copy_is_missed_and_an_old_version_told(client: Client) -> None:
    found = client.get(client.put(cloud(seed=6)).scene_id)
    updated = client.update(found, radii=np.full(60, 0.2, np.float32))
    with client.stream(found, **SETTINGS) as stream:
        stream.send(orbit(1)[0])
        with pytest.raises(VersionMismatch):
            stream.receive()
    with client.stream(updated, **SETTINGS) as stream:
        (frame,) = stream.frames(orbit(1))
        client.delete(updated)
        stream.send(orbit(1)[0])
        with pytest.raises(SceneNotFound):
            stream.receive()
    assert frame.color.shape == (30, 40, 3)


@pytest.mark.parametrize("lane", ["stream", "shared"])
def test_frames_that_a_broken_connection_lost_are_asked_for_anew(worker_process: WorkerProcess, lane: Any) -> None:
    cameras = orbit(40, 200, 150)
    with FaultProxy(worker_process.target) as proxy, Client(proxy.target, lane=lane, retry_s=60) as client:
        handle = client.put(cloud())
        expected = [client.render(handle, camera, **SETTINGS).color for camera in cameras[:9]]
        with client.stream(handle, **SETTINGS) as stream:
            for number, (frame, camera) in enumerate(zip(stream.frames(cameras), cameras, strict=True)):
                assert frame.request.cameras == (camera,)
                np.testing.assert_array_equal(frame.color, expected[number % 9])
                if number % 10 == 5:
                    proxy.end_all()


def test_waiting_can_be_cancelled_and_the_stream_goes_on(client: Client) -> None:
    camera = CAMERAS[0]
    with client.stream(client.put(slow_spheres()), max_depth=100.0, **SETTINGS_OF_SLOW) as stream:
        cancellation = Cancellation()
        stream.send(camera)
        cancellation.cancel()
        with pytest.raises(LumigradError, match="cancelled"):
            stream._cancelled_by(cancellation).receive()
        assert stream.pending == 1
        assert stream.receive().request.cameras == (camera,)


def test_a_worker_that_hangs_makes_frames_late(worker_process: WorkerProcess) -> None:
    with FaultProxy(worker_process.target) as proxy, Client(proxy.target) as client:
        handle = client.put(cloud())
        with client.stream(handle, timeout_s=4.0, **SETTINGS) as stream:

            def receive_frame() -> None:
                # Some frames are late on a busy machine in any case.
                for _ in range(40):
                    with contextlib.suppress(DeadlineExceeded):
                        stream.send(orbit(1)[0])
                        assert stream.receive().color.shape == (30, 40, 3)
                        return
                pytest.fail("all frames were late")

            receive_frame()
            receive_frame()
            proxy.down.frozen = True
            stream.send(orbit(1)[0])
            with pytest.raises(LumigradError, match="time-out of 4 s"):
                stream.receive()
            proxy.down.frozen = False
            receive_frame()
            receive_frame()


def test_endless_cameras_are_drawn_as_they_are_needed(client: Client, handle: SceneHandle) -> None:
    drawn = itertools.count()

    def cameras() -> Iterator[Camera]:
        for camera in itertools.cycle(orbit(3)):
            next(drawn)
            yield camera

    with client.stream(handle, in_flight=3, **SETTINGS) as stream:
        for _ in itertools.islice(stream.frames(cameras()), 10):
            pass
    assert next(drawn) <= 14


def test_a_stream_ends_with_its_client(worker_process: WorkerProcess) -> None:
    with Client(worker_process.target) as client:
        stream = client.stream(client.put(cloud()), **SETTINGS)
        stream.send(orbit(1)[0])
        stream.receive()
    with pytest.raises(LumigradError, match="closed"):
        stream.send(orbit(1)[0])
        stream.receive()
    stream.close()


def test_gaussians_of_one_stream_may_be_seen_by_cameras_of_several_kinds(client: Client) -> None:
    scene: Gaussians = post()
    cameras = [orbit(1)[0], *orbit(2, 64, 64)]
    with client.stream(scene, outputs=("color", "depth")) as stream:
        for frame, camera in zip(stream.frames(cameras), cameras, strict=True):
            np.testing.assert_array_equal(frame.depth, client.render(scene, camera, outputs=("depth",)).depth)


def test_a_stream_ends_with_a_worker_that_is_not_replaced() -> None:
    with (
        worker("--device", "cpu") as process,
        Client(process.target, retry_s=0.5) as client,
        client.stream(client.put(cloud()), **SETTINGS) as stream,
    ):
        stream.send(orbit(1)[0])
        stream.receive()
        process.process.kill()
        process.wait()
        stream.send(orbit(1)[0])
        with pytest.raises(LumigradError, match="no worker at"):
            stream.receive()
