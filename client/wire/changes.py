"""What an update changes of a stored scene."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lumigrad.client.base.arrays import float32_array
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.values.handle import Scene, SceneHandle
from lumigrad.client.values.world import World
from lumigrad.client.wire.scenes import named_tensors, update_messages
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import scene_pb2

_CHANGEABLE = {
    "spheres": ("positions", "colors", "radii", "opacities"),
    "gaussians": ("means", "quats", "scales", "covariances", "opacities", "sh", "colors"),
    "mesh": ("vertices",),
    "world": ("poses", "enabled"),
}
_PLURALS = {"mesh": "meshes", "world": "worlds"}


@dataclass(frozen=True)
class SceneChanges:
    """Changes of one scene.

    Attributes:
        tensors: by name; not of worlds.
        poses: [7] of obstacles by their names; of worlds, as what follows.
        enabled: whether queries see obstacles, by their names.
    """

    tensors: Mapping[str, Any]
    poses: Mapping[str, Any]
    enabled: Mapping[str, bool]

    def message(self, handle: SceneHandle, payload: PayloadWriter) -> scene_pb2.UpdateRequest:
        """All but the name of the scene; tensors are appended to `payload`."""
        self._check(handle.kind)
        local = self.applied(handle)
        if handle.kind == "world":
            return scene_pb2.UpdateRequest(obstacles=update_messages(self.poses, self.enabled))
        if local is None or isinstance(local, World):
            # Only the worker knows the shapes.
            arrays = {name: float32_array(name, value) for name, value in self.tensors.items()}
        else:
            arrays = {name: local.tensors[name] for name in self.tensors}
        return scene_pb2.UpdateRequest(tensors=named_tensors(arrays, payload))

    def applied(self, handle: SceneHandle) -> Scene | None:
        """The client's own copy, changed alike; None if it has none."""
        scene = handle.scene
        if scene is None:
            return None
        if isinstance(scene, World):
            return scene.with_poses(self.poses).with_enabled(self.enabled)
        return replace(scene, **self.tensors)

    def _check(self, kind: str) -> None:
        known = _CHANGEABLE.get(kind, ())
        listed = " and ".join(", ".join(known).rsplit(", ", 1))
        obstacles = [name for name, values in (("poses", self.poses), ("enabled", self.enabled)) if values]
        given = [*self.tensors, *obstacles]
        if not given:
            raise InvalidArgument.of("tensors", f"expected at least one of {listed}, got none")
        for name in given:
            if known and name not in known:
                plural = _PLURALS.get(kind, kind)
                raise InvalidArgument.of(name, f"expected names out of {listed}, which {plural} have, got {name}")
