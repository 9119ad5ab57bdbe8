"""Scenes that a worker keeps: the handle by which a client names one."""

from __future__ import annotations

from dataclasses import dataclass, field

from lumigrad.client.gaussians import Gaussians
from lumigrad.client.spheres import Spheres
from lumigrad.v1 import scene_pb2


@dataclass(frozen=True)
class SceneHandle:
    """Names one version of a stored scene.

    Attributes:
        scene_id: its name on the worker.
        version: 1 after put, one more after each update.
        content_hash: SHA-256 of the content as put; empty after an update.
        kind: "spheres" or "gaussians".
        count: number of primitives, of all scenes in one.
        nbytes: bytes on the worker.
        scene: the client's own copy, if it has one. With it a worker that lost the scene gets it again unnoticed.
    """

    scene_id: str
    version: int
    content_hash: str
    kind: str
    count: int
    nbytes: int
    scene: Spheres | Gaussians | None = field(default=None, repr=False, compare=False)

    @staticmethod
    def of(info: scene_pb2.SceneInfo, scene: Spheres | Gaussians | None = None) -> SceneHandle:
        """Reads the worker's message."""
        return SceneHandle(info.scene_id, info.version, info.content_hash, info.kind, info.count, info.bytes, scene)
