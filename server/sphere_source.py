"""Where a call's spheres come from: a stored scene, or the call itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lumigrad.protos.tensors import PayloadReader
from lumigrad.server.call import Call
from lumigrad.server.limits import require
from lumigrad.server.runtime import Runtime
from lumigrad.server.scenes import Tensors
from lumigrad.server.sphere_cloud import KIND, check_cloud, check_values, tensors_in, uploader
from lumigrad.v1 import render_pb2, scene_pb2


@dataclass(frozen=True)
class SphereSource:
    """A scene that is known by its header; its tensors follow with the payload."""

    count: int
    channels: int
    # The stored scene, if it is one.
    reference: scene_pb2.SceneRef | None
    # Checks the payload; returns what gives the tensors, for the device's thread.
    receive: Callable[[PayloadReader], Callable[[], Tensors]]


def source_of(spec: render_pb2.RenderSpec, runtime: Runtime, call: Call, field: str) -> SphereSource:
    """Look the scene up, or check the one in the header; `field` is the path of the spec in the request."""
    if spec.WhichOneof("source") == "scene_ref":
        return _stored(spec.scene_ref, runtime)
    require(spec.scene.WhichOneof("kind") == KIND, f"{field}.scene", "spheres", "none")
    where = f"{field}.scene.spheres"
    check_cloud(spec.scene.spheres, runtime.limits, where)

    def receive(reader: PayloadReader) -> Callable[[], Tensors]:
        upload = uploader(tensors_in(spec.scene.spheres), reader, runtime.transfer, where)

        def load() -> Tensors:
            with call.times.stage("upload"):
                tensors = upload()
                check_values(tensors, where)
            return tensors

        return load

    count, channels = spec.scene.spheres.colors.shape
    return SphereSource(count, channels, None, receive)


def _stored(reference: scene_pb2.SceneRef, runtime: Runtime) -> SphereSource:
    scene = runtime.scenes.find(reference.scene_id, reference.version)
    named = scene_pb2.SceneRef(scene_id=scene.scene_id, version=scene.version)
    count, channels = scene.tensors["colors"].shape
    return SphereSource(count, channels, named, lambda _: lambda: scene.tensors)
