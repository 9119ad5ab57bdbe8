"""DistanceService: distances of spheres and distance fields, and their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod

from lumigrad.kernels import meshes
from lumigrad.kernels.steps import Steps
from lumigrad.protos.dtypes import Array
from lumigrad.protos.tensors import PayloadReader
from lumigrad.protos.wire import Frame
from lumigrad.server.core.call import Call
from lumigrad.server.core.limits import Limits, renamed, require, require_reply
from lumigrad.server.core.streams import named_tensors, timed
from lumigrad.server.device.memory import Cost
from lumigrad.server.device.transfer import Delivery, Transfer
from lumigrad.server.engines.content import Content, Outline, Tensors
from lumigrad.server.engines.distances import DISTANCES, SEMANTICS, DistanceInputs, DistancePlan, distance_plan
from lumigrad.server.engines.prepared import Example
from lumigrad.server.engines.runner import ForwardJob, ForwardState, Task, checked
from lumigrad.server.rpc.prepared_queries import PreparedQueries
from lumigrad.server.rpc.render import EngineService
from lumigrad.server.scenes.lookup import AcceptedKinds, find_scene
from lumigrad.server.scenes.world import world_of
from lumigrad.server.storage.tenants import Runtime, Tenants
from lumigrad.v1 import distance_pb2

_VOXEL_BYTES = 4
_OF_FIELDS = ("exact", "curobo_field")
# Fields of the request whose names differ from those of the kernels.
_NAMES = {"dims": "size", "box_pose": "pose"}

QueryFrames = Iterator[Frame[distance_pb2.QueryRequest]]
BackwardFrames = Iterator[Frame[distance_pb2.DistanceBackwardRequest]]

_KINDS = AcceptedKinds(("mesh", "world"), "a mesh or a world; RenderService renders spheres and gaussians")


class DistanceService(EngineService):
    """The methods of `lumigrad.v1.DistanceService`."""

    def __init__(self, tenants: Tenants) -> None:
        super().__init__(tenants, "query", (DISTANCES.name,))
        self.shortcuts = {"Query": PreparedQueries(tenants)}

    def _drew(self, example: Example, request: ForwardJob, state: ForwardState | None) -> None:
        if state is None:
            self.shortcuts["Query"].prepare(example, request)

    def Query(self, frames: QueryFrames, call: Call) -> Iterator[Frame[distance_pb2.QueryReply]]:
        """Query the distances to a world or a mesh, stored or inline."""
        yield from self._forward(frames, call, distance_pb2.QueryReply())

    def Backward(self, frames: BackwardFrames, call: Call) -> Iterator[Frame[distance_pb2.DistanceBackwardReply]]:
        """Differentiate a retained query, or one that is sent again and recomputed."""
        yield from self._backward(frames, call, distance_pb2.DistanceBackwardReply())

    def Field(self, request: distance_pb2.FieldRequest, call: Call) -> Iterator[Frame[distance_pb2.QueryReply]]:
        """Compute the distances at the voxels of a box."""
        call.record.engine, call.record.operation = DISTANCES.name, "field"
        yield from answer_field(request, self._tenants.of(call), call)

    def _request(
        self, spec: distance_pb2.DistanceSpec, call: Call, field: str, *_: object, **__: object
    ) -> DistanceJob:
        call.record.engine = DISTANCES.name
        runtime = self._tenants.of(call)
        scene = find_scene(spec, _KINDS, runtime, call, field)
        plan = distance_plan(spec, scene.outline, runtime.limits, field)
        call.record.facts["rows"] = plan.count
        return DistanceJob(Task(DISTANCES, plan, field, scene.reference), scene)


class DistanceJob(ForwardJob):
    """A distance query. Its engine takes the obstacles, posed for the call, and the tensors of the request."""

    def receive(self, reader: PayloadReader, transfer: Transfer, call: Call) -> None:
        """Check the tensors in the payload."""
        super().receive(reader, transfer, call)
        plan, field = self.task.plan, self.task.field
        assert isinstance(plan, DistancePlan)
        self._poses = None if plan.poses is None else reader.read(plan.poses, f"{field}.poses")

    def _joined(self, content: Content, tensors: Tensors) -> DistanceInputs:
        if self.task.scene is None:
            # A forward state keeps the spheres; without this copy, it would also keep the scene in the same buffer.
            tensors = {**tensors, "spheres": tensors["spheres"].clone()}
        return DistanceInputs(_posed(world_of(content), self._poses, self.task.field), tensors)


def _posed(world: meshes.World, poses: Array | None, field: str) -> meshes.World:
    if poses is None:
        return world
    with renamed(lambda argument: f"{field}.{argument}"):
        return world.with_poses(dict(enumerate(poses.tolist())))


def answer_field(
    request: distance_pb2.FieldRequest, runtime: Runtime, call: Call
) -> Iterator[Frame[distance_pb2.QueryReply]]:
    """Compute and send a distance field."""
    with call.times.stage("decode"):
        scene = find_scene(request, _KINDS, runtime, call, "")
        cost = Cost.of_payload(_checked_bytes(request, scene.outline, runtime.limits))
        runtime.memory.check(cost)
        runtime.payload_memory.announce(cost.bytes, call)
        scene.receive(PayloadReader())

    def work() -> Steps[Delivery[Array]]:
        world = world_of(scene.load())
        with renamed(_name):
            steps = meshes.esdf_steps(
                world,
                tuple(request.pose.values) if request.HasField("pose") else meshes.IDENTITY,
                request.size,
                request.voxel_size,
                environment=request.environment,
                max_distance=request.max_distance if request.HasField("max_distance") else None,
                semantics=SEMANTICS[request.semantics],
                device=runtime.transfer.device,
            )
            values = yield from checked(steps, call.check, partial(call.times.stage, "kernel.query"))
        with call.times.stage("kernel.query"):
            runtime.transfer.finish()
        with call.times.stage("download"):
            download = runtime.transfer.start_download([values], [call.lane])
        return Delivery(download.arrays[0], download)

    values = runtime.executor.deliver_steps(work, call, cost)
    payload = call.lane.writer()
    reply = distance_pb2.QueryReply(scene=scene.reference, outputs=named_tensors({"distance": values}, payload))
    yield from timed(reply, payload, lambda: None, call)


def _checked_bytes(request: distance_pb2.FieldRequest, outline: Outline, limits: Limits) -> int:
    """Check a request, and return the size of its reply."""
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
    size = _VOXEL_BYTES * voxels
    require_reply(size, limits, "voxel_size", "voxels of ")
    return size


def _name(argument: str) -> str:
    return _NAMES.get(argument, argument)
