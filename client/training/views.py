"""The views of a training on their way to the worker: cameras, and targets that travel once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from lumigrad.client.arguments import instance
from lumigrad.client.camera import Camera
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.messages import camera_message
from lumigrad.client.retry import Deadline
from lumigrad.client.scene import SceneHandle
from lumigrad.client.scene_store import SceneStore
from lumigrad.client.target import Target
from lumigrad.v1 import training_pb2

# Uploads at a time: a round trip each, and hashes that are computed meanwhile.
_UPLOADS = 4


class Views:
    """Cameras and what they should see."""

    def __init__(self, cameras: Sequence[Camera], targets: Sequence[Any] | None) -> None:
        """`targets`: one for each camera, a Target, a handle of a stored one, or an image; None: there are none."""
        self.cameras = tuple(cameras)
        for camera in self.cameras:
            instance("cameras", camera, (Camera,), "make one with Camera.look_at, orbit, opencv, pulsar or inria")
        if not self.cameras:
            raise InvalidArgument.of("cameras", "expected at least one camera, got none")
        self._targets = None if targets is None else [_target(target) for target in targets]
        if self._targets is not None and len(self._targets) != len(self.cameras):
            text = f"expected {len(self.cameras)}, one for each camera, got {len(self._targets)}"
            raise InvalidArgument.of("targets", text)
        self._hashes: list[str] = [""] * len(self.cameras)

    @property
    def has_targets(self) -> bool:
        """Whether the worker can compute a loss."""
        return self._targets is not None

    def put(self, store: SceneStore, deadline: Deadline) -> None:
        """Stores the targets that the worker does not have."""
        if self._targets is None:
            return

        def put(target: Target | SceneHandle) -> str:
            return (store.put(target, deadline) if isinstance(target, Target) else target).content_hash

        # One each: a context cannot be entered by two threads at a time.
        contexts = [copy_context() for _ in self._targets]
        with ThreadPoolExecutor(_UPLOADS, "lumigrad upload") as pool:
            self._hashes = list(pool.map(lambda context, target: context.run(put, target), contexts, self._targets))

    def messages(self) -> list[training_pb2.TrainingView]:
        """The contract's; the targets must have been put."""
        return [
            training_pb2.TrainingView(camera=camera_message(camera), target=digest)
            for camera, digest in zip(self.cameras, self._hashes, strict=True)
        ]


def _target(value: Any) -> Target | SceneHandle:
    if isinstance(value, SceneHandle):
        if value.kind != "target" or not value.content_hash:
            raise InvalidArgument.of("targets", f"expected handles of targets, got one of a {value.kind}")
        return value
    return value if isinstance(value, Target) else Target(value)
