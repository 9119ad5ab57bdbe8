"""Scenes and render requests as messages of the contract, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from lumigrad.client.base.arguments import values_of
from lumigrad.client.base.arrays import Array
from lumigrad.client.errors import Internal
from lumigrad.client.settings.gaussians import GaussianSemantics, GaussianSettings
from lumigrad.client.settings.spheres import Semantics, SphereSettings
from lumigrad.client.values.camera import Camera, InriaModel, OpenCVModel, Projection
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import Scene, SceneHandle
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.values.target import Target
from lumigrad.client.values.world import World
from lumigrad.client.wire.worlds import References, world_arrays, world_message, world_of
from lumigrad.protos.hashing import content_hash, tensors_of
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.v1 import camera_pb2, gaussians_pb2, scene_pb2, spheres_pb2, tensor_pb2


def scene_of(message: scene_pb2.Scene, reader: PayloadReader, mesh: Callable[[str], SceneHandle]) -> Scene:
    """The scene in a message; `mesh` makes the handle of a world's mesh from its scene_id."""
    kind = message.WhichOneof("kind")
    if kind is None:
        raise Internal("the worker sent a scene of a kind that this client does not know; update Lumigrad")
    if kind == "world":
        return world_of(message.world, reader, mesh)
    arrays: dict[str, Any] = {name: reader.read(tensor, name) for name, tensor in tensors_of(getattr(message, kind))}
    return _KINDS[kind](**arrays)


# Scenes that consist of tensors alone, by the names of their fields in the contract.
_KINDS: dict[str, type[Spheres | Gaussians | Mesh | Target]] = {
    "spheres": Spheres,
    "gaussians": Gaussians,
    "mesh": Mesh,
    "target": Target,
}
_SEMANTICS = values_of(Semantics, spheres_pb2.Semantics)
_GAUSSIAN_SEMANTICS = values_of(GaussianSemantics, gaussians_pb2.GaussianSemantics)
_PROJECTIONS = values_of(Projection, camera_pb2.Projection)


def camera_message(camera: Camera) -> camera_pb2.Camera:
    """A camera with its picture size."""
    model = camera.model
    width, height = camera.width, camera.height
    values = {}
    for field in fields(model):
        value = getattr(model, field.name)
        values[field.name] = value.ravel().tolist() if isinstance(value, np.ndarray) else value
    if isinstance(model, OpenCVModel):
        values["projection"] = _PROJECTIONS[model.projection]
        return camera_pb2.Camera(width=width, height=height, opencv=camera_pb2.OpenCVCamera(**values))
    if isinstance(model, InriaModel):
        inria = camera_pb2.InriaCamera(position=values.pop("eye"), **values)
        return camera_pb2.Camera(width=width, height=height, inria=inria)
    return camera_pb2.Camera(width=width, height=height, pulsar=camera_pb2.PulsarCamera(**values))


def scene_message(scene: Scene, payload: PayloadWriter, meshes: References = ()) -> scene_pb2.Scene:
    """A scene whose arrays are appended to `payload`; of a world with the names of its meshes."""
    if isinstance(scene, World):
        return scene_pb2.Scene(world=world_message(scene, meshes, payload))
    message = scene_pb2.Scene()
    tensors = getattr(message, next(name for name, kind in _KINDS.items() if isinstance(scene, kind)))
    for name, array in scene.tensors.items():
        getattr(tensors, name).CopyFrom(payload.add(array))
    return message


def named_tensors(arrays: Mapping[str, Array], payload: PayloadWriter) -> list[tensor_pb2.NamedTensor]:
    """Arrays by name, which are appended to `payload`."""
    return [tensor_pb2.NamedTensor(name=name, tensor=payload.add(array)) for name, array in arrays.items()]


def scene_hash(scene: Scene, meshes: References = ()) -> str:
    """The content hash that names a scene."""
    message = scene_message(scene, PayloadWriter(), meshes)
    kind = message.WhichOneof("kind")
    assert kind is not None
    arrays: Mapping[str, Array] = world_arrays(scene) if isinstance(scene, World) else scene.tensors
    return content_hash(getattr(message, kind), lambda _, field: arrays[field])


def sphere_settings_message(settings: SphereSettings) -> spheres_pb2.SphereSettings:
    """The blending of spheres; what is None stays absent."""
    return spheres_pb2.SphereSettings(**{**vars(settings), "semantics": _SEMANTICS[settings.semantics]})


def gaussian_settings_message(settings: GaussianSettings) -> gaussians_pb2.GaussianSettings:
    """The blending of Gaussians; what is None stays absent."""
    transforms = [
        gaussians_pb2.SliceTransform(begin=begin, end=end, matrix=matrix.ravel().tolist())
        for begin, end, matrix in settings.transforms
    ]
    semantics = _GAUSSIAN_SEMANTICS[settings.semantics]
    return gaussians_pb2.GaussianSettings(**{**vars(settings), "semantics": semantics, "transforms": transforms})
