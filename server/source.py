"""Where a call's scene comes from: it is stored, or travels with the call."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from lumigrad.protos.tensors import PayloadReader
from lumigrad.server.call import Call
from lumigrad.server.content import Content, Outline, Tensors
from lumigrad.server.engines import kind_of
from lumigrad.server.limits import require
from lumigrad.server.recall import bring_meshes, stored_scene
from lumigrad.server.runtime import Runtime
from lumigrad.v1 import scene_pb2


@dataclass(frozen=True)
class Subjects:
    """The kinds of scenes that a service takes, and what callers are told of them."""

    kinds: Collection[str]
    text: str

    def check(self, kind: str, field: str) -> None:
        """Refuse a scene of another kind."""
        require(kind in self.kinds, field, self.text, kind)


@dataclass(frozen=True)
class Source:
    """A scene that is known by its header; its tensors follow with the payload."""

    kind: str
    outline: Outline
    # The stored scene, if it is one.
    reference: scene_pb2.SceneRef | None
    # Checks the payload; returns what gives the content, for the device's thread.
    receive: Callable[[PayloadReader], Callable[[], Content]]

    def tensors(self, reader: PayloadReader) -> Callable[[], Tensors]:
        """As `receive`, for engines that want nothing but the tensors."""
        load = self.receive(reader)
        return lambda: load().tensors


def source_of(
    spec: Any, subjects: Subjects, runtime: Runtime, call: Call, field: str, expected: str | None = None
) -> Source:
    """Look the scene up, or check the one in the header.

    `spec` has the fields `scene_ref` and `scene` in one `source`, and `field` is its path in the request; empty: it is
    the request. An empty scene is refused as not being the one `expected`.
    """
    source, below = spec.WhichOneof("source"), f"{field}." if field else ""
    require(source is not None, field or "source", "scene_ref or scene", "neither")
    if source == "scene_ref":
        return _stored(spec.scene_ref, subjects, runtime, call, f"{below}scene_ref")
    kind = kind_of(spec.scene, f"{below}scene", expected or " or ".join(subjects.kinds))
    subjects.check(kind.name, f"{below}scene")
    bring_meshes(runtime, call, spec.scene)
    arrival = kind.arrival(spec.scene, runtime, f"{below}scene.{kind.name}")

    def receive(reader: PayloadReader) -> Callable[[], Content]:
        make = arrival.receive(reader)
        return lambda: make(call.times)

    return Source(kind.name, arrival.outline, None, receive)


def _stored(reference: scene_pb2.SceneRef, subjects: Subjects, runtime: Runtime, call: Call, field: str) -> Source:
    scene = stored_scene(runtime, call, reference.scene_id, reference.version)
    subjects.check(scene.kind, field)
    named = scene_pb2.SceneRef(scene_id=scene.scene_id, version=scene.version)
    return Source(scene.kind, scene.content.outline, named, lambda _: lambda: scene.content)
