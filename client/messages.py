"""The client's values -> messages of the contract."""

from __future__ import annotations

from lumigrad.client.camera import Camera, OpenCVModel
from lumigrad.client.settings import SphereSettings
from lumigrad.client.spheres import Spheres
from lumigrad.protos.hashing import content_hash
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import camera_pb2, scene_pb2, spheres_pb2

_SEMANTICS = {"exact": spheres_pb2.SEMANTICS_EXACT, "compat": spheres_pb2.SEMANTICS_COMPAT}


def camera_message(camera: Camera) -> camera_pb2.Camera:
    """A camera with its picture size."""
    message = camera_pb2.Camera(width=camera.width, height=camera.height)
    model = camera.model
    if isinstance(model, OpenCVModel):
        message.opencv.fx, message.opencv.fy = model.fx, model.fy
        message.opencv.cx, message.opencv.cy = model.cx, model.cy
        message.opencv.rotation.extend(model.rotation.ravel().tolist())
        message.opencv.translation.extend(model.translation.tolist())
    else:
        message.pulsar.parameters.extend(model.parameters.tolist())
        message.pulsar.orthogonal = model.orthogonal
        message.pulsar.right_handed = model.right_handed
        message.pulsar.first_r_then_t = model.first_r_then_t
    return message


def scene_message(spheres: Spheres, payload: PayloadWriter) -> scene_pb2.Scene:
    """A scene whose arrays are appended to `payload`."""
    tensors = {name: payload.add(array) for name, array in spheres.tensors.items()}
    return scene_pb2.Scene(spheres=scene_pb2.SphereCloud(**tensors))


def scene_hash(spheres: Spheres) -> str:
    """The content hash that names a scene."""
    cloud = scene_message(spheres, PayloadWriter()).spheres
    return content_hash(cloud, lambda _, name: spheres.tensors[name])


def settings_message(settings: SphereSettings) -> spheres_pb2.SphereSettings:
    """The blending settings; what is None stays absent."""
    return spheres_pb2.SphereSettings(
        gamma=settings.gamma,
        min_depth=settings.min_depth,
        max_depth=settings.max_depth,
        semantics=_SEMANTICS[settings.semantics],
        allowed_difference=settings.allowed_difference,
        max_hits=settings.max_hits,
        n_track=settings.n_track,
        background_depth=settings.background_depth,
        background=settings.background,
    )
