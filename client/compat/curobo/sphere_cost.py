"""Costs and distances of spheres with cuRobo's weights and activation distances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from lumigrad.client.base.arguments import number, whole_number
from lumigrad.client.client import Client
from lumigrad.client.compat.curobo.buffers import CollisionBuffer
from lumigrad.client.compat.curobo.errors import curobo_refusals
from lumigrad.client.distances.query import DistanceQuery, Surroundings, environment_numbers, sphere_rows, warn_of_far
from lumigrad.client.settings.distances import DistanceSettings
from lumigrad.client.torch.remote import on_host

_MOST_STEPS = 255


def first(name: str, value: Any) -> float:
    """Returns the first number of a tensor, or a number itself."""
    if isinstance(value, torch.Tensor) and value.numel():
        value = value.detach().reshape(-1)[0]
    return number(name, value)


def settings_of(
    weight: Any,
    activation_distance: Any,
    max_dist: Any,
    *,
    sweep_steps: Any = 0,
    speed_dt: Any = None,
    compute_esdf: bool = False,
) -> DistanceSettings:
    """Returns the settings of a query.

    Args:
        weight: factor on costs.
        activation_distance: the distance at which costs begin, metres.
        max_dist: search radius, metres.
        sweep_steps: the most samples on each half of the way; 0: no sweep.
        speed_dt: seconds between time steps; None: without the speed metric.
        compute_esdf: compute the signed distance instead of a cost.
    """
    steps = whole_number("sweep_steps", int(first("sweep_steps", sweep_steps)), 0, _MOST_STEPS)
    return DistanceSettings(
        semantics="curobo_field" if compute_esdf else "curobo",
        activation_distance=first("activation_distance", activation_distance),
        max_distance=first("max_dist", max_dist),
        sweep=steps > 0,
        samples=steps or None,
        speed_metric=speed_dt is not None,
        time_step_s=None if speed_dt is None else first("speed_dt", speed_dt),
        weight=first("weight", weight),
    )


@dataclass(frozen=True)
class SphereCost:
    """The parameters of a query except the spheres.

    Attributes:
        client: the client that sends the query.
        world: the obstacles.
        settings: the definition of the cost.
        environments: (b,) the environment of each batch row; None: 0 for all.
        return_loss: whether the gradient is multiplied by that of the output, which is otherwise taken to be 1.
    """

    client: Client
    world: Surroundings
    settings: DistanceSettings
    environments: torch.Tensor | None
    return_loss: bool

    def forward(self, ctx: Any, spheres: torch.Tensor, buffers: CollisionBuffer) -> torch.Tensor:
        """Fills the buffers and returns the buffer of costs; computes gradients only if the spheres require them."""
        buffers.check(spheres)
        with_gradient = spheres.requires_grad
        with curobo_refusals():
            rows, axes = sphere_rows(on_host("query_spheres", spheres.detach()))
            warn_of_far(self.world, rows)
            query = DistanceQuery(
                world=self.world,
                spheres=rows,
                axes=axes,
                settings=self.settings,
                outputs=("cost", "gradient") if with_gradient else ("cost",),
                environments=environment_numbers(self.environments, len(rows)),
            )
            found = self.client._asked(query)
        cost = torch.from_numpy(found.cost)
        gradient = torch.from_numpy(found.gradient) if with_gradient else None
        buffers.write(cost, gradient)
        ctx.return_loss = self.return_loss
        if gradient is not None:
            # A copy, because the caller or the next call may overwrite the buffer.
            ctx.save_for_backward(gradient.to(spheres.device, spheres.dtype))
        # The same memory in a new tensor: otherwise autograd would attach the costs of an earlier call to this node.
        return buffers.distance_buffer.detach()


class SphereFunction(torch.autograd.Function):
    """The backward pass of functions whose first argument is the spheres and whose forward pass is `SphereCost`'s."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Returns the gradient of the spheres, and None for all other arguments."""
        gradient: torch.Tensor = ctx.saved_tensors[0]
        if ctx.return_loss:
            gradient = gradient * upstream.to(gradient.device, gradient.dtype)[..., None]
        return gradient, *(None,) * (len(ctx.needs_input_grad) - 1)
