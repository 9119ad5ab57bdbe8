"""Where a call's scene comes from: it is stored, or travels with the call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lumigrad.protos.tensors import PayloadReader
from lumigrad.server.arrivals import Shapes, shapes_of, uploader
from lumigrad.server.call import Call
from lumigrad.server.engines import kind_of
from lumigrad.server.limits import require
from lumigrad.server.runtime import Runtime
from lumigrad.server.scene_kind import checked_tensors
from lumigrad.server.scenes import Tensors
from lumigrad.v1 import render_pb2, scene_pb2


@dataclass(frozen=True)
class Source:
    """A scene that is known by its header; its tensors follow with the payload."""

    kind: str
    shapes: Shapes
    # The stored scene, if it is one.
    reference: scene_pb2.SceneRef | None
    # Checks the payload; returns what gives the tensors, for the device's thread.
    receive: Callable[[PayloadReader], Callable[[], Tensors]]


def source_of(spec: render_pb2.RenderSpec, runtime: Runtime, call: Call, field: str) -> Source:
    """Look the scene up, or check the one in the header; `field` is the path of the spec in the request."""
    source = spec.WhichOneof("source")
    require(source is not None, field, "scene_ref or scene", "neither")
    return _stored(spec.scene_ref, runtime) if source == "scene_ref" else _sent(spec, runtime, call, f"{field}.scene")


def _sent(spec: render_pb2.RenderSpec, runtime: Runtime, call: Call, field: str) -> Source:
    kind = kind_of(spec.scene, field, spec.WhichOneof("settings"))
    where = f"{field}.{kind.name}"
    tensors = checked_tensors(spec.scene, kind, runtime.limits, where)

    def receive(reader: PayloadReader) -> Callable[[], Tensors]:
        upload = uploader(tensors, reader, runtime.transfer, where)

        def load() -> Tensors:
            with call.times.stage("upload"):
                uploaded = upload()
                kind.check_values(uploaded, where)
            return uploaded

        return load

    return Source(kind.name, shapes_of(tensors), None, receive)


def _stored(reference: scene_pb2.SceneRef, runtime: Runtime) -> Source:
    scene = runtime.scenes.find(reference.scene_id, reference.version)
    named = scene_pb2.SceneRef(scene_id=scene.scene_id, version=scene.version)
    return Source(scene.kind, shapes_of(scene.tensors), named, lambda _: lambda: scene.tensors)
