"""Storing, describing and updating clouds: scenes that consist only of tensors, such as spheres and Gaussians."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lumigrad.protos.hashing import tensors_of
from lumigrad.protos.tensors import PayloadReader
from lumigrad.server.core.limits import require
from lumigrad.server.core.record import StageTimes
from lumigrad.server.engines.content import Content, Outline, Rules, Shapes, Tensors, check_shape, shapes_of, uploader
from lumigrad.server.scenes.building import Owner
from lumigrad.server.storage.stored_scene import StoredScene
from lumigrad.server.storage.tenants import Runtime
from lumigrad.v1 import scene_pb2, tensor_pb2

# Creates the content on the device's thread, and measures its stages.
Make = Callable[[StageTimes], Content]
# Does the host's part of the work, on the thread of the scene's owner, before the device's part.
Prepare = Callable[[Owner], Make]


@dataclass(frozen=True)
class Arrival:
    """A scene, or a change of a scene, whose header was checked; its tensors follow in the payload.

    Attributes:
        receive: Checks the positions of the tensors in the payload.
        copied_bytes: Device memory that making the scene takes besides the payload, for copies of unchanged tensors.
    """

    outline: Outline
    receive: Callable[[PayloadReader], Prepare]
    copied_bytes: int = 0


class SceneKind(Protocol):
    """A kind of scenes: their content, and how it changes."""

    # The name of the kind's field in `Scene`, and of the engine for its scenes.
    name: str
    engine: str

    def arrival(self, scene: scene_pb2.Scene, runtime: Runtime, field: str) -> Arrival:
        """Check the header of a scene; `field` is the path of this kind's message in the request."""

    def change(self, content: Any, request: scene_pb2.UpdateRequest, runtime: Runtime) -> Arrival:
        """Check the header of an update of a scene of this kind."""


@dataclass(frozen=True)
class KeptTensors:
    """The tensors of one version of a scene.

    Attributes:
        uploads: For each tensor, the upload whose buffer it lives in.
    """

    by_name: Tensors
    uploads: Mapping[str, object]

    @staticmethod
    def of(tensors: Tensors) -> KeptTensors:
        """Return tensors of one upload."""
        return KeptTensors(tensors, dict.fromkeys(tensors, object()))

    @property
    def bytes(self) -> int:
        """Size of all tensors."""
        return sum(tensor.nbytes for tensor in self.by_name.values())

    def replaced(self, tensors: Tensors) -> KeptTensors:
        """Return a copy with some tensors replaced.

        Tensors that share an upload with a replaced one are copied; otherwise they would keep its memory alive.
        """
        merged, uploads = dict(self.by_name), dict(self.uploads)
        for name in self._copied(tensors):
            merged[name] = merged[name].clone()
            uploads[name] = object()
        return KeptTensors({**merged, **tensors}, {**uploads, **dict.fromkeys(tensors, object())})

    def copied_bytes(self, names: Collection[str]) -> int:
        """Return the bytes that `replaced` copies for tensors of these names."""
        return sum(self.by_name[name].nbytes for name in self._copied(names))

    def _copied(self, replaced: Collection[str]) -> list[str]:
        gone = [self.uploads[name] for name in replaced if name in self.uploads]
        kept = (name for name in self.uploads if name not in replaced and self.by_name[name].device.type == "cpu")
        return [name for name in kept if self.uploads[name] in gone]


def replacements(
    request: scene_pb2.UpdateRequest,
    names: Sequence[str],
    shapes: Shapes,
    check_type: Callable[[str, tensor_pb2.Tensor, str], None],
) -> dict[str, tensor_pb2.Tensor]:
    """Check the tensors of an update: names from `names`, shapes as stored, types by `check_type`."""
    require(not request.obstacles, "obstacles", "none: this scene is no world", f"{len(request.obstacles)}")
    require(len(request.tensors) > 0, "tensors", "at least one tensor", "none")
    tensors: dict[str, tensor_pb2.Tensor] = {}
    for index, entry in enumerate(request.tensors):
        where = f"tensors[{index}]"
        limit = f"one of {', '.join(names)}, each once"
        require(entry.name in names and entry.name not in tensors, f"{where}.name", limit, entry.name)
        check_type(entry.name, entry.tensor, where)
        check_shape(entry.tensor.shape, shapes[entry.name], where)
        tensors[entry.name] = entry.tensor
    return tensors


