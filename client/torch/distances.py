"""`mesh_distance`: distances as a differentiable torch operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from lumigrad.client.base.arrays import summary
from lumigrad.client.client import Client
from lumigrad.client.default import client_of
from lumigrad.client.distances.query import Surroundings, sphere_rows, surroundings
from lumigrad.client.operators.call import DISTANCE_OUTPUTS, DistanceCall, chosen
from lumigrad.client.settings.distances import DistanceSemantics, DistanceSettings, Reduction
from lumigrad.client.torch.remote import compute, number_on_host, on_host, outside_graphs, refuse_gradients
from lumigrad.client.values.rotations import check_rigid, pose_rows
from lumigrad.client.values.world import Obstacle, Shape, World


class MeshDistances(NamedTuple):
    """The results of a query, on the device of the spheres. Outputs that were not requested are None.

    Attributes:
        cost: [B, H, S] collision costs; see `lumigrad.client.DistanceSettings`.
        distance: [B, H, S] from each centre to the closest surface, metres, positive outside; subtract the radius for
            the sphere's own distance. Where nothing is found, and for disabled spheres: max_distance, or infinity.
    """

    cost: torch.Tensor | None
    distance: torch.Tensor | None

    def __repr__(self) -> str:
        return summary(type(self).__name__, self._asdict())


@outside_graphs
def mesh_distance(
    spheres: torch.Tensor,
    world: Surroundings | Obstacle | Shape | Sequence[Obstacle | Shape],
    *,
    activation_distance: float = 0.0,
    max_distance: float | None = None,
    sweep: bool = False,
    weight: float | torch.Tensor = 1.0,
    semantics: DistanceSemantics = "exact",
    client: Client | str | None = None,
    poses: torch.Tensor | None = None,
    environments: Any = None,
    samples: int | None = None,
    speed_metric: bool = False,
    time_step_s: float | None = None,
    reduction: Reduction = "sum",
    outputs: Sequence[str] = DISTANCE_OUTPUTS,
    spread: bool = False,
) -> MeshDistances:
    """Computes distances and collision costs of spheres near meshes, boxes and grids on a worker, differentiably.

    In exact semantics gradients are true derivatives of costs and distances with respect to spheres (in a sweep also
    those of the time steps before and after), poses and weight. In curobo they are cuRobo's gradients of costs with
    respect to centres. Tensors of any float type and device are accepted; they are transferred as float32.

    Args:
        spheres: [B, H, S, 4], [H, S, 4] or [S, 4]: trajectories, time steps, spheres; centre x y z and radius in the
            world frame, metres. A negative radius disables a sphere. [..., 3]: points, which are spheres of radius 0.
        world: a handle from `Client.put`, which needs no upload; or a `World`, a shape, an obstacle or a list of shapes
            and obstacles. Their meshes are stored on first use.
        activation_distance: clearance of a sphere's surface below which the sphere has a cost, metres, >= 0.
        max_distance: the search radius around centres, metres; None: unlimited. Penetrations are found at any depth.
        sweep: also compute costs along the path, halfway to the time steps before and after.
        weight: factor on the costs, a number or a tensor of one element.
        semantics: "exact"; or "curobo" or "curobo_field" for cuRobo 0.7's behaviour.
        client: the client to use; a target such as "localhost:50051" means the shared client of that target, None the
            shared client of the default target.
        poses: [I, 7] poses of all obstacles for this call, object to world: x y z (metres) and quaternion w x y z,
            which is normalised; or [I, 3] x y z only; or matrices [I, 3, 4] or [I, 4, 4]. None: the world's poses.
        environments: [B] the environment of each trajectory, or one for all; None: 0.
        samples: maximum number of samples on each half of a sweep, a power of two up to 256; None: 32.
        speed_metric: multiply the costs of all time steps but the first and the last by the speed there, in m/s.
        time_step_s: time between time steps, seconds; needed with speed_metric.
        reduction: "sum" or "max" over the costs of samples and obstacles.
        outputs: the outputs to compute, "cost" and "distance"; omit unused ones.
        spread: divide the trajectories among several workers; a single trajectory is divided by spheres.

    Raises:
        InvalidArgument: an argument is wrong; the text names it.
        LumigradError: no worker answered in time, or none has room; the backward pass raises the same.

    Example:
        points = torch.zeros(1, 3, requires_grad=True)
        found = mesh_distance(points, Cuboid((1, 1, 1)), poses=torch.tensor([[0.0, 0.0, 2.0]]), client=client)
        found.distance.sum().backward()
        points.grad  # [1, 3]
    """
    arguments = locals()
    refuse_gradients(activation_distance=activation_distance, max_distance=max_distance, time_step_s=time_step_s)
    world = surroundings(world)
    rows = on_host("spheres", spheres)
    array, axes = sphere_rows(rows)
    if rows.shape[-1] == 3:
        rows = torch.nn.functional.pad(rows, (0, 1))
    tensors = {
        "spheres": rows.reshape(array.shape),
        "poses": None if poses is None else _poses(poses, world),
        "weight": number_on_host("weight", weight) if isinstance(weight, torch.Tensor) else None,
    }
    call = DistanceCall(
        client_of(client),
        world,
        DistanceSettings.of(arguments),
        chosen(outputs, DISTANCE_OUTPUTS),
        environments,
        spread,
    )
    results = compute(call, tensors)
    device = spheres.device if isinstance(spheres, torch.Tensor) else torch.device("cpu")
    shape = array.shape[3 - axes : 3]
    on_device = {name: tensor.reshape(shape).to(device) for name, tensor in results.items()}
    return MeshDistances(on_device.get("cost"), on_device.get("distance"))


def _poses(poses: Any, world: Surroundings) -> torch.Tensor:
    tensor = on_host("poses", poses)
    rows: torch.Tensor = pose_rows("poses", tensor, len(world) if isinstance(world, World) else None, torch.stack)
    if tensor.ndim == 3:
        check_rigid("poses", tensor.detach().double().numpy())
    return rows
