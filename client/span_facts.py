"""What spans tell of the things that a client works with."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from lumigrad.client.distance_query import DistanceQuery
from lumigrad.client.gaussians import Gaussians
from lumigrad.client.mesh import Mesh
from lumigrad.client.request import RenderRequest
from lumigrad.client.scene import SceneHandle
from lumigrad.client.spheres import Spheres
from lumigrad.client.tracing import Facts
from lumigrad.client.world import World

_ENGINES = {"spheres": "spheres", "gaussians": "gaussians", "mesh": "meshes", "world": "meshes"}
_KINDS = {Spheres: "spheres", Gaussians: "gaussians", Mesh: "mesh", World: "world"}


def of_scene(scene: Any) -> Facts:
    """Which engine it is for, and its name if it is stored; of what is no scene, nothing."""
    kind = scene.kind if isinstance(scene, SceneHandle) else _KINDS.get(type(scene), "")
    engine = {"engine": _ENGINES[kind]} if kind in _ENGINES else {}
    return {**engine, "scene_id": scene.scene_id} if isinstance(scene, SceneHandle) else engine


def of_render(request: RenderRequest) -> Facts:
    """What is rendered, and how much of it."""
    pixels = sum(camera.width * camera.height for camera in request.cameras)
    return {**of_scene(request.scene), "cameras": len(request.cameras), "pixels": pixels}


def of_query(query: DistanceQuery) -> Facts:
    """What is asked about how many spheres."""
    return {**of_scene(query.world), "rows": query.spheres.size // 4}


def of_training(scene: Any, cameras: Any) -> Facts:
    """What is trained, and by how many views."""
    return {**of_scene(scene), **({"cameras": len(cameras)} if isinstance(cameras, Sized) else {})}
