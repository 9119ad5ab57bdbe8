"""Stored triangle meshes: their tensors and their bounding volume hierarchy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

import torch

from lumigrad.kernels import meshes
from lumigrad.protos import dtypes
from lumigrad.protos.dtypes import Array
from lumigrad.protos.hashing import tensors_of
from lumigrad.protos.tensors import PayloadReader
from lumigrad.server.core.limits import arguments_of, require
from lumigrad.server.core.record import StageTimes
from lumigrad.server.engines.content import Outline, Tensors, check_type, shapes_of
from lumigrad.server.engines.distances import ENGINE
from lumigrad.server.scenes.building import Build, Owner
from lumigrad.server.scenes.clouds import Arrival, KeptTensors, Make, Prepare, replacements
from lumigrad.server.storage.tenants import Runtime
from lumigrad.v1 import scene_pb2, tensor_pb2

KIND = "mesh"
# Host memory for a build, measured with closed surfaces, with triangles that share no vertices, and with many unused
# vertices.
_FACE_BYTES = 160
_VERTEX_BYTES = 56


@dataclass(frozen=True)
class MeshContent:
    """A mesh on the device."""

    kept: KeptTensors
    mesh: meshes.Mesh
    kind = KIND
    needs = ()
    # A query of a mesh is a query of a world with one obstacle.
    outline = Outline(obstacles=1, environments=1)

    @property
    def tensors(self) -> Tensors:
        """The tensors by name."""
        return self.kept.by_name

    @property
    def bytes(self) -> int:
        """The size of its tensors and its hierarchy."""
        return self.kept.bytes + self.mesh.bytes

    @property
    def count(self) -> int:
        """The number of triangles."""
        return self.mesh.faces

    @cached_property
    def _alone(self) -> meshes.World:
        return meshes.World([meshes.Instance(self.mesh)])

    def world(self) -> meshes.World:
        """Return the mesh alone, at the identity pose."""
        return self._alone

    def settled(self) -> meshes.World | None:
        """Return the same as `world`; callable on any thread."""
        return self._alone

    def describe(self, info: scene_pb2.SceneInfo) -> None:
        """Add the report of the mesh."""
        found = asdict(self.mesh.report)
        info.report.MergeFrom(type(info.report)(**found, rebuilt=self.mesh.rebuilt, growth=self.mesh.growth))

    def message(self, tensors: Mapping[str, tensor_pb2.Tensor]) -> scene_pb2.Scene:
        """Return the mesh as the message that stores it."""
        scene = scene_pb2.Scene()
        for name, tensor in tensors.items():
            getattr(scene.mesh, name).CopyFrom(tensor)
        return scene


def search_nothing(world: meshes.World, device: torch.device) -> None:
    """Query a disabled sphere, which builds all data that queries need."""
    meshes.evaluate(torch.full((1, 1, 1, 4), -1.0).to(device), world, meshes.Settings(), outputs=("distance",))


class MeshKind:
    """Scenes of one triangle mesh."""

    name = KIND
    engine = ENGINE

    def arrival(self, scene: scene_pb2.Scene, runtime: Runtime, field: str) -> Arrival:
        """Check the header of a mesh; `field` is its path in the request."""
        tensors = dict(tensors_of(scene.mesh))
        for name, what in (("vertices", "V"), ("faces", "F")):
            where = f"{field}.{name}"
            require(name in tensors, where, "a tensor", "none")
            _check_type(name, tensors[name], where)
            shape, most = list(tensors[name].shape), runtime.limits.primitives
            require(len(shape) == 2 and shape[1] == 3, f"{where}.shape", f"[{what}, 3]", shape)
            require(shape[0] > 0, where, f"at least one of the {name}", "none")
            require(shape[0] <= most, where, f"at most {most} {name}", shape[0])
        return _arrival(runtime, field, tensors, None)

    def change(self, content: MeshContent, request: scene_pb2.UpdateRequest, runtime: Runtime) -> Arrival:
        """Check the header of an update, which replaces the vertices."""
        tensors = replacements(request, ("vertices",), shapes_of(content.tensors), _check_type)
        return _arrival(runtime, "tensors", tensors, content)


def _check_type(name: str, tensor: tensor_pb2.Tensor, field: str) -> None:
    check_type(tensor, field, dtypes.FLOAT32 if name == "vertices" else dtypes.INT32)


def _arrival(
    runtime: Runtime, field: str, tensors: Mapping[str, tensor_pb2.Tensor], old: MeshContent | None
) -> Arrival:
    """Return the arrival of a new mesh, or of new vertices for the `old` mesh."""
    transfer = runtime.transfer
    stage = "kernel.build" if old is None else "kernel.fit"

    def receive(reader: PayloadReader) -> Prepare:
        arrays = {name: reader.read(tensor, f"{field}.{name}") for name, tensor in tensors.items()}

        def prepare(owner: Owner) -> Make:
            build = Build(runtime, owner)
            with arguments_of(field):
                mesh = build.run(lambda: _built(arrays, old, transfer.device, build), _build_bytes(tensors, old))

            def make(times: StageTimes) -> MeshContent:
                with times.stage("upload"):
                    uploaded = {name: transfer.upload(array, tensors[name].dtype) for name, array in arrays.items()}
                    transfer.finish()
                with times.stage(stage):
                    kept = KeptTensors.of(uploaded) if old is None else old.kept.replaced(uploaded)
                    content = MeshContent(kept, mesh)
                    search_nothing(content.world(), transfer.device)
                    transfer.finish()
                build.taken_over(times, stage)
                return content

            return make

        return prepare

    # New vertices need a copy of the search structure.
    copied = 0 if old is None else old.bytes - old.kept.bytes + old.kept.copied_bytes(tensors)
    return Arrival(MeshContent.outline, receive, copied)


def _built(arrays: Mapping[str, Array], old: MeshContent | None, device: torch.device, build: Build) -> meshes.Mesh:
    """Build the host's part of the mesh."""

    def claim(faces: int) -> None:
        build.add(_FACE_BYTES * faces + _VERTEX_BYTES * len(given["vertices"]))

    given = {name: torch.from_numpy(array if array.flags.writeable else array.copy()) for name, array in arrays.items()}
    if old is None:
        mesh = meshes.Mesh.build(given["vertices"], given["faces"], device, claim)
    else:
        mesh = old.mesh.moved(given["vertices"], claim)
    mesh.prepare("auto")
    return mesh


def _build_bytes(tensors: Mapping[str, tensor_pb2.Tensor], old: MeshContent | None) -> int:
    """Return the host memory of a build, without that for faces that it adds for inside-out parts."""
    faces = tensors["faces"].shape[0] if old is None else old.count
    return _FACE_BYTES * faces + _VERTEX_BYTES * tensors["vertices"].shape[0]
