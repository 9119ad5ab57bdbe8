"""Query, Backward and Field of distances on a client's workers: requests to messages, replies to arrays."""

from __future__ import annotations

from google.protobuf.message import Message

from lumigrad.client.base.arrays import Array
from lumigrad.client.base.timings import Gradients
from lumigrad.client.distances.answer import Distances
from lumigrad.client.distances.query import DistanceBackward, DistanceQuery, FieldQuery
from lumigrad.client.settings.distances import DistanceSemantics, DistanceSettings
from lumigrad.client.transport.call import Call
from lumigrad.client.values.world import World
from lumigrad.client.wire.worlds import world_message
from lumigrad.client.workers.attempts import InlineWorld, Source
from lumigrad.client.workers.contexts import Context, Kept
from lumigrad.client.workers.pool import Pool
from lumigrad.client.workers.routing import Route
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import distance_pb2, scene_pb2, tensor_pb2, world_pb2

_SEMANTICS: dict[DistanceSemantics, distance_pb2.DistanceSemantics] = {
    "exact": distance_pb2.DISTANCE_SEMANTICS_EXACT,
    "curobo": distance_pb2.DISTANCE_SEMANTICS_CUROBO,
    "curobo_field": distance_pb2.DISTANCE_SEMANTICS_CUROBO_FIELD,
}
_REDUCTIONS = {"sum": distance_pb2.REDUCTION_SUM, "max": distance_pb2.REDUCTION_MAX}


class RemoteDistances:
    """The distances of a client's workers."""

    def __init__(self, workers: Pool) -> None:
        self._workers = workers
        self.begin = workers.begin

    def query(self, query: DistanceQuery, retain: bool, call: Call, route: Route | None = None) -> Distances:
        """Asks; with `retain` the worker keeps the forward state for backward.

        Args:
            query: what to ask.
            retain: whether to keep it.
            call: of the user.
            route: which worker; None: the world's.
        """
        attempts = self._workers.attempts(query.world, call, route=route)

        def build(payload: PayloadWriter) -> Message:
            return distance_pb2.QueryRequest(spec=_spec(query, attempts.source, payload), retain=retain)

        while True:
            with attempts as worker:
                service = worker.connection.distances
                reply = worker.connection.exchange(service.Query, build, attempts.call)
                arrays = {named.name: reply.reader.read(named.tensor, named.name) for named in reply.header.outputs}
                kept = Kept.of(reply.header.context_id, worker, service.Release, attempts.call.affinity)
                return Distances(self, query, arrays, kept, reply.timings)

    def backward(self, request: DistanceBackward, call: Call, context: Context, release: bool) -> Gradients:
        """Gradients from the forward state, or without one by asking again."""
        attempts = self._workers.attempts(
            request.query.world, call, context=context, to_release=release, any_version=True
        )

        def build(payload: PayloadWriter) -> Message:
            kept = attempts.kept
            spec = distance_pb2.DistanceBackwardSpec(wanted=request.wanted, release=release and kept is not None)
            if kept is None:
                spec.query.CopyFrom(_spec(request.query, attempts.source, payload))
            else:
                spec.context_id = kept.context_id
            for name, array in request.output_gradients.items():
                spec.output_gradients.append(tensor_pb2.NamedTensor(name=name, tensor=payload.add(array)))
            return distance_pb2.DistanceBackwardRequest(spec=spec)

        while True:
            with attempts as worker:
                reply = worker.connection.exchange(worker.connection.distances.Backward, build, attempts.call)
                arrays = {named.name: reply.reader.read(named.tensor, named.name) for named in reply.header.gradients}
                if "spheres" in arrays:
                    arrays["spheres"] = request.query.with_axes(arrays["spheres"])
                return Gradients(arrays, reply.timings)

    def field(self, query: FieldQuery, call: Call) -> Array:
        """Distances [X, Y, Z] at the centres of the voxels of a box, as the worker sends them."""
        world = query.world
        if isinstance(world, World):
            # It may hold grids, and the request is a single message, which has to be short.
            world = self._workers.put(world, call, route=self._workers.route(world))
        attempts = self._workers.attempts(world, call)
        while True:
            with attempts as worker:
                assert attempts.reference is not None
                message = field_message(query, attempts.reference)
                reply = worker.connection.download(worker.connection.distances.Field, message, attempts.call)
                (named,) = reply.header.outputs
                return reply.reader.read(named.tensor, named.name)


def _spec(query: DistanceQuery, source: Source | None, payload: PayloadWriter) -> distance_pb2.DistanceSpec:
    spec = distance_pb2.DistanceSpec(
        spheres=payload.add(query.spheres),
        settings=settings_message(query.settings),
        outputs=query.outputs,
        per_obstacle=query.per_obstacle,
    )
    if query.environments is not None:
        spec.environments.CopyFrom(payload.add(query.environments))
    if query.poses is not None:
        spec.poses.CopyFrom(payload.add(query.poses))
    if isinstance(source, InlineWorld):
        spec.scene.world.CopyFrom(world_message(source.world, source.meshes, payload))
    elif source is not None:
        spec.scene_ref.CopyFrom(source)
    return spec


def settings_message(settings: DistanceSettings) -> distance_pb2.DistanceSettings:
    """What a cost is; what is None stays absent."""
    values = dict(vars(settings))
    values |= {"semantics": _SEMANTICS[settings.semantics], "reduction": _REDUCTIONS[settings.reduction]}
    return distance_pb2.DistanceSettings(time_step=values.pop("time_step_s"), **values)


def field_message(query: FieldQuery, reference: scene_pb2.SceneRef) -> distance_pb2.FieldRequest:
    """Asks for the distances in a box near what is stored."""
    return distance_pb2.FieldRequest(
        scene_ref=reference,
        pose=world_pb2.Pose(values=query.pose.tolist()),
        size=query.size.tolist(),
        voxel_size=query.voxel_size,
        environment=query.environment,
        max_distance=query.max_distance,
        semantics=_SEMANTICS[query.semantics],
    )
