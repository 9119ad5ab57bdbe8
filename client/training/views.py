"""The views of a training on their way to the worker: cameras, and targets that travel once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from lumigrad.client.base.arguments import instance
from lumigrad.client.errors import InvalidArgument, SceneNotFound
from lumigrad.client.transport.call import Call
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.target import Target
from lumigrad.client.wire.scenes import camera_message
from lumigrad.client.workers.scene_store import SceneStore
from lumigrad.v1 import training_pb2

T = TypeVar("T")
U = TypeVar("U")

# At a time: a round trip each, and hashes that are computed meanwhile.
_TRANSFERS = 4


class Targets:
    """What views should show: copies, for a worker that has lost them."""

    def __init__(self, targets: Sequence[Any]) -> None:
        """Of each view a Target, a handle of a stored one, or an image."""
        self._targets = [_target(target) for target in targets]

    def __len__(self) -> int:
        return len(self._targets)

    @staticmethod
    def downloaded(hashes: Sequence[str], store: SceneStore, call: Call) -> Targets:
        """Those that the worker has, by the hashes of their contents."""

        def get(digest: str) -> list[Any]:
            try:
                return [store.get_content(digest, call).scene]
            except SceneNotFound:
                # The training has a hold of its own on it.
                return []

        return Targets([target for found in _each(get, dict.fromkeys(hashes)) for target in found])

    def put(self, store: SceneStore, call: Call) -> list[str]:
        """Stores those that the worker does not have; returns the hashes of their contents."""

        def put(target: Target | SceneHandle) -> str:
            return (store.put(target, call) if isinstance(target, Target) else target).content_hash

        return _each(put, self._targets)


class Views:
    """Cameras and what they should see."""

    def __init__(self, cameras: Sequence[Camera], targets: Sequence[Any] | None) -> None:
        """`targets`: one for each camera, a Target, a handle of a stored one, or an image; None: there are none."""
        self.cameras = tuple(cameras)
        for camera in self.cameras:
            instance("cameras", camera, (Camera,), "make one with Camera.look_at, orbit, opencv, pulsar or inria")
        if not self.cameras:
            raise InvalidArgument.of("cameras", "expected at least one camera, got none")
        self._targets = None if targets is None else Targets(targets)
        if self._targets is not None and len(self._targets) != len(self.cameras):
            text = f"expected {len(self.cameras)}, one for each camera, got {len(self._targets)}"
            raise InvalidArgument.of("targets", text)
        self._hashes: list[str] = [""] * len(self.cameras)

    @property
    def has_targets(self) -> bool:
        """Whether the worker can compute a loss."""
        return self._targets is not None

    def put(self, store: SceneStore, call: Call) -> None:
        """Stores the targets that the worker does not have."""
        if self._targets is not None:
            self._hashes = self._targets.put(store, call)

    def messages(self) -> list[training_pb2.TrainingView]:
        """The contract's; the targets must have been put."""
        return [
            training_pb2.TrainingView(camera=camera_message(camera), target=digest)
            for camera, digest in zip(self.cameras, self._hashes, strict=True)
        ]


def _each(work: Callable[[T], U], items: Iterable[T]) -> list[U]:
    """The results of some work on each item, several at a time."""
    with ThreadPoolExecutor(_TRANSFERS, "lumigrad targets") as pool:
        return list(pool.map(work, items))


def _target(value: Any) -> Target | SceneHandle:
    if isinstance(value, SceneHandle):
        if value.kind != "target" or not value.content_hash:
            raise InvalidArgument.of("targets", f"expected handles of targets, got one of a {value.kind}")
        return value
    return value if isinstance(value, Target) else Target(value)
