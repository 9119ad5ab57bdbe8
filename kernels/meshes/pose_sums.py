"""Sums over all rows, per instance, from which the gradients of poses follow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from lumigrad.kernels import _native
from lumigrad.kernels.meshes.engine import Engine
from lumigrad.kernels.meshes.evaluate import State, launches, run
from lumigrad.kernels.meshes.pose import Array, pose_gradient, rotations
from lumigrad.kernels.meshes.settings import Settings
from lumigrad.kernels.meshes.world import World
from lumigrad.kernels.stages import Stages
from lumigrad.kernels.steps import Steps

# Costs at lower speeds, m/s, are not scaled, as in native/meshes/math/cost.h.
_LEAST = 1e-3


def speeds(spheres: torch.Tensor, settings: Settings) -> torch.Tensor:
    """Speeds [B, H, S] of spheres [B, H, S, 4], m/s, or 1 where costs are not scaled.

    Costs are not scaled at the first and the last time step, at speeds below `_LEAST` and, with "exact" semantics,
    where the sphere is off at an adjacent time step.
    """
    scale = torch.ones_like(spheres[..., 0])
    if not settings.speed_metric or spheres.shape[1] < 3:
        return scale
    before, after = spheres[:, :-2], spheres[:, 2:]
    speed = (after[..., :3] - before[..., :3]).norm(dim=-1) / (2.0 * float(settings.time_step_s or 1.0))
    scaled = speed > _LEAST
    if settings.exact:
        scaled &= (before[..., 3] >= 0.0) & (after[..., 3] >= 0.0)
    scale[:, 1:-1] = torch.where(scaled, speed, scale[:, 1:-1])
    return scale


_ROWS_AT_ONCE = 2**20  # 96 bytes each.


@dataclass(frozen=True, eq=False)
class PoseSums:
    """Sums over the evaluated points p = R y + t of each instance, with y in the object's frame; float64.

    Attributes:
        force: [I, 3], the sum of dL/dy.
        moment: [I, 3, 3], the sum of y (dL/dy)^T.
    """

    force: Array
    moment: Array

    @staticmethod
    def none(count: int) -> PoseSums:
        """Sums over no points."""
        return PoseSums(np.zeros((count, 3)), np.zeros((count, 3, 3)))

    def __add__(self, other: PoseSums) -> PoseSums:
        return PoseSums(self.force + other.force, self.moment + other.moment)

    def gradient(self, world: World) -> Array:
        """The gradient dL/d pose, [I, 7]."""
        poses = world.poses
        # y = R^T (p - t), where p is fixed.
        rotation = rotations(poses)
        d_translation = -(rotation @ self.force[:, :, None])[:, :, 0]
        return pose_gradient(poses, d_translation, rotation @ self.moment)


def of_costs(state: State, scale: torch.Tensor, engine: Engine, times: Stages) -> Steps[PoseSums]:
    """Sums over all samples of costs; `scale` is dL/d cost times the weight, [B, H, S]."""
    spheres, world = state.spheres, state.world
    count = len(world.instances)
    if spheres.numel() == 0 or count == 0:
        return PoseSums.none(count)
    # Speeds do not depend on the objects' poses.
    upstream = scale * speeds(spheres, state.settings) if state.settings.speed_metric else scale
    sums = torch.zeros(count, _native.MESH_MOMENT_DOUBLES, dtype=torch.float64, device=spheres.device)
    arrays = {"spheres": spheres, "environments": state.environments, "upstream": upstream}
    settings = state.settings.native_without_speed
    for part in launches(spheres, count, state.settings):
        yield
        times.views.append(run(engine, world.placed(engine), settings, arrays, part, moments=sums))
    return _of_objects(sums.cpu().numpy(), world, engine)


def _of_objects(sums: Array, world: World, engine: Engine) -> PoseSums:
    """Converts the engine's sums, whose points are relative to the centres of meshes, to the objects' frames."""
    force, moment = sums[:, :3], sums[:, 3:].reshape(-1, 3, 3)
    centres = np.zeros((len(sums), 3))
    for index, one in enumerate(world.instances):
        if one.enabled:
            centres[index] = one.shape.solid(engine, one.sign).centre
    return PoseSums(force, moment + centres[:, :, None] * force[:, None, :])


def of_distances(state: State, upstream: torch.Tensor) -> PoseSums:
    """Sums over spheres' centres; `upstream` is dL/d distance [B, H, S] or [B, H, S, I], 0 where nothing was found."""
    assert state.normal is not None and state.instance is not None
    poses, count = state.world.poses, len(state.world.instances)
    if count == 0 or upstream.numel() == 0:
        return PoseSums.none(count)
    device = upstream.device
    origins = torch.from_numpy(poses[:, :3]).to(device)
    centres = state.spheres[..., None, :3] if state.per_instance else state.spheres[..., :3]
    rows = (
        centres.expand(state.normal.shape).reshape(-1, 3),
        state.normal.reshape(-1, 3),
        state.instance.reshape(-1),
        upstream.reshape(-1),
    )
    sums = torch.zeros(count, 12, dtype=torch.float64, device=device)
    for centre, normal, instance, scale in zip(*(torch.split(part, _ROWS_AT_ONCE) for part in rows), strict=True):
        number = instance.clamp(min=0).long()
        force = normal.double() * scale.double()[:, None]
        arm = centre.double() - origins[number]
        outer = (arm[:, :, None] * force[:, None, :]).flatten(1)
        sums.index_add_(0, number, torch.cat([force, outer], dim=1))
    return _of_world(sums.cpu().numpy(), rotations(poses))


def _of_world(sums: Array, rotation: Array) -> PoseSums:
    """Converts sums of forces and moments from the world's frame to the objects' frames."""
    inverse = rotation.swapaxes(1, 2)
    force = (inverse @ sums[:, :3, None])[:, :, 0]
    return PoseSums(force, inverse @ sums[:, 3:].reshape(-1, 3, 3) @ rotation)
