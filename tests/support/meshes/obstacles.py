"""Distances of points from obstacles, and their gradients, in float64."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from support.meshes.case import CuboidShape, GridShape, MeshShape, Placed, Shape
from support.meshes.parts import upright
from support.meshes.signs import Signs
from support.meshes.topology import Surveyed, surveyed
from support.meshes.triangles import Feet, closest
from support.rotations import rotations

# The effect of rounding on distances in metres, for shapes of about a metre.
TOLERANCE = 3e-6
ANY = -2


@dataclass(frozen=True)
class Sight:
    """The results of N points: signed distance [N], its gradient [N, 3], closest point [N, 3], face [N].

    The face is -1 for shapes that are not meshes, and `ANY` if several faces share the closest point.

    `gap` [N, 3] is closest point minus point. `sure` [N]: the sign does not depend on rounding; `single` [N]: neither
    does the gradient, because the closest point is unique and not too close.
    """

    distance: Tensor
    gradient: Tensor
    closest: Tensor
    gap: Tensor
    face: Tensor
    sure: Tensor
    single: Tensor


@functools.lru_cache(64)
def survey(shape: MeshShape) -> tuple[Surveyed, Signs]:
    """The data of a mesh that do not depend on the points; cached by the identity of the shape."""
    mesh = surveyed(shape)
    return mesh, Signs(mesh)


def look(shape: Shape, points: Tensor, sign: str = "auto", margin: float = TOLERANCE) -> Sight:
    """Results of points in the frame of the shape; they are not `single` if they change within `margin`."""
    if isinstance(shape, CuboidShape):
        return _look_at_cuboid(shape, points, margin)
    if isinstance(shape, GridShape):
        return _look_at_grid(shape, points, margin)
    return _look_at_mesh(shape, points, sign, margin)


def _look_at_mesh(shape: MeshShape, points: Tensor, sign: str, margin: float) -> Sight:
    simple = False
    if sign == "auto":
        shape, simple = upright(shape)
    mesh, signs = survey(shape)
    size = float(np.ptp(shape.vertices, axis=0).max())
    feet = closest(points, mesh.triangles, margin * size)
    gap = feet.point - points
    inside, sure = _inside(signs, points, feet, ("normals" if simple else "winding") if sign == "auto" else sign)
    side = torch.where(inside, -1.0, 1.0).to(points)
    direction = -gap / feet.distance.clamp_min(1e-300)[:, None] * side[:, None]
    # The direction to the surface is undefined on it; the gradient is the pseudo-normal.
    there = torch.nonzero(feet.distance <= 1e-9 * size).flatten()
    gradient = direction.clone()
    if len(there):
        gradient[there] = torch.nn.functional.normalize(signs.pseudo_normals(feet.at(there)), dim=-1, eps=1e-300)
    single = (feet.rival < 1e-3) & (feet.distance > max(1e-4, margin) * size) & sure
    shared = (feet.shares.amin(-1) < 1e-4) | (feet.rival > 1e-5)
    face = torch.where(shared, ANY, torch.from_numpy(mesh.numbers)[feet.triangle])
    return Sight(side * feet.distance, gradient, feet.point, gap, face, sure, single)


def _inside(signs: Signs, points: Tensor, feet: Feet, sign: str) -> tuple[Tensor, Tensor]:
    certain = torch.ones(len(points), dtype=torch.bool)
    if sign == "unsigned":
        return ~certain, certain
    if sign == "rays":
        return signs.by_rays(points)
    if sign == "winding":
        return signs.by_winding(points)
    return signs.by_normals(points, feet), certain


def _look_at_cuboid(shape: CuboidShape, points: Tensor, margin: float) -> Sight:
    half = torch.tensor(shape.size, dtype=points.dtype) / 2
    over = points.abs() - half
    outside = over.clamp_min(0).norm(dim=-1)
    depth, axis = over.max(-1)
    inside = depth <= 0
    # Inside, the nearest face is that of the axis with the least depth.
    step = torch.where(points >= 0, 1.0, -1.0) * torch.nn.functional.one_hot(axis, 3)
    touched = torch.where(step != 0, step * half, points)
    clamped = torch.maximum(torch.minimum(points, half), -half)
    foot = torch.where(inside[:, None], touched, clamped)
    distance = torch.where(inside, depth, outside)
    away = (points - clamped) / outside.clamp_min(1e-300)[:, None]
    sorted_depths = over.sort(-1).values
    tie = inside & (sorted_depths[:, 2] - sorted_depths[:, 1] < margin)
    single = ~tie & ~((~inside) & (outside < max(1e-4, margin) * float(half.max())))
    none = torch.full((len(points),), -1, dtype=torch.int32)
    gradient = torch.where(inside[:, None], step, away)
    return Sight(distance, gradient, foot, foot - points, none, torch.ones_like(inside), single)


def _look_at_grid(shape: GridShape, points: Tensor, margin: float) -> Sight:
    values = torch.from_numpy(np.asarray(shape.distances, np.float64))
    dims = torch.tensor(values.shape)
    half = (dims - 1).double() * (shape.voxel_size / 2)
    inner = torch.maximum(torch.minimum(points, half), -half)
    place = (inner + half) / shape.voxel_size
    lower = torch.minimum(place.floor().long(), (dims - 2).clamp_min(0))
    share = place - lower
    value, slope = torch.zeros(len(points), dtype=points.dtype), torch.zeros_like(points)
    for corner in np.ndindex(2, 2, 2):
        there = torch.minimum(lower + torch.tensor(corner), dims - 1)
        found = values[there[:, 0], there[:, 1], there[:, 2]]
        parts = torch.stack([share[:, k] if corner[k] else 1 - share[:, k] for k in range(3)], -1)
        value += found * parts.prod(-1)
        for k in range(3):
            others = parts[:, [axis for axis in range(3) if axis != k]].prod(-1)
            slope[:, k] += found * others * (1 if corner[k] else -1) / shape.voxel_size
    beside = points != inner
    away = (points - inner).norm(dim=-1)
    gradient = torch.where(beside, 0.0, slope) + (points - inner) / away.clamp_min(1e-300)[:, None]
    # Between voxels and at the border the slope is discontinuous.
    near = max(1e-4, margin / shape.voxel_size)
    edge = (share - share.round()).abs().amin(-1) < near
    border = ((points.abs() - half).abs() < near * shape.voxel_size).any(-1)
    whole = torch.ones(len(points), dtype=torch.bool)
    none = torch.full((len(points),), -1, dtype=torch.int32)
    distance = value + away
    # The value is taken as the distance to the surface, whatever the slope of the grid.
    foot = points - distance[:, None] * torch.nn.functional.normalize(gradient, dim=-1, eps=1e-300)
    return Sight(distance, gradient, foot, foot - points, none, whole, ~((edge & ~beside.any(-1)) | border))


class Obstacle:
    """A shape with a pose that can be differentiated: [7], position and quaternion of any length."""

    def __init__(self, placed: Placed, pose: Tensor | None = None, margin: float = TOLERANCE) -> None:
        self.placed, self.margin = placed, margin
        self.pose = torch.tensor(placed.pose, dtype=torch.float64) if pose is None else pose

    def rotation(self) -> Tensor:
        """The rotation [3, 3] from the object to the world."""
        return rotations(self.pose[3:])

    @torch.no_grad()
    def look(self, points: Tensor) -> Sight:
        """Results of points in the world, in the world's frame."""
        rotation = self.rotation()
        local = (points - self.pose[:3]) @ rotation
        seen = look(self.placed.shape, local, self.placed.sign, self.margin)
        return replace(
            seen,
            gradient=seen.gradient @ rotation.T,
            closest=seen.closest @ rotation.T + self.pose[:3],
            gap=seen.gap @ rotation.T,
        )

    def distance(self, points: Tensor) -> Tensor:
        """Signed distances, differentiable with respect to the points and the pose."""
        local = (points - self.pose[:3]) @ self.rotation()
        with torch.no_grad():
            seen = look(self.placed.shape, local, self.placed.sign)
        return seen.distance + (seen.gradient * (local - local.detach())).sum(-1)
