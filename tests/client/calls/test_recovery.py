"""Lost forward states, scenes and whole workers are replaced without the caller noticing."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Camera, Client, Cuboid, LumigradError, Mesh, Obstacle, SceneNotFound, Spheres, World
from lumigrad.client.base.arrays import Array
from lumigrad.client.errors import DeadlineExceeded, ResourceExhausted, Unavailable
from lumigrad.client.transport.call import Call
from lumigrad.client.transport.retry import Attempts
from lumigrad.client.workers.attempts import RoutedAttempts
from support.fault_proxy import FaultProxy
from support.ports import reserved_port
from support.workers.slow_render import wait_until
from support.workers.worker import WorkerProcess, worker

SETTINGS = {"gamma": 0.1, "max_depth": 8.0}


def cloud() -> Spheres:
    generator = np.random.default_rng(0)
    positions, colors = generator.uniform(-1, 1, (60, 3)), generator.random((60, 3))
    return Spheres(positions, colors, 0.1 + 0.1 * generator.random(60))


def orbit(count: int) -> list[Camera]:
    return [Camera.orbit((0, 0, 0), 4.0, 40.0 * i, 20.0, width=40, height=30) for i in range(count)]


def same(left, right) -> None:
    for name, array in left.items():
        np.testing.assert_array_equal(array, right[name], err_msg=name)


@pytest.mark.parametrize("stored", [False, True])
def test_a_lost_context_is_repaired(stored):
    with worker("--device", "cpu", "--context-seconds", "0.2") as process, Client(process.target) as client:
        scene = client.put(cloud()) if stored else cloud()
        frame = client.render(scene, orbit(2), retain=True, **SETTINGS)
        upstream = np.random.default_rng(7).normal(size=frame.color.shape)
        expected = frame.backward(upstream)
        until = time.monotonic() + 60
        while client.info().contexts and time.monotonic() < until:
            time.sleep(0.05)
        assert client.info().contexts == 0
        same(frame.backward(upstream), expected)
        if stored:
            # If the scene is gone as well, it is put again first.
            client.delete(scene)
            same(frame.backward(upstream), expected)
            # If it has changed, the gradients are still those of the rendered version.
            updated = client.update(client.put(cloud()), colors=np.zeros((60, 3)))
            assert updated.version == 2
            same(frame.backward(upstream), expected)


def test_frames_survive_a_restart_of_the_worker():
    with reserved_port() as port, worker("--device", "cpu", port=port) as process:
        client = Client(process.target, retry_s=60)
        frame = client.render(client.put(cloud()), orbit(1)[0], retain=True, **SETTINGS)
        expected = frame.backward(np.ones_like(frame.color))
        process.process.kill()
        process.wait()
        with worker("--device", "cpu", port=port), client:
            same(frame.backward(np.ones_like(frame.color)), expected)


def test_workers_that_take_turns_do_not_lead_in_circles():
    with (
        worker("--device", "cpu") as first,
        worker("--device", "cpu") as second,
        FaultProxy(first.target) as proxy,
        Client(proxy.target, retry_s=60, timeout_s=100) as client,
    ):
        handle = client.put(cloud())
        expected = client.render(handle, orbit(1)[0], **SETTINGS)
        finished = []

        def render_in_turns() -> None:
            # Each worker has the scene under an id of its own.
            for turn in (second, first, second, first):
                proxy.lead_to(turn.target)
                finished.append(client.render(handle, orbit(1)[0], **SETTINGS))

        # A client that went in circles would never check the time-out, hence a daemon thread.
        caller = threading.Thread(target=render_in_turns, daemon=True)
        caller.start()
        caller.join(250)
        assert len(finished) == 4
        for frame in finished:
            same(frame, expected)
        assert client.list() == (client.put(handle.scene),)
        assert first.metric("lumigrad_scenes") == second.metric("lumigrad_scenes") == 1


def test_calls_wait_for_a_worker_that_is_being_restarted(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "lumigrad")
    with reserved_port() as port, Client(f"127.0.0.1:{port}", retry_s=150, timeout_s=200) as client:
        frames = []
        caller = threading.Thread(target=lambda: frames.append(client.render(cloud(), orbit(1)[0], **SETTINGS)))
        caller.start()
        # A call that ends its workers would be given up after fewer attempts.
        wait_until(lambda: caplog.text.count("a call is repeated in") > 3 or not caller.is_alive())
        with worker("--device", "cpu", port=port):
            caller.join(200)
    assert len(frames) == 1


def until_forgotten(process: WorkerProcess) -> None:
    until = time.monotonic() + 60
    while process.metric("lumigrad_contexts"):
        assert time.monotonic() < until, "the worker was not told"
        time.sleep(0.02)


def releasing() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "lumigrad releases"}


def test_contexts_are_given_back_without_another_call():
    world = World([Obstacle(Cuboid((1.0, 1.0, 1.0)))])
    # Clients of other tests may still be open.
    others = releasing()
    with worker("--device", "cpu") as process, Client(process.target) as client:
        client.render(cloud(), orbit(1)[0], **SETTINGS)
        assert releasing() <= others
        frame = client.render(cloud(), orbit(1)[0], retain=True, **SETTINGS)
        found = client.query(world, np.zeros((1, 4), np.float32), retain=True)
        assert process.metric("lumigrad_contexts") == 2
        assert releasing() - others
        del frame, found
        gc.collect()
        until_forgotten(process)
        until = time.monotonic() + 60
        while releasing() - others:
            assert time.monotonic() < until, "a thread goes on for nothing"
            time.sleep(0.02)
        frame = client.render(cloud(), orbit(1)[0], retain=True, **SETTINGS)
        frame.release()
        until_forgotten(process)
        with (
            client.render(cloud(), orbit(1)[0], retain=True, **SETTINGS) as frame,
            client.query(world, np.zeros((1, 4), np.float32), retain=True),
        ):
            assert process.metric("lumigrad_contexts") == 2
            expected = frame.backward(np.ones_like(frame.color))
        until_forgotten(process)
        same(frame.backward(np.ones_like(frame.color)), expected)


def test_after_close_release_is_silent(worker_process: WorkerProcess, monkeypatch: pytest.MonkeyPatch):
    # Garbage of earlier tests reports nothing here.
    gc.collect()
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    world = World([Obstacle(Cuboid((1.0, 1.0, 1.0)))])
    for targets in (worker_process.target, [worker_process.target]):
        client = Client(targets)
        frames = [client.render(cloud(), orbit(1)[0], retain=True, **SETTINGS) for _ in range(2)]
        answers = [client.query(world, np.zeros((1, 4), np.float32), retain=True) for _ in range(2)]
        client.close()
        frames[0].release()
        answers[0].release()
        with pytest.raises(LumigradError, match="this client is closed"):
            frames[1].backward(np.ones_like(frames[1].color))
        frames.clear()
        answers.clear()
        gc.collect()
    assert not unraisable


def test_contexts_of_dropped_and_released_frames_are_forgotten():
    with worker("--device", "cpu") as process, Client(process.target) as client:
        frames = [client.render(cloud(), orbit(1)[0], retain=True, **SETTINGS) for _ in range(3)]
        assert client.info().contexts == 3
        upstream = np.ones_like(frames[0].color)
        expected = frames[0].backward(upstream, release=True)
        assert client.info().contexts == 2
        # Backward still works after the release, by rendering again.
        same(frames[0].backward(upstream), expected)
        frames[1].release()
        frames[2] = None
        gc.collect()
        client.render(cloud(), orbit(1)[0], **SETTINGS)
        until = time.monotonic() + 60
        while client.info().contexts and time.monotonic() < until:
            time.sleep(0.02)
        assert client.info().contexts == 0
        same(frames[1].backward(upstream), expected)
        frames.clear()
        gc.collect()
        client.render(cloud(), orbit(1)[0], **SETTINGS)
        # One call for the released frame, one for the dropped frame, none for the frame that its backward released.
        assert process.metric("lumigrad_calls_total", method="RenderService.Release") == 2


@pytest.mark.parametrize("kind", ["put", "update", "world"])
def test_a_repair_puts_no_other_content_under_an_old_handle(client: Client, kind: str):
    colors = cloud().colors.copy()
    if kind == "world":
        vertices = np.eye(4, 3, dtype=np.float32)
        mesh = Mesh(vertices, np.array([[0, 1, 2], [0, 3, 1], [1, 3, 2], [2, 3, 0]], np.int32))
        handle = client.put(World([Obstacle(mesh)]))
        changed = vertices
    elif kind == "put":
        handle = client.put(Spheres(cloud().positions, colors, cloud().radii))
        changed = colors
    else:
        handle = client.update(client.put(cloud()), colors=colors)
        changed = colors

    def use() -> Array:
        if kind == "world":
            return client.query(handle, np.full((1, 4), 0.3, np.float32)).distance
        return client.render(handle, orbit(1)[0], **SETTINGS).color

    expected = use()
    client.delete(handle)
    np.testing.assert_array_equal(use(), expected)
    before = changed.copy()
    changed += 1.0
    # The worker still has the scene as it was put.
    np.testing.assert_array_equal(use(), expected)
    client.delete(handle)
    with pytest.raises(SceneNotFound, match="changed in place since: put the scene again"):
        use()
    changed[...] = before
    np.testing.assert_array_equal(use(), expected)


def test_an_update_does_not_vouch_for_what_it_did_not_send(client: Client):
    colors = cloud().colors.copy()
    before = colors.copy()
    first = client.put(Spheres(cloud().positions, colors, cloud().radii))
    colors += 1.0
    # The worker still has the old colours.
    handle = client.update(first, radii=cloud().radii * 1.5)
    expected = client.render(handle, orbit(1)[0], **SETTINGS).color
    client.delete(handle)
    with pytest.raises(SceneNotFound, match="changed in place since: put the scene again"):
        client.render(handle, orbit(1)[0], **SETTINGS)
    colors[...] = before
    np.testing.assert_array_equal(client.render(handle, orbit(1)[0], **SETTINGS).color, expected)


def test_a_refusal_that_comes_after_the_time_out_is_what_is_raised() -> None:
    """The worker's reason says more than that the call was late."""
    attempts = Attempts(Call(0.01), retry_s=10.0)
    refusal = ResourceExhausted("the queue is full")
    refusal.retry_after_s = 1.0
    with pytest.raises(ResourceExhausted, match="the queue is full"), attempts:
        time.sleep(0.02)
        raise refusal


