"""`mesh_distance`: distances and collision costs as differentiable functions of JAX arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lumigrad.client.base.arrays import summary
from lumigrad.client.client import Client
from lumigrad.client.default import client_of
from lumigrad.client.distances.query import Surroundings, check_rows, environment_numbers, surroundings
from lumigrad.client.jax.arrays import real, shaped
from lumigrad.client.jax.remote import Inputs, JaxCall, compute
from lumigrad.client.operators.call import DISTANCE_OUTPUTS, DistanceCall, chosen
from lumigrad.client.settings.distances import DistanceSemantics, DistanceSettings, Reduction
from lumigrad.client.values.rotations import check_rigid, pose_rows
from lumigrad.client.values.world import Obstacle, Shape, World


class MeshDistances(NamedTuple):
    """Results as in `lumigrad.client.torch.MeshDistances`. Outputs that were not requested are None."""

    cost: jax.Array | None
    distance: jax.Array | None

    def __repr__(self) -> str:
        return summary(type(self).__name__, self._asdict())


class JaxDistanceCall(DistanceCall, JaxCall):
    """See `JaxCall`."""

    def shapes(self, inputs: Inputs) -> dict[str, tuple[int, ...]]:
        """Returns the shape [B, H, S] of each output."""
        return dict.fromkeys(self.outputs, tuple(inputs["spheres"].shape[:3]))


def mesh_distance(
    spheres: Any,
    world: Surroundings | Obstacle | Shape | Sequence[Obstacle | Shape],
    *,
    activation_distance: float = 0.0,
    max_distance: float | None = None,
    sweep: bool = False,
    weight: Any = 1.0,
    semantics: DistanceSemantics = "exact",
    client: Client | str | None = None,
    poses: Any = None,
    environments: Any = None,
    samples: int | None = None,
    speed_metric: bool = False,
    time_step_s: float | None = None,
    reduction: Reduction = "sum",
    outputs: Sequence[str] = DISTANCE_OUTPUTS,
) -> MeshDistances:
    """Computes distances and collision costs of spheres near meshes, boxes and grids on a worker, differentiably.

    This is the JAX version of `lumigrad.client.torch.mesh_distance`, which describes the arguments: spheres
    [B, H, S, 4], [H, S, 4] or [S, 4], centre x y z and radius, metres, or points [..., 3]; poses [I, 7], [I, 3],
    [I, 3, 4] or [I, 4, 4] of all obstacles, object to world (None: the world's poses); environments [B], or one for
    all. A weight that is an array is differentiated.

    All arguments except spheres, poses and an array as weight are static when a function is compiled; the settings are
    those of `lumigrad.client.DistanceSettings`. `outputs` are "cost" and "distance"; omit unused ones.

    Raises:
        InvalidArgument: an argument is wrong; the text names it.
        LumigradError: no worker answered in time, or none has room; JAX may wrap it.

    Example:
        found = jax_functions.mesh_distance(np.zeros((1, 3)), Cuboid((1, 1, 1)), client=client)
        found.distance  # [1], metres
    """
    arguments = locals()
    world = surroundings(world)
    wanted = chosen(outputs, DISTANCE_OUTPUTS)
    array = real("spheres", spheres)
    check_rows(array.shape)
    if array.shape[-1] == 3:
        array = jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, 1)])
    rows = shaped("spheres", array.reshape((1,) * (4 - array.ndim) + array.shape), ("B", "H", "S", 4))
    is_array = isinstance(weight, jax.Array)
    settings = DistanceSettings.of(arguments, **({"weight": 1.0} if is_array else {}))
    numbers = environment_numbers(environments, len(rows))
    call = JaxDistanceCall(
        client=client_of(client),
        world=world,
        settings=settings,
        outputs=wanted,
        environments=numbers,
    )
    inputs = {
        "spheres": rows,
        "poses": None if poses is None else _poses(poses, world),
        "weight": shaped("weight", weight, ()) if is_array else None,
    }
    results = compute(call, inputs)
    shape = array.shape[:-1]
    return MeshDistances(*(results[name].reshape(shape) if name in wanted else None for name in DISTANCE_OUTPUTS))


def _poses(poses: Any, world: Surroundings) -> jax.Array:
    array = real("poses", poses)
    rows: jax.Array = pose_rows("poses", array, len(world) if isinstance(world, World) else None, jnp.stack)
    # Tracers have no values to check.
    if array.ndim == 3 and not isinstance(array, jax.core.Tracer):
        check_rigid("poses", np.asarray(array, np.float64))
    return rows
