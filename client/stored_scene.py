"""Scenes that come from a worker: messages of the contract -> the client's values."""

from __future__ import annotations

from collections.abc import Callable

from lumigrad.client.errors import Internal
from lumigrad.client.gaussians import Gaussians
from lumigrad.client.mesh import Mesh
from lumigrad.client.scene import Scene, SceneHandle
from lumigrad.client.spheres import Spheres
from lumigrad.client.target import Target
from lumigrad.client.world_messages import world_of
from lumigrad.protos.hashing import tensors_of
from lumigrad.protos.tensors import PayloadReader
from lumigrad.v1 import scene_pb2


def scene_of(message: scene_pb2.Scene, reader: PayloadReader, mesh: Callable[[str], SceneHandle]) -> Scene:
    """The scene in a message; `mesh` makes the handle of a world's mesh from its scene_id."""
    kind = message.WhichOneof("kind")
    if kind is None:
        raise Internal("the worker sent a scene of a kind that this client does not know; update Lumigrad")
    if kind == "world":
        return world_of(message.world, reader, mesh)
    arrays = {name: reader.read(tensor, name) for name, tensor in tensors_of(getattr(message, kind))}
    if kind == "mesh":
        return Mesh(arrays["vertices"], arrays["faces"])
    if kind == "target":
        return Target(**arrays)
    if kind == "gaussians":
        return Gaussians(**{**dict.fromkeys(("quats", "scales")), **arrays})
    return Spheres(**arrays)
