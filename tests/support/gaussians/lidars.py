"""Spinning lidars in float64 torch: the rays of their returns, and cases for the engines and the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lumigrad.kernels.gaussians import SpinningLidar
from support.gaussians.rays import render_rays
from support.gaussians.sensor_cases import SensorCase, moved, pose, pose_leaves, scene, slices_of
from support.gaussians.sensors import Exposure, Optics, placed_at, pose_at, seen_colors_of

TABLES = {"elevations": "row_elevations", "azimuths": "column_azimuths", "offsets": "row_azimuth_offsets"}


def lidar_rays(tables: Mapping[str, Tensor], exposure: Exposure) -> Tensor:
    """[H, W, 6] origins and directions of all returns in the world."""
    azimuth = tables["azimuths"][None] + tables["offsets"][:, None]
    elevation = tables["elevations"][:, None].expand_as(azimuth)
    level = elevation.cos()
    d = torch.stack([azimuth.cos() * level, azimuth.sin() * level, elevation.sin()], -1)
    columns = azimuth.shape[1]
    time = torch.zeros(columns, dtype=torch.float64)
    if exposure.end is not None:
        time = torch.arange(columns, dtype=torch.float64) / (columns - 1)
    rotation, translation = pose_at(exposure, time)
    back = rotation.mT
    origin = (-back @ translation[..., None])[..., 0].expand_as(d)
    return torch.cat([origin, (back @ d[..., None])[..., 0]], -1)


def reference_of_lidar(case: SensorCase) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Like `sensor_cases.reference`, for a lidar whose field contains all Gaussians."""
    lidar = case.lens
    leaves = {name: value.double().requires_grad_() for name, value in case.scene.items()}
    tables = {name: torch.tensor(getattr(lidar, theirs)).requires_grad_() for name, theirs in TABLES.items()}
    xi = pose_leaves()
    end = None if case.end is None else moved(case.end, xi["camera_pose_end"])
    exposure = Exposure(moved(case.start, xi["camera_pose"]), end, case.shutter, case.row_time)
    middle = torch.full((), 0.5 if end is not None else 0.0, dtype=torch.float64)
    rotation, translation = pose_at(exposure, middle)
    turns, slices = slices_of(case)
    turn, shift = placed_at(slices, middle.expand(len(leaves["means"])))
    centres = (turn @ leaves["means"][..., None])[..., 0] + shift
    depths = (centres @ rotation.T + translation).norm(dim=-1)
    film = {
        "alpha": torch.zeros(case.height, case.width),
        "visible": torch.ones(len(depths), dtype=torch.bool),
        "reached": None,
        "depths": depths,
        "features": torch.cat([seen_colors_of(leaves, exposure, slices), depths[:, None], 1 / depths[:, None]], -1),
    }
    result = render_rays(leaves, Optics("lidar", tables), exposure, lidar_rays(tables, exposure), film, slices)
    return result, {**leaves, **xi, **turns, **{f"lidar_{name}": value for name, value in tables.items()}}


def around(count: int = 120, seed: int = 4, degree: int | None = None, arc: float = math.pi) -> dict[str, Tensor]:
    """Gaussians all around a lidar at the origin, or within an arc to both sides of x, most a bit below it."""
    random = np.random.default_rng(seed)
    azimuth, elevation = random.uniform(-arc, arc, count), random.uniform(-0.35, 0.15, count)
    distance = random.uniform(3.0, 9.0, count)
    level = distance * np.cos(elevation)
    means = np.stack([level * np.cos(azimuth), level * np.sin(azimuth), distance * np.sin(elevation)], -1)
    return {**scene(count, seed, degree), "means": torch.tensor(means, dtype=torch.float32)}


ROWS = np.linspace(0.2, -0.4, 14)
OFFSETS = 0.03 * np.sin(np.arange(14) * 2.0)
TURN = SpinningLidar(
    row_elevations=ROWS, column_azimuths=np.linspace(3.1, -3.1, 90), row_azimuth_offsets=OFFSETS, direction="clockwise"
)
# Azimuths in (-pi, pi], from the front to the left and around.
JUMPING = SpinningLidar(
    row_elevations=ROWS, column_azimuths=np.angle(np.exp(1j * np.linspace(0.01, 2 * math.pi - 0.01, 75)))
)
ARC = SpinningLidar(row_elevations=ROWS, column_azimuths=np.linspace(-0.9, 0.9, 66), row_azimuth_offsets=OFFSETS)
START, END = pose(0.02, -0.03, 0.4, (0.1, -0.05, 0.2)), pose(0.05, 0.01, 0.3, (-0.3, 0.05, 0.1))


def _case(name: str, lidar: SpinningLidar, tensors: Mapping[str, Tensor], **given: Any) -> SensorCase:
    settings = {"response": "ray", "depth_order": "distance", **given.pop("settings", {})}
    width, height = lidar.size
    return SensorCase(name, lidar, tensors, START, settings=settings, width=width, height=height, **given)


_MOVING = {"end": END, "shutter": "left_to_right"}
CASES = {
    case.name: case
    for case in (
        _case("turn", TURN, around(degree=1)),
        _case("jumping", JUMPING, around(), settings={"tile_bounds": "gsplat"}),
        _case("arc", ARC, around(60, arc=1.1)),
        _case("moving", TURN, around(degree=2), **_MOVING),
        _case("moving by steps", ARC, around(60, arc=1.1), row_time="staircase", **_MOVING),
    )
}
