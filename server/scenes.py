"""The scenes a worker keeps, named by content and versioned."""

from __future__ import annotations

import dataclasses
import threading
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from lumigrad.server.errors import SceneNotFoundError, VersionMismatchError
from lumigrad.server.metrics import Metrics
from lumigrad.server.shelf import Shelf
from lumigrad.v1 import scene_pb2

Tensors = Mapping[str, torch.Tensor]

_ID_LENGTH = 32
_MAX_RETIRED = 1 << 16


def bytes_of(tensors: Tensors) -> int:
    """The size of a scene's tensors."""
    return sum(tensor.nbytes for tensor in tensors.values())


@dataclass(frozen=True)
class StoredScene:
    """One version of a scene. Updates make another, so whoever holds this one keeps its tensors."""

    scene_id: str
    version: int
    # Empty once an update has changed the content.
    content_hash: str
    kind: str
    tensors: Tensors
    count: int
    # The upload whose buffer each tensor lives in.
    uploads: Mapping[str, object]

    def info(self) -> scene_pb2.SceneInfo:
        """What callers are told of it."""
        return scene_pb2.SceneInfo(
            scene_id=self.scene_id,
            version=self.version,
            content_hash=self.content_hash,
            kind=self.kind,
            bytes=bytes_of(self.tensors),
            count=self.count,
        )


class SceneStore:
    """All scenes of a worker, within a byte budget."""

    def __init__(self, limit_bytes: int, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._shelf: Shelf[StoredScene] = Shelf(limit_bytes, self._dropped)
        self._id_of_hash: dict[str, str] = {}
        # Names that once stood for updated content: given out again, they would turn versions back.
        self._retired: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._shelf)

    @property
    def bytes(self) -> int:
        """The size of all scenes."""
        return self._shelf.bytes

    def add(self, content_hash: str, kind: str, tensors: Tensors, count: int) -> tuple[StoredScene, bool]:
        """Store a scene, unless its content is here; tells which of the two happened (True: it was here)."""
        with self._lock:
            present = self._by_hash(content_hash)
            if present is not None:
                return present, True
            uploads = dict.fromkeys(tensors, object())
            scene = StoredScene(self._free_id(content_hash), 1, content_hash, kind, tensors, count, uploads)
            self._id_of_hash[content_hash] = scene.scene_id
            self._shelf.put(scene.scene_id, scene, bytes_of(tensors))
            return scene, False

    def find(self, scene_id: str, version: int = 0) -> StoredScene:
        """The scene; `version` 0 means whichever is current."""
        with self._lock:
            return self._find(scene_id, version)

    def find_content(self, content_hash: str) -> StoredScene | None:
        """The scene with this content, if it is here."""
        with self._lock:
            return self._by_hash(content_hash)

    def update(self, scene_id: str, expected_version: int, tensors: Tensors) -> StoredScene:
        """Replace tensors by name, if the scene still has the version expected."""
        with self._lock:
            old = self._find(scene_id, expected_version)
            new = _updated(old, tensors)
            self._forget_hash(old)
            self._retire(scene_id)
            self._shelf.put(scene_id, new, bytes_of(new.tensors))
            return new

    def delete(self, scene_id: str) -> None:
        """Forget a scene."""
        with self._lock:
            scene = self._shelf.pop(scene_id)
            if scene is None:
                raise SceneNotFoundError(scene_id)
            self._forget_hash(scene)

    def all(self) -> list[StoredScene]:
        """Every scene."""
        with self._lock:
            return list(self._shelf.values())

    def _find(self, scene_id: str, version: int) -> StoredScene:
        scene = self._shelf.get(scene_id)
        if scene is None:
            raise SceneNotFoundError(scene_id)
        if version not in (0, scene.version):
            raise VersionMismatchError(scene_id, version, scene.version)
        return scene

    def _by_hash(self, content_hash: str) -> StoredScene | None:
        scene_id = self._id_of_hash.get(content_hash)
        return None if scene_id is None else self._shelf.get(scene_id)

    def _free_id(self, content_hash: str) -> str:
        scene_id = content_hash[:_ID_LENGTH]
        if scene_id in self._shelf or scene_id in self._retired:
            return f"{scene_id}-{uuid.uuid4().hex[:8]}"
        return scene_id

    def _retire(self, scene_id: str) -> None:
        self._retired[scene_id] = None
        self._retired.move_to_end(scene_id)
        if len(self._retired) > _MAX_RETIRED:
            self._retired.popitem(last=False)

    def _forget_hash(self, scene: StoredScene) -> None:
        self._id_of_hash.pop(scene.content_hash, None)

    def _dropped(self, _: str, scene: StoredScene, reason: str) -> None:
        self._forget_hash(scene)
        self._metrics.evictions.labels("scenes", reason).inc()


def _updated(old: StoredScene, tensors: Tensors) -> StoredScene:
    """The next version. A tensor that shares an upload with a replaced one is copied: it would keep both alive."""
    merged, uploads = dict(old.tensors), dict(old.uploads)
    replaced = [uploads.pop(name, None) for name in tensors]
    for name, upload in uploads.items():
        if upload in replaced and merged[name].device.type == "cpu":
            merged[name] = merged[name].clone()
            uploads[name] = object()
    merged.update(tensors)
    uploads.update(dict.fromkeys(tensors, object()))
    return dataclasses.replace(old, version=old.version + 1, content_hash="", tensors=merged, uploads=uploads)
