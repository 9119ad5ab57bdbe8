"""Makes distance queries on workers, and holds their results and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from lumigrad.client.base.arguments import names, truth
from lumigrad.client.base.arrays import Array
from lumigrad.client.base.timings import Gradients, Timings
from lumigrad.client.distances.query import DistanceBackward, DistanceQuery, FieldQuery, field_message, fill_spec
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.transport.call import Call
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.world import World
from lumigrad.client.workers.attempts import RoutedAttempts, Source
from lumigrad.client.workers.mesh_updates import Versions
from lumigrad.client.workers.pool import Pool
from lumigrad.client.workers.result import Result, added, portions, slowest, together
from lumigrad.client.workers.routing import Route
from lumigrad.client.workers.worker import Kept
from lumigrad.protos.service import DISTANCE_SERVICE
from lumigrad.protos.tensors import ALIGNMENT, PayloadWriter
from lumigrad.v1 import distance_pb2


class Distances(Result):
    """The results of a query, as items and as attributes; only requested outputs are present.

    From the centre to the closest obstacle: `distance` [B, H, S], metres, positive outside unless requested otherwise
    (subtract the radius for the sphere's own distance); `normal` [B, H, S, 3], the unit vector that points out of the
    obstacle, world frame; `closest` [B, H, S, 3], the closest point of the obstacle's surface, world frame; `face`
    int32 [B, H, S], the triangle of a mesh; `obstacle` int32 [B, H, S], the obstacle's index in the world; `beyond`
    bool [B, H, S], whether nothing was found within max_distance and the centre is outside. For the sphere: `cost`
    [B, H, S]; `gradient` [B, H, S, 4] of the sum of all costs with respect to the spheres; `exhausted` bool [B, H, S],
    whether half of a sweep found no contact but ran out of samples before it was proven free.

    Where nothing is found, and for disabled spheres, `distance` is max_distance or infinity, `normal` is 0, `closest`
    is the centre, and `face` and `obstacle` are -1. Arrays are float32 unless stated otherwise. Axes that the spheres
    did not have are absent; with per_obstacle there is an axis I of obstacles after S.

    Attributes:
        timings: the timings of the call.
        query: the query.
    """

    _advice: ClassVar[str] = "name what you need in query(outputs=…)"

    def __init__(
        self,
        workers: Pool,
        query: DistanceQuery,
        arrays: Mapping[str, Array],
        kept: Kept | None,
        timings: Timings,
        meshes: Versions = (),
    ) -> None:
        """Stores results; `arrays` are as the worker sent them: [B, H, S, ...], positive outside.

        `meshes` are those that the stored world of the query showed.
        """
        shaped = {name: query.with_axes(array) for name, array in arrays.items()}
        if query.inside and "distance" in shaped:
            shaped["distance"] = -shaped["distance"]
        super().__init__(workers, query, shaped, kept, timings)
        self._meshes = meshes

    @property
    def query(self) -> DistanceQuery:
        """The query."""
        query: DistanceQuery = self.request
        return query

    def backward(
        self,
        cost: Any = None,
        *,
        distance: Any = None,
        wanted: Sequence[str] = ("spheres",),
        release: bool = False,
        timeout_s: float | None = None,
    ) -> Gradients:
        """Computes the gradients of a loss from its gradients with respect to costs, distances or both.

        Uses the forward state that the worker kept; if it is missing or was evicted, the worker recomputes it.

        Args:
            cost: dL/dcost, with the shape of the output, even if the output was not requested.
            distance: dL/ddistance, with the shape of the output, even if the output was not requested; in exact only.
            wanted: any of "spheres", "poses" (of all obstacles) and "weight"; in curobo not "poses".
            release: free the forward state on the worker afterwards.
            timeout_s: overrides the client's time-out, seconds.

        Returns:
            The gradients by name, float32, shaped as their inputs.

        Raises:
            InvalidArgument: no gradient was passed, one has the wrong shape, or the semantics have no such derivative.
            LumigradError: no worker answered in time, or none has room.

        Example:
            found = client.query(world, [[0, 0, 1, 0.1]], retain=True)
            gradients = found.backward(distance=np.ones(1), wanted=("spheres", "poses"), release=True)
            gradients.spheres  # [1, 4]
        """
        method = f"{DISTANCE_SERVICE}/Backward"
        with self._workers.begin(timeout_s, method, self.query.facts, self._cancellation) as call:
            given = {name: value for name, value in (("cost", cost), ("distance", distance)) if value is not None}
            if not given:
                raise InvalidArgument.of("cost", "expected at least one of cost and distance, got none")
            upstream: dict[str, Array] = {
                name: self.query.without_axes(name, value, self.get(name)) for name, value in given.items()
            }
            if self.query.inside and "distance" in upstream:
                upstream["distance"] = -upstream["distance"]
            request = DistanceBackward(upstream, names("wanted", wanted))
            return self._differentiated(request, call, truth("release", release))

    def _differentiated(self, request: DistanceBackward, call: Call, release: bool) -> Gradients:
        """Does the same as `backward`, for a given request and a call that has already begun."""
        query = self.query
        blank = distance_pb2.DistanceBackwardRequest(spec=distance_pb2.DistanceBackwardSpec(wanted=request.wanted))

        def again(spec: distance_pb2.DistanceBackwardSpec, source: Source | None, payload: PayloadWriter) -> None:
            fill_spec(spec.query, query, source, payload)

        # Gradients of poses have an unknown size, because the number of obstacles is unknown here.
        most = math.inf if "poses" in request.wanted else query.spheres.nbytes + ALIGNMENT * len(request.wanted)
        upstream = request.output_gradients
        known = _known_world(query)
        # A stored world shows its meshes as they are now.
        moved = None if known is None else self._workers.mesh_updates.as_then(known, self._meshes)
        subject = query.world if moved is None else moved
        reply = self._differentiate("distances", subject, blank, again, upstream, call, release, most)
        arrays = {named.name: reply.reader.read(named.tensor, named.name) for named in reply.header.gradients}
        if "spheres" in arrays:
            arrays["spheres"] = query.with_axes(arrays["spheres"])
        return Gradients(arrays, reply.timings)


class SpreadDistances(Distances):
    """The results of a query that was divided among workers: concatenates outputs and combines gradients."""

    _parts: Sequence[Distances]

    def __init__(self, workers: Pool, query: DistanceQuery, parts: Sequence[Distances], axis: int) -> None:
        """Joins the results of parts of `query`, each [B, H, S, ...] with distances positive outside."""
        arrays = {name: np.concatenate([part[name] for part in parts], axis) for name in parts[0]}
        super().__init__(workers, query, arrays, None, slowest([part.timings for part in parts]))
        self._parts = parts
        self._axis = axis

    def _differentiated(self, request: DistanceBackward, call: Call, release: bool) -> Gradients:
        """Sums the gradients of all parts; gradients of spheres are concatenated."""
        counts = [part.query.spheres.shape[self._axis] for part in self._parts]
        bounds = np.cumsum(counts)[:-1]
        pieces = {name: np.split(array, bounds, self._axis) for name, array in request.output_gradients.items()}
        asks: list[Callable[[], Gradients]] = []
        for number, part in enumerate(self._parts):
            upstream = {name: np.ascontiguousarray(arrays[number]) for name, arrays in pieces.items()}
            piece = replace(request, output_gradients=upstream)
            asks.append(partial(part._differentiated, piece, call, release))
        whole = added(together(asks), (), ("spheres",), self._axis)
        arrays = dict(whole)
        if "spheres" in arrays:
            arrays["spheres"] = self.query.with_axes(arrays["spheres"])
        return Gradients(arrays, whole.timings)


def ask(workers: Pool, query: DistanceQuery, retain: bool, call: Call, route: Route | None = None) -> Distances:
    """Makes a query on the world's worker, or along `route`; with `retain` the worker keeps the forward state."""
    attempts = RoutedAttempts(workers, query.world, call, route=route)
    known = _known_world(query)
    meshes = () if known is None else workers.mesh_updates.versions(known)

    def build(payload: PayloadWriter) -> distance_pb2.QueryRequest:
        message = distance_pb2.QueryRequest(retain=retain)
        fill_spec(message.spec, query, attempts.source, payload)
        return message

    while True:
        with attempts as worker:
            service = worker.connection.distances
            reply = worker.connection.exchange(service.Query, build, attempts.call, query.most_reply_bytes)
            arrays = {named.name: reply.reader.read(named.tensor, named.name) for named in reply.header.outputs}
            state = reply.header.context_id
            kept = Kept(state, service.Release, attempts.call.affinity, worker) if state else None
            return Distances(workers, query, arrays, kept, reply.timings, meshes)


def _known_world(query: DistanceQuery) -> World | None:
    """Returns the client's copy of the stored world of a query."""
    world = query.world.scene if isinstance(query.world, SceneHandle) else None
    return world if isinstance(world, World) else None


def ask_field(workers: Pool, query: FieldQuery, call: Call) -> Array:
    """Queries distances [X, Y, Z] at the centres of the voxels of a box; returns the worker's values unchanged."""
    world = query.world
    if isinstance(world, World):
        # The world may contain grids that exceed the size of the request, which is a single message.
        world = workers.put(world, call, route=workers.route(world))
    attempts = RoutedAttempts(workers, world, call)
    while True:
        with attempts as worker:
            assert attempts.reference is not None
            message = field_message(query, attempts.reference)
            reply = worker.connection.download(worker.connection.distances.Field, message, attempts.call)
            (named,) = reply.header.outputs
            return reply.reader.read(named.tensor, named.name)


def ask_spread(workers: Pool, query: DistanceQuery, retain: bool, call: Call) -> Distances:
    """Divides the trajectories, or the spheres of a single one, among workers and queries them concurrently."""
    trajectories, _, spheres, _ = query.spheres.shape
    axis = 0 if trajectories > 1 else 2
    routes = workers.spread(query.world, trajectories if axis == 0 else spheres)
    if len(routes) < 2:
        return ask(workers, query, retain, call)
    asks: list[Callable[[], Distances]] = []
    for share, route in zip(portions(query.spheres.shape[axis], len(routes)), routes, strict=True):
        rows = np.ascontiguousarray(query.spheres[share] if axis == 0 else query.spheres[:, :, share])
        environments = query.environments
        if environments is not None and axis == 0:
            environments = environments[share]
        part = replace(query, spheres=rows, environments=environments, axes=3, inside=False)
        asks.append(partial(ask, workers, part, retain, call, route))
    return SpreadDistances(workers, query, together(asks), axis)