@pytest.mark.parametrize("kind", ["routed", "one worker"])
@pytest.mark.parametrize("refused", [0.8, 0.1])
def test_a_call_that_is_late_because_of_refusals_says_why(kind: str, refused: float) -> None:
    """The error names what took most of the time: the refusals, or the attempt that was cut off."""
    with Client("localhost:1") as client:
        call = Call(20.0)
        attempts: Any = (
            RoutedAttempts(client._workers, None, call) if kind == "routed" else Attempts(call, retry_s=10.0)
        )
        refusal = ResourceExhausted("the queue is full")
        refusal.retry_after_s = 0.01
        with attempts:
            # Refusals have taken that part of the time-out.
            call.end -= refused * call.timeout_s
            raise refusal
        with pytest.raises(ResourceExhausted if refused > 0.5 else DeadlineExceeded), attempts:
            raise DeadlineExceeded("no answer")


def test_repetitions_are_logged(worker_process: WorkerProcess, caplog: pytest.LogCaptureFixture) -> None:
    def logged(text: str) -> list[str]:
        return [record.getMessage() for record in caplog.records if text in record.getMessage()]

    with caplog.at_level(logging.INFO, "lumigrad"):
        with Client("localhost:1", retry_s=0.5) as nobody, pytest.raises(Unavailable):
            nobody.info()
        assert logged("a call is repeated in 0.") and "localhost:1" in caplog.text
        caplog.clear()
        # A client that has already learnt that nobody is there does not try.
        for number in range(100):
            with Client(["localhost:1", worker_process.target]) as several:
                several.put(Spheres(np.full((1, 3), 0.01 * number), np.ones((1, 3)), np.ones(1)))
            if logged("a call goes to another worker: no worker at localhost:1"):
                break
        assert logged("a call goes to another worker: no worker at localhost:1")
        caplog.clear()
        with Client(worker_process.target) as client:
            handle = client.put(cloud())
            frame = client.render(handle, orbit(1), retain=True, **SETTINGS)
            client.delete(handle)
            assert not logged("a call") and not logged("a scene")
            client.render(handle, orbit(1), **SETTINGS)
            assert len(logged("a scene is stored again")) == 1
            frame.backward(np.ones_like(frame.color))
    assert {record.name for record in caplog.records} == {"lumigrad"}
