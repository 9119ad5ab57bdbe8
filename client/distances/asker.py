"""Query, Backward and Field of distances on a client's workers: requests to messages, replies to arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import Message

from lumigrad.client.base.arrays import Array
from lumigrad.client.base.timings import Gradients
from lumigrad.client.distances.answer import Distances
from lumigrad.client.distances.messages import field_message, settings_message
from lumigrad.client.distances.query import DistanceBackward, DistanceQuery, FieldQuery, Surroundings
from lumigrad.client.transport.connection import Reply
from lumigrad.client.transport.retry import Deadline
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.world import World
from lumigrad.client.wire.worlds import References, world_message
from lumigrad.client.workers.contexts import Kept
from lumigrad.client.workers.pool import Workers
from lumigrad.client.workers.routing import Wish
from lumigrad.client.workers.scene_store import SceneStore
from lumigrad.client.workers.worker import Worker
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
    """The distances of a client's workers."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def deadline(self, timeout_s: float | None) -> Deadline:
        """Starts the clock of a call."""
        return self._workers.deadline(timeout_s)

    def query(self, query: DistanceQuery, retain: bool, deadline: Deadline, wish: Wish | None = None) -> Distances:
        """Asks; with `retain` the worker keeps the forward state for backward.

        Args:
            query: what to ask.
            retain: whether to keep it.
            deadline: of all of it.
            wish: which worker; None: the world's.
        """
        return self._workers.call(
            wish or query.world, lambda worker: self._answered(worker, query, retain, deadline), deadline
        )

    def _answered(self, worker: Worker, query: DistanceQuery, retain: bool, deadline: Deadline) -> Distances:
        def attempt(source: _Source) -> Reply[Any]:
            def build(payload: PayloadWriter) -> Message:
                return distance_pb2.QueryRequest(spec=_spec(query, source, payload), retain=retain)

            return worker.connection.exchange(worker.connection.distances.Query, build, deadline)

        reply = _with_source(worker.store, query.world, attempt, deadline)
        arrays = {named.name: reply.reader.read(named.tensor, named.name) for named in reply.header.outputs}
        kept = Kept.of(reply.header.context_id, worker, worker.connection.distances.Release)
        return Distances(self, query, arrays, kept, reply.timings)

    def backward(
        self, request: DistanceBackward, deadline: Deadline, kept: Kept | None = None, release: bool = False
    ) -> Gradients:
        """Gradients from the forward state, or without one by asking again.

        Raises:
            ContextLost: the state is gone, perhaps with its worker.
        """
        if kept is not None:
            return self._workers.call_holder(
                kept, lambda worker: self._differentiated(worker, request, deadline, kept, release), deadline
            )
        return self._workers.call(
            request.query.world, lambda worker: self._differentiated(worker, request, deadline), deadline
        )

    def _differentiated(
        self,
        worker: Worker,
        request: DistanceBackward,
        deadline: Deadline,
        kept: Kept | None = None,
        release: bool = False,
    ) -> Gradients:
        def build(source: _Source | None, payload: PayloadWriter) -> Message:
            spec = distance_pb2.DistanceBackwardSpec(wanted=request.wanted, release=release and kept is not None)
            if source is None:
                spec.context_id = kept.context_id if kept is not None else ""
            else:
                spec.query.CopyFrom(_spec(request.query, source, payload))
            for name, array in request.output_gradients.items():
                spec.output_gradients.append(tensor_pb2.NamedTensor(name=name, tensor=payload.add(array)))
            return distance_pb2.DistanceBackwardRequest(spec=spec)

        def attempt(source: _Source | None) -> Reply[Any]:
            method = worker.connection.distances.Backward
            return worker.connection.exchange(method, lambda payload: build(source, payload), deadline)

        if kept is not None:
            reply = attempt(None)
        else:
            reply = _with_source(worker.store, request.query.world, attempt, deadline, any_version=True)
        arrays = {named.name: reply.reader.read(named.tensor, named.name) for named in reply.header.gradients}
        if "spheres" in arrays:
            arrays["spheres"] = request.query.with_axes(arrays["spheres"])
        return Gradients(arrays, reply.timings)

    def field(self, query: FieldQuery, deadline: Deadline) -> Array:
        """Distances [X, Y, Z] at the centres of the voxels of a box, as the worker sends them."""
        return self._workers.call(query.world, lambda worker: _field(worker, query, deadline), deadline)


def _field(worker: Worker, query: FieldQuery, deadline: Deadline) -> Array:
    world = query.world
    if isinstance(world, World):
        # It may hold grids, and the request is a single message, which has to be short.
        world = worker.store.put(world, deadline)

    def attempt(source: _Source) -> Reply[Any]:
        assert not isinstance(source, _Inline)
        message = field_message(query, source)
        return worker.connection.download(worker.connection.distances.Field, message, deadline)

    reply = _with_source(worker.store, world, attempt, deadline)
    (named,) = reply.header.outputs
    return reply.reader.read(named.tensor, named.name)


def _with_source(
    store: SceneStore,
    world: Surroundings,
    attempt: Callable[[_Source], T],
    deadline: Deadline,
    *,
    any_version: bool = False,
) -> T:
    if isinstance(world, World):
        inline = world
        return store.meshes.call(
            inline, lambda meshes: attempt(_Inline(inline, meshes)), deadline, any_version=any_version
        )
    if isinstance(world, Mesh):
        # The mesh as it is here, whatever became of the one that was stored.
        world, any_version = store.meshes.resident(world, deadline), True
    return store.with_reference(world, attempt, deadline, any_version=any_version)


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
