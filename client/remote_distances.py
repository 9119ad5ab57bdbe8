"""Query, Backward and Field of distances through one connection: requests to messages, replies to arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import Message

from lumigrad.client.connection import Connection, Reply
from lumigrad.client.contexts import Discards
from lumigrad.client.distance_messages import field_message, settings_message
from lumigrad.client.distance_query import DistanceBackward, DistanceQuery, Surroundings
from lumigrad.client.distances import Distances
from lumigrad.client.field_query import FieldQuery
from lumigrad.client.gradients import Gradients
from lumigrad.client.mesh import Mesh
from lumigrad.client.named_arrays import Array
from lumigrad.client.retry import Deadline
from lumigrad.client.scene_store import SceneStore
from lumigrad.client.world import World
from lumigrad.client.world_meshes import References
from lumigrad.client.world_messages import world_message
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import distance_pb2, scene_pb2, tensor_pb2

T = TypeVar("T")


@dataclass(frozen=True)
class _Inline:
    """A world that travels with a call, and what its meshes are called."""

    world: World
    meshes: References


_Source = scene_pb2.SceneRef | _Inline


class RemoteDistances:
    """The distances of the worker behind a connection."""

    def __init__(self, connection: Connection, store: SceneStore) -> None:
        self._connection = connection
        self._store = store
        self.discards = Discards(connection, connection.distances.Release)

    def deadline(self, timeout_s: float | None) -> Deadline:
        """Starts the clock of a call."""
        return self._connection.deadline(timeout_s)

    def query(self, query: DistanceQuery, retain: bool, deadline: Deadline) -> Distances:
        """Asks; with `retain` the worker keeps the forward state for backward."""
        self.discards.flush()

        def attempt(source: _Source) -> Reply[Any]:
            def build(payload: PayloadWriter) -> Message:
                return distance_pb2.QueryRequest(spec=_spec(query, source, payload), retain=retain)

            return self._connection.exchange(self._connection.distances.Query, build, deadline)

        reply = self._with_source(query.world, attempt, deadline)
        arrays = {named.name: reply.reader.read(named.tensor, named.name) for named in reply.header.outputs}
        return Distances(self, query, arrays, reply.header.context_id or None, reply.timings)

    def backward(
        self, request: DistanceBackward, deadline: Deadline, context_id: str | None = None, release: bool = False
    ) -> Gradients:
        """Gradients from the context, or without one by asking again."""

        def build(source: _Source | None, payload: PayloadWriter) -> Message:
            spec = distance_pb2.DistanceBackwardSpec(wanted=request.wanted, release=release and context_id is not None)
            if source is None:
                spec.context_id = context_id or ""
            else:
                spec.query.CopyFrom(_spec(request.query, source, payload))
            for name, array in request.output_gradients.items():
                spec.output_gradients.append(tensor_pb2.NamedTensor(name=name, tensor=payload.add(array)))
            return distance_pb2.DistanceBackwardRequest(spec=spec)

        def attempt(source: _Source | None) -> Reply[Any]:
            method = self._connection.distances.Backward
            return self._connection.exchange(method, lambda payload: build(source, payload), deadline)

        if context_id is not None:
            reply = attempt(None)
        else:
            reply = self._with_source(request.query.world, attempt, deadline, any_version=True)
        arrays = {named.name: reply.reader.read(named.tensor, named.name) for named in reply.header.gradients}
        if "spheres" in arrays:
            arrays["spheres"] = request.query.with_axes(arrays["spheres"])
        return Gradients(arrays, reply.timings)

    def field(self, query: FieldQuery, deadline: Deadline) -> Array:
        """Distances [X, Y, Z] at the centres of the voxels of a box, as the worker sends them."""
        world = query.world
        if isinstance(world, World):
            # It may hold grids, and the request is a single message, which has to be short.
            world = self._store.put(world, deadline)

        def attempt(source: _Source) -> Reply[Any]:
            assert not isinstance(source, _Inline)
            message = field_message(query, source)
            return self._connection.download(self._connection.distances.Field, message, deadline)

        reply = self._with_source(world, attempt, deadline)
        (named,) = reply.header.outputs
        return reply.reader.read(named.tensor, named.name)

    def _with_source(
        self, world: Surroundings, attempt: Callable[[_Source], T], deadline: Deadline, *, any_version: bool = False
    ) -> T:
        if isinstance(world, World):
            inline = world
            return self._store.meshes.call(
                inline, lambda meshes: attempt(_Inline(inline, meshes)), deadline, any_version=any_version
            )
        if isinstance(world, Mesh):
            # The mesh as it is here, whatever became of the one that was stored.
            world, any_version = self._store.meshes.resident(world, deadline), True
        return self._store.with_reference(world, attempt, deadline, any_version=any_version)


def _spec(query: DistanceQuery, source: _Source, payload: PayloadWriter) -> distance_pb2.DistanceSpec:
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
    if isinstance(source, _Inline):
        spec.scene.world.CopyFrom(world_message(source.world, source.meshes, payload))
    else:
        spec.scene_ref.CopyFrom(source)
    return spec
