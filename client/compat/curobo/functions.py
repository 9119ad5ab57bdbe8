"""`SdfMeshWarpPy` and `SweptSdfMeshWarpPy`: the autograd functions that cuRobo's cost terms call."""

from __future__ import annotations

from typing import Any

import torch

from lumigrad.client.compat.curobo.buffers import CollisionBuffer
from lumigrad.client.compat.curobo.errors import curobo_refusals
from lumigrad.client.compat.curobo.registry import registered_world
from lumigrad.client.compat.curobo.sphere_cost import SphereCost, SphereFunction, settings_of
from lumigrad.client.default import default_client
from lumigrad.client.torch.remote import outside_graphs


class SdfMeshWarpPy(SphereFunction):
    """The collision cost of spheres at their positions, without sweeps; call `SdfMeshWarpPy.apply(…)`."""

    @staticmethod
    @outside_graphs
    def forward(
        ctx: Any,
        query_spheres: torch.Tensor,
        out_cost: torch.Tensor,
        out_grad: torch.Tensor,
        sparsity_idx: torch.Tensor,
        weight: torch.Tensor,
        activation_distance: torch.Tensor,
        mesh_idx: torch.Tensor,
        mesh_pose_inverse: torch.Tensor,
        mesh_enable: torch.Tensor,
        n_env_mesh: torch.Tensor,
        max_dist: torch.Tensor,
        env_query_idx: torch.Tensor | None = None,
        return_loss: bool = False,
        compute_esdf: bool = False,
    ) -> torch.Tensor:
        """Fills the buffers and returns `out_cost`.

        Args:
            ctx: the context of autograd.
            query_spheres: (b, h, n, 4) centre x y z and radius in the world, metres; a negative radius disables it.
            out_cost: (b, h, n), written.
            out_grad: (b, h, n, 4), of which columns 0 to 2 are written if the spheres require a gradient.
            sparsity_idx: (b, h, n) uint8, written: 1 where the cost is not 0.
            weight: (1,) factor on costs and gradients.
            activation_distance: (1,) the distance from a sphere's surface at which costs begin, metres.
            mesh_idx: (E, M) handles from `register_mesh`, by environment and slot.
            mesh_pose_inverse: (E, M, 8) world to mesh: x y z, unit quaternion w x y z, padding.
            mesh_enable: (E, M); 1 enables a slot, any other value disables it.
            n_env_mesh: (E,) the number of slots in use.
            max_dist: (1,) search radius, metres.
            env_query_idx: (b,) the environment of each batch row; None: 0.
            return_loss: multiply the gradient by that of the output; otherwise that is taken to be 1.
            compute_esdf: return the signed distance, positive inside, instead of a cost.
        """
        with curobo_refusals():
            client = default_client()
            world = registered_world(client, mesh_idx, mesh_pose_inverse, mesh_enable, n_env_mesh)
            settings = settings_of(weight, activation_distance, max_dist, compute_esdf=compute_esdf)
        cost = SphereCost(client, world, settings, env_query_idx, return_loss)
        return cost.forward(ctx, query_spheres, CollisionBuffer(out_cost, out_grad, sparsity_idx))


class SweptSdfMeshWarpPy(SphereFunction):
    """The collision cost of spheres that move from time step to time step; call `SweptSdfMeshWarpPy.apply(…)`."""

    @staticmethod
    @outside_graphs
    def forward(
        ctx: Any,
        query_spheres: torch.Tensor,
        out_cost: torch.Tensor,
        out_grad: torch.Tensor,
        sparsity_idx: torch.Tensor,
        weight: torch.Tensor,
        activation_distance: torch.Tensor,
        speed_dt: torch.Tensor,
        mesh_idx: torch.Tensor,
        mesh_pose_inverse: torch.Tensor,
        mesh_enable: torch.Tensor,
        n_env_mesh: torch.Tensor,
        max_dist: torch.Tensor,
        sweep_steps: int = 1,
        enable_speed_metric: bool = False,
        env_query_idx: torch.Tensor | None = None,
        return_loss: bool = False,
    ) -> torch.Tensor:
        """Fills the buffers and returns `out_cost`. The other arguments are those of `SdfMeshWarpPy`.

        `speed_dt`, (1,), is the time between time steps, seconds, and `sweep_steps` the most samples to take on each
        half of the way, 0 to 255. With `enable_speed_metric` the costs of time steps between the first and the last
        are multiplied by the speed there.
        """
        with curobo_refusals():
            client = default_client()
            world = registered_world(client, mesh_idx, mesh_pose_inverse, mesh_enable, n_env_mesh)
            settings = settings_of(
                weight, activation_distance, max_dist,
                sweep_steps=sweep_steps, speed_dt=speed_dt if enable_speed_metric else None,
            )  # fmt: skip
        cost = SphereCost(client, world, settings, env_query_idx, return_loss)
        return cost.forward(ctx, query_spheres, CollisionBuffer(out_cost, out_grad, sparsity_idx))
