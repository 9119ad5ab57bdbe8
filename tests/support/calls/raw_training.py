"""Trainings with protobuf messages, one request at a time."""

from __future__ import annotations

import itertools
import queue
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from lumigrad.protos.service import TRAINING_SERVICE, Stub
from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import camera_pb2, gaussians_pb2, scene_pb2, target_pb2, training_pb2
from support.calls.gaussian_calls import gaussian_cloud
from support.calls.raw_calls import SECONDS, Arrays, RawClient, opencv_camera

RATES = {"means": 2e-3, "quats": 1e-3, "scales": 5e-3, "opacities": 2e-2, "sh0": 5e-3, "sh_rest": 2e-4}
_seeds = itertools.count(1)


class RawTraining:
    """One call of Train, which sends requests and reads replies separately."""

    # All instances, so that tests can close those that are still open.
    all: ClassVar[weakref.WeakSet[RawTraining]] = weakref.WeakSet()

    def __init__(self, client: RawClient, start: training_pb2.TrainingStart | None = None, **options: Any) -> None:
        """Begin the call, and send the start unless it is None."""
        self._requests: queue.SimpleQueue[training_pb2.TrainRequest | None] = queue.SimpleQueue()
        self.call = Stub(client.channel, TRAINING_SERVICE).Train(self._frames(), **{"timeout": SECONDS, **options})
        if start is not None:
            self.send(start=start)
        self.all.add(self)

    def send(self, **kind: Any) -> None:
        """Send a request with one field, given by name."""
        self._requests.put(training_pb2.TrainRequest(**kind))

    def reply(self) -> training_pb2.TrainReply:
        """The next reply's message."""
        return next(frame.message for frame in self.call if frame.message is not None)

    def started(self) -> training_pb2.TrainingStarted:
        """The first reply's message."""
        return self.reply().started

    def step(self, number: int, views: Sequence[int] = (0,)) -> training_pb2.StepDone:
        """Run a step with the training's own loss, and wait for it."""
        self.send(step=training_pb2.Step(number=number, views=views))
        return self.reply().done

    def publish(self) -> training_pb2.Published:
        """Publish, and wait for it."""
        self.send(publish=training_pb2.Publish())
        return self.reply().published

    def finish(self) -> None:
        """Finish, wait for it, and end the call."""
        self.send(finish=training_pb2.Finish())
        assert self.reply().HasField("finished")
        self.close()

    def close(self) -> None:
        """End the call; the training stays."""
        self._requests.put(None)
        self.call.cancel()

    def _frames(self) -> Iterator[Frame[training_pb2.TrainRequest]]:
        while (request := self._requests.get()) is not None:
            yield from frames_of(request, PayloadWriter())


def cameras(count: int = 3) -> list[camera_pb2.Camera]:
    """Cameras side by side."""
    return [opencv_camera(40, 32, x=0.2 * index) for index in range(count)]


def put_target_image(client: RawClient, seed: int = 0, size: tuple[int, int] = (32, 40)) -> str:
    """Store a picture, by default for one of `cameras`; returns its content hash."""
    payload = PayloadWriter()
    picture = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    scene = scene_pb2.Scene(target=target_pb2.Target(color=payload.add(picture)))
    reply = client.scene_stub.Put(frames_of(scene_pb2.PutRequest(scene=scene), payload), timeout=SECONDS)
    return str(reply.scene.content_hash)


def start_of(client: RawClient, cloud: Arrays | None = None, **fields: Any) -> training_pb2.TrainingStart:
    """The start of a training with a built-in loss; without `cloud` its scene is new Gaussians.

    `fields` are fields of the spec.
    """
    stored = client.put(gaussian_cloud(seed=next(_seeds)) if cloud is None else cloud).scene
    spec = training_pb2.TrainingSpec(
        gaussians=gaussians_pb2.GaussianSettings(),
        optimizer=training_pb2.Optimizer(rates={name: training_pb2.Rate(initial=r) for name, r in RATES.items()}),
        loss=training_pb2.Loss(l1=0.8, dssim=0.2),
        **fields,
    )
    views = [
        training_pb2.TrainingView(camera=camera, target=put_target_image(client, index))
        for index, camera in enumerate(cameras())
    ]
    reference = scene_pb2.SceneRef(scene_id=stored.scene_id, version=stored.version)
    return training_pb2.TrainingStart(scene=reference, spec=spec, views=views)


def taken_up(started: training_pb2.TrainingStarted, **fields: Any) -> training_pb2.TrainingStart:
    """The start that resumes a training."""
    return training_pb2.TrainingStart(training_id=started.training_id, lease=started.lease, **fields)
