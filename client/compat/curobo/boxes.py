"""What a collision checker says about the voxels of a box."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lumigrad.client.base.arrays import Float64
from lumigrad.client.client import Client
from lumigrad.client.compat.curobo.errors import curobo_refusals
from lumigrad.client.compat.curobo.values import VoxelGrid, pose_numbers
from lumigrad.client.distances.query import Surroundings
from lumigrad.client.values.pose import pose_array, rotated


@dataclass(frozen=True)
class BoxQuery:
    """Whom to ask about environment 0.

    Attributes:
        client: the way to the worker.
        world: the obstacles.
        max_distance: search radius, metres.
        device: where results are wanted.
    """

    client: Client
    world: Surroundings
    max_distance: float
    device: torch.device


def field(query: BoxQuery, box: Any, voxel_size: float, dtype: torch.dtype) -> VoxelGrid:
    """Signed distances, positive inside, as cuRobo computes them in a box with pose and dims."""
    pose = pose_numbers("cuboid.pose", box.pose)
    with curobo_refusals():
        found = query.client.field(
            query.world,
            pose,
            size=box.dims,
            voxel_size=voxel_size,
            max_distance=query.max_distance,
            semantics="curobo_field",
        )
    values = torch.from_numpy(-found.distances).reshape(-1).to(query.device, dtype)
    return _grid(query, box, voxel_size, values)


def occupancy(query: BoxQuery, box: Any, voxel_size: float) -> VoxelGrid:
    """Costs of points at the centres of the voxels."""
    empty = _grid(query, box, voxel_size, None)
    assert empty.xyzr_tensor is not None
    points = empty.xyzr_tensor.cpu().clone()
    points[:, 3] = 0.0
    with curobo_refusals():
        found = query.client.query(
            query.world, points, outputs=("cost",), semantics="curobo", max_distance=query.max_distance
        )
    empty.feature_tensor = torch.from_numpy(found.cost).to(query.device)
    return empty


def _grid(query: BoxQuery, box: Any, voxel_size: float, values: torch.Tensor | None) -> VoxelGrid:
    grid = VoxelGrid(getattr(box, "name", "grid"), box.pose, box.dims, float(voxel_size), values)
    centres = _centres(grid)
    radius = np.full((len(centres), 1), grid.voxel_size / 2)
    grid.xyzr_tensor = torch.from_numpy(np.concatenate([centres, radius], axis=1)).to(query.device, torch.float32)
    return grid


def _centres(grid: VoxelGrid) -> Float64:
    """[N, 3] in the world, x slowest; with an odd number of voxels the original is half a voxel off the middle."""
    edge = grid.voxel_size
    axes = [
        (np.arange(1, count + 1) - round(float(length) / (2 * edge))) * edge - edge / 2
        for count, length in zip(grid.shape, grid.dims, strict=True)
    ]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
    pose = pose_array("pose", pose_numbers("pose", grid.pose))
    return rotated(pose[3:] / np.linalg.norm(pose[3:]), points) + pose[:3]
