"""Distances on the voxels of a box."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from lumigrad.kernels import meshes
from lumigrad.protos.dtypes import Array
from lumigrad.protos.tensors import PayloadReader
from lumigrad.protos.wire import Frame
from lumigrad.server.call import Call
from lumigrad.server.content import Outline
from lumigrad.server.distance_plan import SEMANTICS
from lumigrad.server.estimates import Cost
from lumigrad.server.limits import Limits, renamed, require
from lumigrad.server.replies import named_tensors, timed
from lumigrad.server.runtime import Runtime
from lumigrad.server.source import Source
from lumigrad.server.world_scene import world_of
from lumigrad.v1 import distance_pb2

_VOXEL_BYTES = 4
_OF_FIELDS = ("exact", "curobo_field")
# Fields of the request for what the kernels call otherwise.
_NAMES = {"dims": "size", "box_pose": "pose"}


def answer_field(
    request: distance_pb2.FieldRequest, find: Callable[[], Source], runtime: Runtime, call: Call
) -> Iterator[Frame[distance_pb2.QueryReply]]:
    """Compute the field, and send it."""
    with call.times.stage("decode"):
        source = find()
        _check(request, source.outline, runtime.limits)
        cost = Cost.of_payload(_bytes(request, runtime.limits))
        runtime.memory.check(cost)
        runtime.transit.reserve(cost.bytes, call)
        load = source.receive(PayloadReader())

    def work() -> list[Array]:
        world = world_of(load())
        with call.times.stage("kernel.query"), renamed(_name):
            values = meshes.esdf(
                world,
                _pose(request),
                request.size,
                request.voxel_size,
                environment=request.environment,
                max_distance=request.max_distance if request.HasField("max_distance") else None,
                semantics=SEMANTICS[request.semantics],
                device=runtime.transfer.device,
                before_launch=call.check,
            )
            runtime.transfer.finish()
        with call.times.stage("download"):
            return runtime.transfer.download([values])

    (values,) = runtime.executor.run(work, call, cost)
    payload = call.lane.writer()
    reply = distance_pb2.QueryReply(scene=source.reference, outputs=named_tensors({"distance": values}, payload))
    yield from timed(reply, payload, lambda: None, call)


def _check(request: distance_pb2.FieldRequest, outline: Outline, limits: Limits) -> None:
    semantics = SEMANTICS.get(request.semantics)
    limit = "DISTANCE_SEMANTICS_EXACT or DISTANCE_SEMANTICS_CUROBO_FIELD"
    require(semantics in _OF_FIELDS, "semantics", limit, request.semantics)
    limit = f"less than {outline.environments}, the number of environments"
    require(request.environment < outline.environments, "environment", limit, request.environment)
    with renamed(_name):
        counts = meshes.voxel_counts(request.size, request.voxel_size)
        if request.HasField("max_distance"):
            meshes.Settings(max_distance=request.max_distance)
    voxels = prod(counts)
    require(voxels <= limits.voxels, "voxel_size", f"at most {limits.voxels} voxels in the box", f"{voxels} voxels")


def _bytes(request: distance_pb2.FieldRequest, limits: Limits) -> int:
    """The size of the reply, checked."""
    size = _VOXEL_BYTES * prod(meshes.voxel_counts(request.size, request.voxel_size))
    limit = f"voxels of at most {limits.payload_bytes} bytes of reply"
    require(size <= limits.payload_bytes, "voxel_size", limit, size)
    return size


def _pose(request: distance_pb2.FieldRequest) -> tuple[float, ...]:
    return tuple(request.pose.values) if request.HasField("pose") else meshes.IDENTITY


def _name(argument: str) -> str:
    return _NAMES.get(argument, argument)
