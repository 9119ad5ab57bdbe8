"""The methods of `Client` that query distances."""

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
    """Queries distances between spheres and obstacles, collision costs, and distance fields."""

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
            world: a handle from `put`; or a `World`, a shape, an obstacle or a list of shapes and obstacles, which are
                sent with the call and not stored. Their meshes are stored on first use.
            spheres: [B, H, S, 4], [H, S, 4] or [S, 4]: trajectories, time steps, spheres; centre x y z and radius in
                the world frame, metres. A negative radius disables a sphere. [..., 3]: points, which are spheres of
                radius 0; their gradients have 4 columns too.
            outputs: any of "distance", "normal", "closest", "face", "obstacle", "beyond", "cost", "gradient" and
                "exhausted"; see `Distances`.
            environments: [B] the environment of each trajectory, or one for all; None: 0.
            activation_distance: clearance of a sphere's surface below which the sphere has a cost, metres, >= 0.
            max_distance: the search radius around centres, metres; None: unlimited. Penetrations are found at any
                depth.
            sweep: also compute costs along the path, halfway to the time steps before and after.
            samples: maximum number of samples on each half of a sweep, a power of two up to 256; None: 32.
            speed_metric: multiply the costs of all time steps but the first and the last by the speed there, in m/s.
            time_step_s: time between time steps, seconds; needed with speed_metric.
            reduction: "sum" or "max" over the costs of samples and obstacles.
            weight: factor on the costs.
            semantics: "exact"; or "curobo" or "curobo_field" for cuRobo 0.7's behaviour.
            positive: where distances are positive, "outside" or "inside".
            per_obstacle: compute distances for each obstacle separately, with an axis I after S, and no costs.
            retain: keep the forward state on the worker, so that `Distances.backward` need not recompute it.
            spread: divide the trajectories among several workers; a single trajectory is divided by spheres.
            timeout_s: overrides the client's time-out, seconds.

        Raises:
            InvalidArgument: an argument is wrong; the text names it.
            SceneNotFound: the worker does not have the handle's world, and the handle has no copy of it.
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
        """Answers a query from `query` or from an operator."""
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

        The grid can be an obstacle of another world: `Obstacle(field, pose)` places it where it was computed.

        Args:
            world: as for `query`; a `World` is stored.
            pose: pose of the centre of the box, object to world: [7], [3], [3, 4] or [4, 4], as for an `Obstacle`.
            size: [3] edge lengths of the box, metres; round(edge / voxel_size) voxels along each, at least 1.
            voxel_size: edge length of a voxel, metres.
            environment: the number of the environment.
            max_distance: larger distances outside are clamped to it, metres; None: unlimited.
            semantics: "exact", or "curobo_field" for cuRobo 0.7's behaviour.
            timeout_s: overrides the client's time-out, seconds.

        Returns:
            The grid, with distances [X, Y, Z] float32.

        Raises:
            InvalidArgument: an argument is wrong, or there is neither an obstacle within reach nor a `max_distance`.
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
