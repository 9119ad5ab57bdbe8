"""The lists of rendering engines and of kinds of scenes."""

from __future__ import annotations

from collections.abc import Mapping

from lumigrad.server.core.limits import require
from lumigrad.server.engines.base import RenderEngine
from lumigrad.server.engines.gaussians import GAUSSIANS, GaussianRules
from lumigrad.server.engines.spheres import SPHERES, SphereRules
from lumigrad.server.scenes.clouds import Cloud, SceneKind
from lumigrad.server.scenes.mesh import MeshKind
from lumigrad.server.scenes.target import TargetRules
from lumigrad.server.scenes.world import WorldKind
from lumigrad.v1 import scene_pb2

ENGINES: Mapping[str, RenderEngine] = {engine.name: engine for engine in (SPHERES, GAUSSIANS)}
SCENE_KINDS: Mapping[str, SceneKind] = {
    kind.name: kind
    for kind in (Cloud(SphereRules()), Cloud(GaussianRules()), MeshKind(), WorldKind(), Cloud(TargetRules()))
}


def kind_of(scene: scene_pb2.Scene, field: str, expected: str | None = None) -> SceneKind:
    """The kind of a scene; one that is empty is refused as not being the one `expected`, or any."""
    name = scene.WhichOneof("kind")
    require(name is not None, field, expected or f"one of {', '.join(SCENE_KINDS)}", "none")
    return SCENE_KINDS[str(name)]
