"""Clouds of primitives: scenes that are tensors and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from lumigrad.protos.hashing import tensors_of
from lumigrad.protos.tensors import PayloadReader
from lumigrad.server.arrivals import Shapes, shapes_of, uploader
from lumigrad.server.content import Outline, Tensors
from lumigrad.server.kept_tensors import KeptTensors
from lumigrad.server.limits import Limits
from lumigrad.server.runtime import Runtime
from lumigrad.server.scene_kind import Arrival, Make
from lumigrad.server.tensor_updates import replacements
from lumigrad.server.timings import StageTimes
from lumigrad.v1 import scene_pb2, tensor_pb2


class Rules(Protocol):
    """Which tensors clouds of one kind have, and what may be in them."""

    @property
    def name(self) -> str:
        """Its field in `Scene`."""

    @property
    def engine(self) -> str:
        """The engine that computes with it."""

    def check_type(self, name: str, tensor: tensor_pb2.Tensor, field: str) -> None:
        """Check the type of a tensor, and that its size can be computed."""

    def check_shapes(self, shapes: Shapes, limits: Limits, field: str) -> None:
        """Check all that the header tells; `field` is the path of the scene in its request."""

    def check_values(self, tensors: Tensors, field: str) -> None:
        """Check what only the device can see quickly."""

    def count(self, shapes: Shapes) -> int:
        """The number of primitives."""


@dataclass(frozen=True)
class CloudContent:
    """A cloud on the device."""

    rules: Rules
    kept: KeptTensors
    needs = ()

    @property
    def kind(self) -> str:
        """Its field in `Scene`."""
        return self.rules.name

    @property
    def tensors(self) -> Tensors:
        """By name."""
        return self.kept.by_name

    @cached_property
    def outline(self) -> Outline:
        """What requests are checked against."""
        return Outline(shapes_of(self.tensors))

    @property
    def bytes(self) -> int:
        """Of its tensors."""
        return self.kept.bytes

    @property
    def count(self) -> int:
        """The number of primitives."""
        return self.rules.count(self.outline.shapes)

    def describe(self, info: scene_pb2.SceneInfo) -> None:
        """Nothing to add."""

    def message(self, tensors: Mapping[str, tensor_pb2.Tensor]) -> scene_pb2.Scene:
        """The scene as it would be put."""
        scene = scene_pb2.Scene()
        cloud = getattr(scene, self.kind)
        cloud.SetInParent()
        for name, tensor in tensors.items():
            getattr(cloud, name).CopyFrom(tensor)
        return scene


class Cloud:
    """Scenes that are tensors, by the rules of one kind."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.name, self.engine = rules.name, rules.engine

    def arrival(self, scene: scene_pb2.Scene, runtime: Runtime, field: str) -> Arrival:
        """Check all that the header tells; `field` is the path of the cloud in the request."""
        tensors = dict(tensors_of(getattr(scene, self.name)))
        for name, tensor in tensors.items():
            self._rules.check_type(name, tensor, f"{field}.{name}")
        self._rules.check_shapes(shapes_of(tensors), runtime.limits, field)
        return _Arrival(self._rules, runtime, field, tensors, None)

    def change(self, content: CloudContent, request: scene_pb2.UpdateRequest, runtime: Runtime) -> Arrival:
        """Check the header of an update."""
        tensors = replacements(request, list(content.tensors), content.outline.shapes, self._rules.check_type)
        return _Arrival(self._rules, runtime, "tensors", tensors, content)


@dataclass(frozen=True)
class _Arrival:
    """Tensors of a cloud, or of a part of one that is there."""

    rules: Rules
    runtime: Runtime
    field: str
    tensors: Mapping[str, tensor_pb2.Tensor]
    old: CloudContent | None

    @property
    def outline(self) -> Outline:
        """The shapes of what arrives."""
        return Outline(shapes_of(self.tensors))

    def receive(self, reader: PayloadReader) -> Make:
        """Check the places of the tensors in the payload."""
        transfer = self.runtime.transfer
        upload = uploader(self.tensors, reader, transfer, self.field)

        def make(times: StageTimes) -> CloudContent:
            with times.stage("upload"):
                uploaded = upload()
                kept = KeptTensors.of(uploaded) if self.old is None else self.old.kept.replaced(uploaded)
                self.rules.check_values(kept.by_name, self.field)
                transfer.finish()
            return CloudContent(self.rules, kept)

        return make
