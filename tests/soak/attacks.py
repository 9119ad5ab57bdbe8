"""Attacks on a shared worker by a tenant with a valid token: it declares, floods, holds and cancels."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from lumigrad.protos.service import RENDER_SERVICE, SCENE_SERVICE, TRAINING_SERVICE, Stub, methods
from lumigrad.protos.wire import Frame
from lumigrad.v1 import render_pb2, scene_pb2, training_pb2
from support.calls.gaussian_calls import gaussian_cloud
from support.calls.raw_calls import RawClient, opencv_camera, spec_of, sphere_cloud
from support.calls.raw_http2 import reset_rapidly
from support.calls.raw_messages import send, varint
from support.workers.tenant import tenant_client

# A Put or TrainingStart with this many empty messages is close to gRPC's limit of 4 MiB.
_EMPTY_MESSAGES = 1_900_000
_HOLD_SECONDS = 2.0
_STREAMS = 40
_RESETS = 25_000
_TIMEOUT_SECONDS = 20.0
_LARGE_BYTES = 1 << 30
_TRAIN = next(method for method in methods(TRAINING_SERVICE) if method.name == "Train")


class Attacks:
    """Runs random attacks one after another while `running` lasts; `count` is the number of each by name."""

    def __init__(self, target: str, token: str, count: Counter[str], seed: int) -> None:
        self._target = target
        self._token = token
        self._count = count
        self._random = random.Random(seed)
        self._stopped = threading.Event()
        self._attacks: tuple[Callable[[RawClient], None], ...] = (
            self._declare_payloads,
            self._send_empty_messages,
            self._open_silent_streams,
            self._hold_idle_trainings,
            self._flood_scenes,
            self._cancel_renders,
            self._leave_steps_pending,
            self._reset_streams,
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Attack until the block ends."""
        self._stopped.clear()
        thread = threading.Thread(target=self._run, name="attacks")
        thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            attack = self._random.choice(self._attacks)
            # The worker refuses, ends or loses these calls; only their effect on others counts.
            with contextlib.suppress(grpc.RpcError), self._connected() as client:
                attack(client)
            self._count[f"attack: {attack.__name__.strip('_').replace('_', ' ')}"] += 1

    @contextmanager
    def _connected(self) -> Iterator[RawClient]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self._target, options) as channel:
            yield tenant_client(channel, self._token)

    def _declare_payloads(self, client: RawClient) -> None:
        """Resumes trainings that do not exist, and declares a payload that never comes."""
        requests = [
            Frame(training_pb2.TrainRequest(start=training_pb2.TrainingStart(training_id="none"))),
            Frame(training_pb2.TrainRequest(step=training_pb2.Step(), payload_bytes=_LARGE_BYTES)),
        ]
        for _ in range(5):
            with contextlib.suppress(grpc.RpcError):
                list(self._trainings(client).Train(iter(requests), timeout=_TIMEOUT_SECONDS))

    def _send_empty_messages(self, client: RawClient) -> None:
        """Sends a training's views as bytes, since messages would take hundreds of MiB here as well."""
        views = b"\x22\x00" * _EMPTY_MESSAGES
        request = b"\x0a" + varint(len(views)) + views
        send(client.channel, _TRAIN, [request])

    def _open_silent_streams(self, client: RawClient) -> None:
        stubs = Stub(client.channel, RENDER_SERVICE).Render, self._trainings(client).Train
        calls = [stubs[i % 2](self._silence(), timeout=_TIMEOUT_SECONDS) for i in range(_STREAMS)]
        self._hold(calls)

    def _hold_idle_trainings(self, client: RawClient) -> None:
        calls = []
        for _ in range(8):
            start = training_pb2.TrainRequest(start=self._new_training(client))
            calls.append(self._trainings(client).Train(self._then_silence(Frame(start)), timeout=_TIMEOUT_SECONDS))
        self._hold(calls)

    def _flood_scenes(self, client: RawClient) -> None:
        for _ in range(100):
            client.put(sphere_cloud(1, seed=self._random.getrandbits(32)))

    def _cancel_renders(self, client: RawClient) -> None:
        request = Frame(render_pb2.RenderRequest(spec=spec_of(opencv_camera(), scene_id="0" * 32)))
        for _ in range(300):
            client.render_stub.Render(iter([request]), timeout=_TIMEOUT_SECONDS).cancel()

    def _leave_steps_pending(self, client: RawClient) -> None:
        """Leaves a training whose steps wait for gradients that never come, and half of a scene."""
        start = training_pb2.TrainRequest(start=self._new_training(client))
        steps = (
            training_pb2.TrainRequest(step=training_pb2.Step(number=i, batch=1, outputs=["color"], own_loss=True))
            for i in range(4)
        )
        training = self._trainings(client).Train(
            self._then_silence(Frame(start), *map(Frame, steps)), timeout=_TIMEOUT_SECONDS
        )
        header = scene_pb2.PutRequest(payload_bytes=_LARGE_BYTES // 2)
        header.scene.spheres.SetInParent()
        half = Stub(client.channel, SCENE_SERVICE).Put.future(self._then_silence(Frame(header)))
        self._hold([training, half])

    def _reset_streams(self, client: RawClient) -> None:
        reset_rapidly(int(self._target.rpartition(":")[2]), _RESETS, self._stopped)

    def _new_training(self, client: RawClient) -> training_pb2.TrainingStart:
        scene = client.put(gaussian_cloud(50, seed=self._random.getrandbits(31))).scene
        spec = training_pb2.TrainingSpec()
        spec.gaussians.SetInParent()
        spec.optimizer.rates["means"].initial = 1e-3
        view = training_pb2.TrainingView(camera=opencv_camera(512, 512))
        return training_pb2.TrainingStart(
            scene=scene_pb2.SceneRef(scene_id=scene.scene_id, version=scene.version), spec=spec, views=[view]
        )

    def _trainings(self, client: RawClient) -> Any:
        return Stub(client.channel, TRAINING_SERVICE)

    def _hold(self, calls: list[Any]) -> None:
        self._stopped.wait(_HOLD_SECONDS)
        for call in calls:
            call.cancel()

    def _silence(self) -> Iterator[Any]:
        yield from self._then_silence()

    def _then_silence(self, *frames: Frame[Any]) -> Iterator[Any]:
        yield from frames
        # The thread that reads this ends with the call, or at the latest when all attacks end.
        until = time.monotonic() + 2 * _HOLD_SECONDS
        while not self._stopped.is_set() and time.monotonic() < until:
            time.sleep(0.1)
