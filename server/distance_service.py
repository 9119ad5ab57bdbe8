"""DistanceService: distances from spheres to obstacles, their costs, and the gradients of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lumigrad.kernels import meshes
from lumigrad.protos.dtypes import Array
from lumigrad.protos.tensors import PayloadReader
from lumigrad.protos.wire import Frame
from lumigrad.server.arrivals import uploader
from lumigrad.server.call import Call
from lumigrad.server.distance_engine import DistanceEngine, DistanceInputs
from lumigrad.server.distance_plan import DistancePlan, distance_plan
from lumigrad.server.exchanges import BackwardExchange, Question, answer_forward
from lumigrad.server.fields import answer_field
from lumigrad.server.limits import renamed
from lumigrad.server.passes import Task
from lumigrad.server.source import Source, Subjects, source_of
from lumigrad.server.tenants import Tenants
from lumigrad.server.uploads import Receiver
from lumigrad.server.world_scene import world_of
from lumigrad.v1 import distance_pb2, render_pb2

QueryFrames = Iterator[Frame[distance_pb2.QueryRequest]]
BackwardFrames = Iterator[Frame[distance_pb2.DistanceBackwardRequest]]

_SUBJECTS = Subjects(("mesh", "world"), "a mesh or a world; RenderService renders spheres and gaussians")
_ENGINE = DistanceEngine()


class DistanceService:
    """The methods of `lumigrad.v1.DistanceService`."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def Query(self, frames: QueryFrames, call: Call) -> Iterator[Frame[distance_pb2.QueryReply]]:
        """Ask a world or a mesh, stored or sent along."""
        receiver = Receiver(frames, call)
        spec = receiver.header.spec
        runtime = self._tenants.of(call)
        yield from answer_forward(
            lambda: self._question(spec, call, "spec"), receiver, distance_pb2.QueryReply(), runtime, call
        )

    def Backward(self, frames: BackwardFrames, call: Call) -> Iterator[Frame[distance_pb2.DistanceBackwardReply]]:
        """Differentiate a query that was retained, or one that is computed again."""
        receiver = Receiver(frames, call)
        spec = receiver.header.spec
        exchange = BackwardExchange(receiver, self._tenants.of(call), call)
        yield from exchange.answer(
            lambda: self._question(spec.query, call, "spec.query"),
            (_ENGINE.name,),
            distance_pb2.DistanceBackwardReply(),
        )

    def Field(self, request: distance_pb2.FieldRequest, call: Call) -> Iterator[Frame[distance_pb2.QueryReply]]:
        """Distances at the voxels of a box."""
        call.engine, call.operation = _ENGINE.name, "field"
        runtime = self._tenants.of(call)
        yield from answer_field(request, lambda: source_of(request, _SUBJECTS, runtime, call, ""), runtime, call)

    def Release(self, request: render_pb2.ReleaseRequest, call: Call) -> render_pb2.ReleaseReply:
        """Forget a forward state; no harm if it has gone."""
        self._tenants.of(call).contexts.release(request.context_id)
        return render_pb2.ReleaseReply()

    def _question(self, spec: distance_pb2.DistanceSpec, call: Call, field: str) -> Question:
        """What is asked of whom; `field` is the path of the spec in the request."""
        call.engine = _ENGINE.name
        runtime = self._tenants.of(call)
        source = source_of(spec, _SUBJECTS, runtime, call, field)
        plan = distance_plan(spec, source.outline, runtime.limits, field)
        call.facts["rows"] = plan.count
        task = Task(_ENGINE, plan, field, source.reference)
        return Question(task, source.reference, lambda reader: self._inputs(source, plan, reader, call, field))

    def _inputs(
        self, source: Source, plan: DistancePlan, reader: PayloadReader, call: Call, field: str
    ) -> Callable[[], DistanceInputs]:
        load = source.receive(reader)
        upload = uploader(plan.tensors, reader, self._tenants.machine.transfer, field)
        poses = None if plan.poses is None else reader.read(plan.poses, f"{field}.poses")

        def inputs() -> DistanceInputs:
            content = load()
            with call.times.stage("upload"):
                tensors = upload()
                if source.reference is None:
                    # A forward state keeps the spheres; the scene that came in the same buffer need not stay for them.
                    tensors["spheres"] = tensors["spheres"].clone()
                return DistanceInputs(_posed(world_of(content), poses, field), tensors)

        return inputs


def _posed(world: meshes.World, poses: Array | None, field: str) -> meshes.World:
    """The world with all its obstacles at the poses of this call."""
    if poses is None:
        return world
    with renamed(lambda argument: f"{field}.{argument}"):
        return world.with_poses(dict(enumerate(poses.tolist())))
