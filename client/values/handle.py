"""Handles, which refer to stored scenes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from lumigrad.client.errors import InvalidArgument
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.mesh import Mesh, MeshReport
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.values.target_image import TargetImage
from lumigrad.v1 import scene_pb2

if TYPE_CHECKING:
    # Imported for the type only: worlds contain handles of meshes, and levels are read from files.
    from lumigrad.client.formats.levels import GaussianLevels
    from lumigrad.client.values.world import World

Scene: TypeAlias = "Spheres | Gaussians | Mesh | World | TargetImage | GaussianLevels"

# Characters of a name in errors.
_SHOWN = 200
_ENGINES = {
    **{"spheres": "spheres", "gaussians": "gaussians", "mesh": "meshes", "world": "meshes"},
    **dict.fromkeys(("levels", "gaussianlevels"), "gaussians"),
}


@dataclass(frozen=True)
class SceneHandle:
    """Refers to one version of a stored scene.

    Attributes:
        scene_id: the scene's id on the worker.
        version: 1 after put; each update increments it.
        content_hash: SHA-256 of the content as put; empty after an update.
        kind: "spheres", "gaussians", "mesh", "world", "levels" (Gaussians with levels of detail) or "target" (a target
            image), as in the protocol.
        count: number of spheres, Gaussians (of all scenes together; with levels of detail: in the finest level),
            triangles, obstacles or pixels.
        nbytes: memory on the worker, bytes; for a mesh including its search structure, for a world without its meshes,
            for levels of detail without their pages.
        scene: the client's copy of the scene, or None; used to store the scene again if a worker has lost it.
        report: the worker's report on a mesh; None for other kinds.
        affinity: the routing key of calls for this scene, see `affinity_key`; empty: `scene_id`.
        address: the address of the worker that returned this handle.
        replicas: the number of workers that share the calls for this scene.
        content: checksums of the arrays of `scene` when it was stored; a scene whose arrays have changed since is not
            stored again for this handle.
        name: the name of a scene that the worker reads from files; otherwise empty. Without a `scene_id` the handle
            means the current content of the files.
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
    name: str = ""

    @cached_property
    def affinity_key(self) -> str:
        """The routing key of calls for this scene; equal keys go to the same worker."""
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
        """Creates a handle from a worker's message; its calls are routed by `affinity`, by default the content hash."""
        report = MeshReport.of(info.report) if info.HasField("report") else None
        where = affinity or info.content_hash or info.name
        return SceneHandle(
            info.scene_id, info.version, info.content_hash, info.kind, info.count, info.bytes, scene, report, where,
            address, content=content, name=info.name,
        )  # fmt: skip


def check_is_sent(field: str, scene: object) -> None:
    """Raises InvalidArgument for a handle of a scene that the worker reads from files."""
    if isinstance(scene, SceneHandle) and not scene.scene_id:
        text = f"expected a scene that was sent, got {scene.name[:_SHOWN]}, which the worker reads itself"
        raise InvalidArgument.of(field, f"{text}; put what Gaussians.load returns")


def kind_in_words(kind: str) -> str:
    """Returns a kind of scene in the words of errors, with an article; the protocol's "target" is a target image."""
    return {"target": "a target image", "mesh": "a mesh", "world": "a world", "levels": "levels of Gaussians"}.get(
        kind, kind
    )


def scene_facts(scene: object) -> dict[str, str | int]:
    """Returns the attributes of a trace span for a scene: its engine, and its id if stored; empty for other objects."""
    kind = scene.kind if isinstance(scene, SceneHandle) else type(scene).__name__.lower()
    engine: dict[str, str | int] = {"engine": _ENGINES[kind]} if kind in _ENGINES else {}
    return {**engine, "scene_id": scene.scene_id} if isinstance(scene, SceneHandle) else engine
