"""One cost query as cuRobo makes it: into the caller's buffers, with the gradient found on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lumigrad.client.client import Client
from lumigrad.client.compat.curobo.buffers import Buffers
from lumigrad.client.compat.curobo.errors import curobo_refusals
from lumigrad.client.distance_query import DistanceQuery, Surroundings, environment_numbers, sphere_rows
from lumigrad.client.distance_settings import DistanceSettings
from lumigrad.client.torch.host import on_host


@dataclass(frozen=True)
class SphereCost:
    """All of a query but the spheres.

    Attributes:
        client: the way to the worker.
        world: what spheres may collide with.
        settings: what a cost is.
        environments: (b,) the environment of each batch row; None: 0 for all.
        return_loss: the gradient is multiplied by that of the output, instead of taking that to be 1.
    """

    client: Client
    world: Surroundings
    settings: DistanceSettings
    environments: torch.Tensor | None
    return_loss: bool

    def forward(self, ctx: Any, spheres: torch.Tensor, buffers: Buffers) -> torch.Tensor:
        """Fills the buffers and returns the costs in that of them; gradients are found only if spheres require them."""
        buffers.check(spheres)
        with_gradient = spheres.requires_grad
        with curobo_refusals():
            rows, axes = sphere_rows(on_host("query_spheres", spheres.detach()))
            query = DistanceQuery(
                world=self.world,
                spheres=rows,
                axes=axes,
                settings=self.settings,
                outputs=("cost", "gradient") if with_gradient else ("cost",),
                environments=environment_numbers(self.environments, len(rows)),
            )
            found = self.client.ask(query)
        cost = torch.from_numpy(found.cost)
        gradient = torch.from_numpy(found.gradient) if with_gradient else None
        buffers.write(cost, gradient)
        ctx.return_loss = self.return_loss
        if gradient is not None:
            # A copy of its own: the buffer belongs to the caller, and to the next call.
            ctx.save_for_backward(gradient.to(spheres.device, spheres.dtype))
        # The same memory, but another tensor: autograd would lead the costs of an earlier call here.
        return buffers.cost.detach()


def backward(ctx: Any, upstream: torch.Tensor) -> torch.Tensor:
    """The gradient of the spheres."""
    gradient: torch.Tensor = ctx.saved_tensors[0]
    if not ctx.return_loss:
        return gradient
    scaled: torch.Tensor = gradient * upstream.to(gradient.device, gradient.dtype)[..., None]
    return scaled
