"""Scenes that a worker keeps: the handle by which a client names one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.mesh import Mesh, MeshReport
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.values.target import Target
from lumigrad.v1 import scene_pb2

if TYPE_CHECKING:
    # Worlds place handles of meshes.
    from lumigrad.client.values.world import World

Scene: TypeAlias = "Spheres | Gaussians | Mesh | World | Target"


_ENGINES = {"spheres": "spheres", "gaussians": "gaussians", "mesh": "meshes", "world": "meshes"}


@dataclass(frozen=True)
class SceneHandle:
    """Names one version of a stored scene.

    Attributes:
        scene_id: its name on the worker.
        version: 1 after put, one more after each update.
        content_hash: SHA-256 of the content as put; empty after an update.
        kind: "spheres", "gaussians", "mesh", "world" or "target".
        count: number of spheres, Gaussians (of all scenes in one), triangles, obstacles or pixels.
        nbytes: bytes on the worker; of a mesh with its search structure, of a world without its meshes.
        scene: the client's own copy, if it has one. With it a worker that lost the scene gets it again unnoticed.
        report: what the worker found out about a mesh; None for other kinds.
        affinity: the key that its calls are routed by, see `affinity_key`; empty: its scene_id.
        address: the worker that this handle came from.
        replicas: of several workers, how many share its calls.
        content: the fingerprints of the arrays of `scene` as the worker got them, so that nothing else is put under its
            name.
    """

    scene_id: str
    version: int
    content_hash: str
    kind: str
    count: int
    nbytes: int
    scene: Scene | None = field(default=None, repr=False, compare=False)
    report: MeshReport | None = field(default=None, repr=False, compare=False)
    affinity: str = field(default="", repr=False, compare=False)
    address: str = field(default="", repr=False, compare=False)
    replicas: int = field(default=1, repr=False, compare=False)
    content: Mapping[str, int] | None = field(default=None, repr=False, compare=False)

    @property
    def affinity_key(self) -> str:
        """The key that its calls are routed by, so that they find the worker that has it."""
        return self.affinity or self.scene_id

    @staticmethod
    def of(
        info: scene_pb2.SceneInfo,
        scene: Scene | None = None,
        address: str = "",
        *,
        affinity: str = "",
        content: Mapping[str, int] | None = None,
    ) -> SceneHandle:
        """Reads a worker's message; its calls are routed by `affinity`, or else by its content."""
        report = MeshReport.of(info.report) if info.HasField("report") else None
        where = affinity or info.content_hash
        return SceneHandle(
            info.scene_id, info.version, info.content_hash, info.kind, info.count, info.bytes, scene, report, where,
            address, content=content,
        )  # fmt: skip


def scene_facts(scene: object) -> dict[str, str | int]:
    """What a span tells of a scene: its engine, and its name if it is stored; of anything else, nothing."""
    kind = scene.kind if isinstance(scene, SceneHandle) else type(scene).__name__.lower()
    engine: dict[str, str | int] = {"engine": _ENGINES[kind]} if kind in _ENGINES else {}
    return {**engine, "scene_id": scene.scene_id} if isinstance(scene, SceneHandle) else engine
