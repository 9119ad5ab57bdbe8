"""Call depth: the client's Python frames between a user's line and gRPC."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import FrameType

import grpc
import numpy as np
import pytest

import lumigrad.client
from lumigrad.client import Camera, Client, Cuboid, SceneHandle, Spheres, World
from support.workers.worker import WorkerProcess, worker_fixture

MOST = 8
CLOUD = Spheres([[0, 0, 0]], [[1, 1, 1]], [1])
CLIENT = str(Path(lumigrad.client.__file__).parent)


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The client's functions that were on the stack when this thread called gRPC, for each RPC from now on."""
    found: list[list[str]] = []
    for kind in (grpc.UnaryUnaryMultiCallable, grpc.UnaryStreamMultiCallable, grpc.StreamStreamMultiCallable):
        for made in kind.__subclasses__():

            def call(self, *arguments, _original=made.__call__, **options):
                frame: FrameType | None = sys._getframe(1)
                names = []
                while frame is not None:
                    if frame.f_code.co_filename.startswith(CLIENT):
                        names.append(frame.f_code.co_name)
                    frame = frame.f_back
                # Other threads give back what frames of earlier tests have kept.
                if names and threading.current_thread() is threading.main_thread():
                    found.append(names)
                return _original(self, *arguments, **options)

            monkeypatch.setattr(made, "__call__", call)
    return found


second = worker_fixture()


def deepest(stacks: list[list[str]]) -> list[str]:
    """The deepest stack since this function was last called."""
    assert stacks, "no RPC was seen"
    found = max(stacks, key=len)
    stacks.clear()
    return found


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("width", [32, 640])
def test_a_call_walks_few_frames(
    worker_process: WorkerProcess, second: WorkerProcess, stacks: list[list[str]], count: int, width: int
) -> None:
    camera = Camera.look_at(eye=(0, -1, -5), target=(0, 0, 0), up=(0, -1, 0), width=width, height=width)
    with Client([worker_process.target, second.target][:count], lane="stream") as client:
        for scene in (CLOUD, client.put(CLOUD)):
            stacks.clear()
            frame = client.render(scene, camera, retain=True)
            walked = deepest(stacks)
            assert walked[-1] == "render" and len(walked) <= MOST, walked
            frame.backward(np.ones_like(frame.color))
            walked = deepest(stacks)
            assert walked[-1] == "backward" and len(walked) <= MOST, walked


@pytest.fixture
def unary(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The methods of this thread's unary calls from now on."""
    found: list[bytes] = []
    for made in grpc.UnaryUnaryMultiCallable.__subclasses__():

        def call(self, *arguments, _original=made.__call__, **options):
            if threading.current_thread() is threading.main_thread():
                found.append(self._method.rpartition(b"/")[2])
            return _original(self, *arguments, **options)

        monkeypatch.setattr(made, "__call__", call)
    return found


def test_replies_of_one_message_are_those_of_unary_calls(worker_process: WorkerProcess, unary: list[bytes]) -> None:
    with Client(worker_process.target, lane="stream") as client:
        scene, world = client.put(CLOUD), client.put(World(Cuboid((1, 1, 1))))
        unary.clear()
        kinds = {"color", "alpha", "depth"}
        for width, height, is_short in ((16, 16, True), (640, 360, True), (1024, 400, False)):
            camera = Camera.opencv(20, 20, 8, 8, np.eye(3), (0, 0, 4), width, height)
            for outputs in ({"color"}, kinds, kinds | {"hits"}) if width < 640 else ({"color"},):
                frame = client.render(scene, camera, outputs=outputs)
                assert set(frame) == outputs
                assert unary == [b"Render"] * (is_short and outputs <= kinds)
                unary.clear()
            found = client.query(world, np.ones((width, 4)), outputs=("distance", "gradient", "closest"))
            assert found["closest"].shape == (width, 3)
            assert unary == [b"Query"]
            unary.clear()
        client.query(world, np.ones((5000, 4)))
        assert not unary


def test_short_gradients_are_those_of_unary_calls(client: Client, unary: list[bytes]) -> None:
    scene, world = client.put(CLOUD), client.put(World(Cuboid((1, 1, 1))))
    camera = Camera.opencv(20, 20, 8, 8, np.eye(3), (0, 0, 4), 16, 16)
    found = client.query(world, np.ones((8, 4)), retain=True)
    for frame, is_known in ((client.render(it, camera, max_depth=9.0), it is scene) for it in (scene, strange(scene))):
        for wanted in ((), ("radii",), ("positions", "cameras")):
            unary.clear()
            assert frame.backward(np.ones_like(frame.color), wanted=wanted)
            assert unary == [b"Backward"] * (is_known and "cameras" not in wanted)
    for wanted in (("spheres", "weight"), ("poses",)):
        unary.clear()
        assert set(found.backward(distance=np.ones(8), wanted=wanted)) == set(wanted)
        assert unary == [b"Backward"] * ("poses" not in wanted)


def strange(scene: SceneHandle) -> SceneHandle:
    """The same scene without the client's copy."""
    return replace(scene, scene=None)