@dataclass(frozen=True)
class CloudContent:
    """A cloud on the device."""

    rules: Rules
    kept: KeptTensors
    kind: str
    tensors: Tensors
    outline: Outline
    needs = ()

    @staticmethod
    def of(rules: Rules, kept: KeptTensors) -> CloudContent:
        """Return the content with these tensors."""
        return CloudContent(rules, kept, rules.name, kept.by_name, Outline(shapes_of(kept.by_name)))

    @property
    def bytes(self) -> int:
        """The size of its tensors."""
        return self.kept.bytes

    @property
    def count(self) -> int:
        """The number of primitives."""
        return self.rules.count(self.outline.shapes)

    def describe(self, info: scene_pb2.SceneInfo) -> None:
        """Add nothing."""

    def message(self, tensors: Mapping[str, tensor_pb2.Tensor]) -> scene_pb2.Scene:
        """Return the scene as the message that stores it."""
        scene = scene_pb2.Scene()
        cloud = getattr(scene, self.kind)
        cloud.SetInParent()
        for name, tensor in tensors.items():
            getattr(cloud, name).CopyFrom(tensor)
        return scene


class Cloud:
    """Scenes that are tensors, with the rules of one kind."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.name, self.engine = rules.name, rules.engine

    def arrival(self, scene: scene_pb2.Scene, runtime: Runtime, field: str) -> Arrival:
        """Check the header of a cloud; `field` is its path in the request."""
        tensors = dict(tensors_of(getattr(scene, self.name)))
        for name, tensor in tensors.items():
            self._rules.check_type(name, tensor, f"{field}.{name}")
        self._rules.check_shapes(shapes_of(tensors), runtime.limits, field)
        return self._arrival(runtime, field, tensors, None)

    def change(self, content: CloudContent, request: scene_pb2.UpdateRequest, runtime: Runtime) -> Arrival:
        """Check the header of an update."""
        tensors = replacements(request, list(content.tensors), content.outline.shapes, self._rules.check_type)
        return self._arrival(runtime, "tensors", tensors, content)

    def replacement(
        self, stored: StoredScene, entries: Sequence[tensor_pb2.NamedTensor], runtime: Runtime, field: str
    ) -> Arrival:
        """Check the header of a call's tensors at `field`, which replace some tensors of a stored cloud."""
        tensors: dict[str, tensor_pb2.Tensor] = {}
        limit = f"one of {', '.join(self._rules.alternatives)}, each once"
        for index, entry in enumerate(entries):
            known = entry.name in self._rules.alternatives and entry.name not in tensors
            require(known, f"{field}[{index}].name", limit, entry.name)
            self._rules.check_type(entry.name, entry.tensor, f"{field}.{entry.name}")
            tensors[entry.name] = entry.tensor
        gone = {other for name in tensors for other in self._rules.alternatives[name]}
        kept = {name: tensor for name, tensor in stored.content.tensors.items() if name not in gone}
        outline = Outline({**shapes_of(kept), **shapes_of(tensors)})
        self._rules.check_shapes(outline.shapes, runtime.limits, field)
        return Arrival(outline, self._receiver(runtime, field, tensors, lambda own: KeptTensors.of({**kept, **own})))

    def _arrival(
        self, runtime: Runtime, field: str, tensors: Mapping[str, tensor_pb2.Tensor], old: CloudContent | None
    ) -> Arrival:
        """Return the arrival of a cloud's tensors, or of those that replace tensors of the `old` cloud."""
        copied = 0 if old is None else old.kept.copied_bytes(tensors)
        receive = self._receiver(runtime, field, tensors, KeptTensors.of if old is None else old.kept.replaced)
        return Arrival(Outline(shapes_of(tensors)), receive, copied)

    def _receiver(
        self,
        runtime: Runtime,
        field: str,
        tensors: Mapping[str, tensor_pb2.Tensor],
        completed: Callable[[Tensors], KeptTensors],
    ) -> Callable[[PayloadReader], Prepare]:
        """Return the function of an arrival that reads tensors; `completed` adds those that are on the device."""

        def receive(reader: PayloadReader) -> Prepare:
            upload = uploader(tensors, reader, runtime.transfer, field)

            def make(times: StageTimes) -> CloudContent:
                with times.stage("upload"):
                    kept = completed(upload())
                    self._rules.check_values(kept.by_name, field)
                    runtime.transfer.finish()
                return CloudContent.of(self._rules, kept)

            return lambda _: make

        return receive
