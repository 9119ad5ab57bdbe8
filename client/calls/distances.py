"""The part of `Client` that queries distances."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from lumigrad.client.base.arguments import names, truth
from lumigrad.client.distances.answer import Distances, ask, ask_field, ask_spread
from lumigrad.client.distances.query import (
    DistanceQuery,
    FieldQuery,
    Surroundings,
    environment_numbers,
    sphere_rows,
    surroundings,
    warn_of_far,
)
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.settings.distances import DistanceSemantics, DistanceSettings, Reduction
from lumigrad.client.transport.call import Cancellable
from lumigrad.client.values.handle import scene_facts
from lumigrad.client.values.rotations import IDENTITY
from lumigrad.client.values.world import Obstacle, Shape, VoxelGrid
from lumigrad.client.workers.pool import Pool
from lumigrad.protos.service import DISTANCE_SERVICE

Positive = Literal["outside", "inside"]


class DistanceCalls(Cancellable):
    """Queries distances between spheres and obstacles, collision costs, and fields of distances."""

    _workers: Pool

    def query(
        self,
        world: Surroundings | Obstacle | Shape | Sequence[Obstacle | Shape],
        spheres: Any,
        *,
        outputs: Sequence[str] = ("distance",),
        environments: Any = None,
        activation_distance: float = 0.0,
        max_distance: float | None = None,
        sweep: bool = False,
        samples: int | None = None,
        speed_metric: bool = False,
        time_step_s: float | None = None,
        reduction: Reduction = "sum",
        weight: float = 1.0,
        semantics: DistanceSemantics = "exact",
        positive: Positive = "outside",
        per_obstacle: bool = False,
        retain: bool = False,
        spread: bool = False,
        timeout_s: float | None = None,
    ) -> Distances:
        """Computes distances and collision costs of spheres; see `DistanceSettings` for the cost.

        Args:
            world: a handle from `put`; or a `World` or what it is made from, a shape, an obstacle or a list of them,
                which is sent with the call and not stored; its meshes are stored when they are first needed.
            spheres: [B, H, S, 4], [H, S, 4] or [S, 4]: trajectories, time steps, spheres; centre x y z and radius in
                the world, metres. A negative radius disables a sphere. With 3 instead of 4: points, of radius 0;
                their gradients have 4 columns too.
            outputs: any of "distance", "normal", "closest", "face", "obstacle", "beyond", "cost", "gradient" and
                "exhausted"; see `Distances`.
            environments: [B] the environment of each trajectory, or one for all; None: 0.
            activation_distance: clearance of a sphere's surface below which it has a cost, metres, >= 0.
            max_distance: the search radius around centres, metres; None: unlimited. Penetrations of any depth are
                found.
            sweep: also compute costs along the path to the time steps before and after, half of the way to each.
            samples: maximum number of samples on each half of a sweep, a power of two up to 256; None: 32.
            speed_metric: multiply the costs of time steps between the first and the last by the speed there, in m/s.
            time_step_s: time between time steps, seconds; needed with speed_metric.
            reduction: "sum" or "max" of the costs of samples and obstacles.
            weight: factor on costs.
            semantics: "exact"; "curobo" and "curobo_field" for cuRobo 0.7's behaviour.
            positive: where distances are positive, "outside" or "inside".
            per_obstacle: compute distances for each obstacle separately, with an axis I after S; no costs.
            retain: keep the forward state on the worker, so that `Distances.backward` need not compute it again.
            spread: divide the trajectories among several workers; if there is only one, divide its spheres.
            timeout_s: instead of the client's time-out.

        Raises:
            InvalidArgument: an argument is wrong; the text names it.
            SceneNotFound: the worker has no world of this handle, and the handle has no copy of it.
            LumigradError: no worker answered in time, or none has room; see its subclasses.

        Example:
            world = World([Obstacle(Cuboid((1, 1, 1)), pose=(0, 0, 2))])
            found = client.query(world, [[0, 0, 0, 0.1], [0, 0, 1, 0.1]], outputs=("distance", "closest"))
            found.distance  # [2] of the centres, metres: 1.5, 0.5
        """
        arguments = locals()
        if positive not in ("outside", "inside"):
            raise InvalidArgument.of("positive", f'expected "outside" or "inside", got {positive!r}')
        rows, axes = sphere_rows(spheres)
        near = surroundings(world)
        warn_of_far(near, rows)
        query = DistanceQuery(
            world=near,
            spheres=rows,
            axes=axes,
            settings=DistanceSettings.of(arguments),
            outputs=names("outputs", outputs),
            environments=environment_numbers(environments, len(rows)),
            per_obstacle=truth("per_obstacle", per_obstacle),
            inside=positive == "inside",
        )
        return self._asked(query, retain, spread, timeout_s)

    def _asked(
        self, query: DistanceQuery, retain: bool = False, spread: bool = False, timeout_s: float | None = None
    ) -> Distances:
        """Answers a query, of `query` or of an operator."""
        with self._workers.begin(timeout_s, f"{DISTANCE_SERVICE}/Query", query.facts, self._cancellation) as call:
            start = ask_spread if truth("spread", spread) else ask
            return start(self._workers, query, truth("retain", retain), call)

    def field(
        self,
        world: Surroundings | Obstacle | Shape | Sequence[Obstacle | Shape],
        pose: Any = IDENTITY,
        *,
        size: Any,
        voxel_size: float,
        environment: int = 0,
        max_distance: float | None = None,
        semantics: DistanceSemantics = "exact",
        timeout_s: float | None = None,
    ) -> VoxelGrid:
        """Computes signed distances at the centres of the voxels of a box, positive outside.

        The grid can be an obstacle of another world: `Obstacle(field, pose)` puts it where it was computed.

        Args:
            world: as for `query`; a `World` is stored.
            pose: pose of the centre of the box, object to world: [7], [3], [3, 4] or [4, 4], as of an `Obstacle`.
            size: [3] edges of the box, metres; round(edge / voxel_size) voxels along each, at least 1.
            voxel_size: edge of a voxel, metres.
            environment: the number of the environment.
            max_distance: larger distances outside are clamped to it, metres; None: unlimited.
            semantics: "exact", or "curobo_field" for cuRobo 0.7's behaviour.
            timeout_s: instead of the client's time-out.

        Returns:
            The grid, with distances [X, Y, Z] float32.

        Raises:
            InvalidArgument: an argument is wrong, or nothing is in reach and there is no `max_distance`.
            LumigradError: as for `query`.

        Example:
            grid = client.field(world, size=(2, 2, 2), voxel_size=0.1)
            grid.distances  # [20, 20, 20], metres
        """
        world = surroundings(world)
        method, facts = f"{DISTANCE_SERVICE}/Field", partial(scene_facts, world)
        with self._workers.begin(timeout_s, method, facts, self._cancellation) as call:
            query = FieldQuery(world, pose, size, voxel_size, environment, max_distance, semantics)
            return VoxelGrid(query.outward(ask_field(self._workers, query, call)), query.voxel_size)
