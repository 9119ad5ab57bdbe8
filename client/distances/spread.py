"""A query whose spheres several workers share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from lumigrad.client.base.timings import Gradients
from lumigrad.client.distances.answer import Distances
from lumigrad.client.distances.asker import RemoteDistances
from lumigrad.client.distances.query import DistanceBackward, DistanceQuery
from lumigrad.client.transport.call import Call
from lumigrad.client.workers.pool import Pool
from lumigrad.client.workers.spread import added, portions, slowest, together


class SpreadDistances(Distances):
    """As `Distances`: the answers of its parts, one after the other, and the sum of their gradients."""

    def __init__(self, distances: RemoteDistances, query: DistanceQuery, parts: Sequence[Distances], axis: int) -> None:
        """Takes answers to parts of `query`, each [B, H, S, ...] with positive distances outside."""
        arrays = {name: np.concatenate([part[name] for part in parts], axis) for name in parts[0]}
        super().__init__(distances, query, arrays, None, slowest([part.timings for part in parts]))
        self._parts = parts
        self._axis = axis

    def release(self) -> None:
        """Lets the workers forget the forward state; backward still works, by computing it again."""
        for part in self._parts:
            part.release()

    def differentiated(self, request: DistanceBackward, call: Call, release: bool) -> Gradients:
        """The sum of what each part's worker answers; of spheres, one after the other."""
        counts = [part.query.spheres.shape[self._axis] for part in self._parts]
        bounds = np.cumsum(counts)[:-1]
        pieces = {name: np.split(array, bounds, self._axis) for name, array in request.output_gradients.items()}
        asks: list[Callable[[], Gradients]] = []
        for number, part in enumerate(self._parts):
            upstream = {name: np.ascontiguousarray(arrays[number]) for name, arrays in pieces.items()}
            piece = replace(request, query=part.query, output_gradients=upstream)
            asks.append(partial(part.differentiated, piece, call, release))
        whole = added(together(asks), (), ("spheres",), self._axis)
        arrays = dict(whole)
        if "spheres" in arrays:
            arrays["spheres"] = request.query.with_axes(arrays["spheres"])
        return Gradients(arrays, whole.timings)


def query_spread(
    distances: RemoteDistances, workers: Pool, query: DistanceQuery, retain: bool, call: Call
) -> Distances:
    """Asks each worker for its share of the trajectories, or if there is one, of its spheres, at the same time."""
    trajectories, _, spheres, _ = query.spheres.shape
    axis = 0 if trajectories > 1 else 2
    routes = workers.spread(query.world, trajectories if axis == 0 else spheres)
    if len(routes) < 2:
        return distances.query(query, retain, call)
    asks: list[Callable[[], Distances]] = []
    for share, route in zip(portions(query.spheres.shape[axis], len(routes)), routes, strict=True):
        rows = np.ascontiguousarray(query.spheres[share] if axis == 0 else query.spheres[:, :, share])
        environments = query.environments
        if environments is not None and axis == 0:
            environments = environments[share]
        part = replace(query, spheres=rows, environments=environments, axes=3, inside=False)
        asks.append(partial(distances.query, part, retain, call, route))
    return SpreadDistances(distances, query, together(asks), axis)
