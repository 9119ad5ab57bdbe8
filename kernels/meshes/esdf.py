"""Signed distances on a grid of voxels (ESDF)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lumigrad.kernels.buffers import empty
from lumigrad.kernels.checks import check, is_number, is_whole
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.meshes.evaluate import BeforeLaunch, evaluate_steps
from lumigrad.kernels.meshes.pose import MAX_COORDINATE, Array, checked_pose, rotations
from lumigrad.kernels.meshes.settings import Settings
from lumigrad.kernels.meshes.shapes import checked_size
from lumigrad.kernels.meshes.world import World
from lumigrad.kernels.steps import Steps, complete

MAX_VOXELS = 2**31 - 1
_VOXELS_AT_ONCE = 2**20
_SEMANTICS = ("exact", "curobo_field")


def esdf(
    world: World,
    box_pose: Sequence[float],
    dims: Sequence[float],
    voxel_size: float,
    *,
    environment: int = 0,
    max_distance: float | None = None,
    semantics: str = "exact",
    device: torch.device | None = None,
    before_launch: BeforeLaunch | None = None,
) -> torch.Tensor:
    """Signed distances at the centres of the voxels of a box.

    Args:
        world: The shapes.
        box_pose: Pose of the box: x y z (metres) qw qx qy qz, box to world.
        dims: Edges of the box, metres; see `voxel_counts`.
        voxel_size: Edge of a voxel, metres.
        environment: Index of the environment of `world`.
        max_distance: Largest distance, as in `Settings`.
        semantics: "exact": positive outside, the voxels symmetric about the box's centre, as in `Grid`.
            "curobo_field": as in cuRobo, positive inside, clamped at -max_distance, and shifted by half a voxel along
            axes with an odd number of voxels.
        device: The device if the world has only cuboids; None: the CPU.
        before_launch: Called before each launch; an exception that it raises ends the call.

    Returns:
        f32 [nx, ny, nz] metres, on the world's device.

    Raises:
        ArgumentError: An argument is invalid; the message names it.
    """
    options: dict[str, Any] = {"environment": environment, "max_distance": max_distance, "semantics": semantics}
    return complete(esdf_steps(world, box_pose, dims, voxel_size, device=device, **options), before_launch)


def esdf_steps(
    world: World,
    box_pose: Sequence[float],
    dims: Sequence[float],
    voxel_size: float,
    *,
    environment: int = 0,
    max_distance: float | None = None,
    semantics: str = "exact",
    device: torch.device | None = None,
) -> Steps[torch.Tensor]:
    """Do what `esdf` does in steps; between them other queries may run on the same thread."""
    if not isinstance(world, World):
        raise ArgumentError("world", "a World", type(world).__name__)
    check(semantics in _SEMANTICS, "semantics", f"one of {_SEMANTICS}", semantics)
    ok = is_whole(environment) and 0 <= environment < world.environments
    check(ok, "environment", f"0 to {world.environments - 1}, the environments of the world", environment)
    settings = Settings(semantics=semantics, max_distance=max_distance)
    voxels = _Voxels.of(box_pose, dims, voxel_size, settings.exact)
    where = world.device or device or torch.device("cpu")
    numbers = torch.tensor([environment], dtype=torch.int32, device=where)
    name = "distance" if settings.exact else "cost"
    values = empty(voxels.counts, torch.float32, where)
    flat = values.view(-1)
    for first in range(0, flat.numel(), _VOXELS_AT_ONCE):
        last = min(first + _VOXELS_AT_ONCE, flat.numel())
        centres = voxels.centres(torch.arange(first, last, device=where))
        spheres = torch.nn.functional.pad(centres.float(), (0, 1))[None, None]
        found = yield from evaluate_steps(spheres, world, settings, environments=numbers, outputs=(name,), checked=True)
        flat[first:last] = found.outputs[name].view(-1)
    return values


def voxel_counts(dims: Sequence[float], voxel_size: float) -> tuple[int, int, int]:
    """The numbers of voxels of `esdf` along x, y and z: round(edge / voxel_size), ties to even, but at least 1.

    Args:
        dims: Edges of the box, metres.
        voxel_size: Edge of a voxel, metres.

    Raises:
        ArgumentError: An edge is not a finite value above 0, or there are more than `MAX_VOXELS` voxels.
    """
    ok = is_number(voxel_size) and 0.0 < float(voxel_size) <= MAX_COORDINATE
    check(ok, "voxel_size", "a finite value above 0, metres", voxel_size)
    edges = checked_size(dims, "dims")
    # round() rejects an infinite quotient; MAX_VOXELS + 1 fails the check below.
    x, y, z = (max(1, round(min(edge / float(voxel_size), MAX_VOXELS + 1.0))) for edge in edges)
    check(x * y * z <= MAX_VOXELS, "voxel_size", f"at most {MAX_VOXELS} voxels in {edges} m", voxel_size)
    return x, y, z


@dataclass(frozen=True, eq=False)
class _Voxels:
    """The voxels of a box; `origin` is the box's centre in units of voxels, relative to the first voxel's centre."""

    counts: tuple[int, ...]
    origin: tuple[float, ...]
    size: float
    pose: Array

    @staticmethod
    def of(box_pose: Sequence[float], dims: Sequence[float], voxel_size: float, symmetric: bool) -> _Voxels:
        pose = np.array([checked_pose(box_pose, "box_pose")])
        counts, size, edges = voxel_counts(dims, voxel_size), float(voxel_size), checked_size(dims, "dims")
        if symmetric:
            return _Voxels(counts, tuple(0.5 * (count - 1) for count in counts), size, pose)
        return _Voxels(counts, tuple(round(0.5 * edge / size) - 0.5 for edge in edges), size, pose)

    def centres(self, numbers: torch.Tensor) -> torch.Tensor:
        """Centres of voxels by index (z varies fastest): [n, 3] float64, world frame, metres."""
        ny, nz = self.counts[1:]
        cells = torch.stack([numbers // (ny * nz), numbers // nz % ny, numbers % nz], dim=-1).double()
        origin, rotation, translation = (
            torch.tensor(values, dtype=torch.float64, device=numbers.device)
            for values in (self.origin, rotations(self.pose)[0].tolist(), self.pose[0, :3].tolist())
        )
        return (cells - origin) * self.size @ rotation.T + translation
