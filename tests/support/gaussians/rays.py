"""Gaussians along rays in float64 torch: all pixels with all Gaussians; autograd differentiates.

The rays of pixels are found through the lens's own projection, whatever it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from support.gaussians.blending import MARGIN, pixel_centres
from support.gaussians.sensors import Exposure, Optics, Slices, bent, pixels_of, placed_at, pose_at, time_of
from support.rotations import rotations

LEAST, MOST, END = 1 / 255, 0.99, 1e-4


def _direction(x: Tensor) -> Tensor:
    """Unit directions [P, 3] that lie towards x [P, 2], at the angle |x| from the axis."""
    angle = torch.sqrt((x**2).sum(-1, keepdim=True).clamp_min(1e-30))
    return torch.cat([torch.sin(angle) / angle * x, torch.cos(angle)], -1)


def _slopes(lens: Optics, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pixels of the directions of x [P, 2], their Jacobian [P, 2, 2], and which the lens shows."""
    at = x.detach().requires_grad_()
    pixels, shown = pixels_of(lens, _direction(at))
    rows = [torch.autograd.grad(pixels[:, i].sum(), at, retain_graph=True)[0] for i in range(2)]
    return pixels.detach(), torch.stack(rows, 1), shown


def directions_of(lens: Optics, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Unit directions [P, 3] of pixels [P, 2] in the camera's frame."""
    back = {name: value for name, value in lens.parameters.items() if not name.startswith(("horizontal", "vertical"))}
    bare = replace(lens, parameters=back)
    focal = back["focal"] if "focal" in back else torch.tensor(42.0, dtype=torch.float64)
    x = (0.8 * (pixels - back["center"]) / focal).detach()
    for _ in range(60):
        found, slopes, shown = _slopes(bare, x)
        step = torch.linalg.solve(slopes, pixels - found)
        x = x + step
        if (step.abs() < 1e-13).all():
            break
    found, slopes, shown = _slopes(bare, x)
    valid = shown & ((found - pixels).abs() < 1e-8).all(-1)
    d = _direction(x - torch.linalg.solve(slopes, pixels_of(bare, _direction(x))[0] - pixels))
    if "horizontal_inverse" in lens.parameters:
        inverse = {name: lens.parameters[f"{name}_inverse"] for name in ("horizontal", "vertical")}
        d = bent(replace(lens, parameters=inverse), d)
    return d, valid


def times_of(lens: Optics, exposure: Exposure, width: int, height: int) -> Tensor:
    """The times at which all pixels [P], or the returns of a lidar, are exposed."""
    if lens.kind == "lidar":
        return (torch.arange(width, dtype=torch.float64) / (width - 1)).repeat(height)
    return time_of(exposure, pixel_centres(width, height, 0.5), width, height)


def rays_of(lens: Optics, exposure: Exposure, width: int, height: int) -> tuple[Tensor, Tensor, Tensor]:
    """Origins and directions [P, 3] of the pixels' rays in the world, and which pixels have one."""
    pixels = pixel_centres(width, height, 0.5)
    origin = torch.zeros(len(pixels), 3, dtype=torch.float64)
    if lens.kind == "orthographic":
        across = (pixels - lens.parameters["center"]) / lens.parameters["focal"]
        origin = torch.cat([across, origin[:, :1]], -1)
        direction = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64).expand(len(pixels), 3)
        valid = torch.ones(len(pixels), dtype=torch.bool)
    else:
        direction, valid = directions_of(lens, pixels)
    time = torch.zeros(len(pixels), dtype=torch.float64)
    if exposure.end is not None:
        time = time_of(exposure, pixels, width, height)
    rotation, translation = pose_at(exposure, time)
    back = rotation.mT
    return (back @ (origin - translation)[..., None])[..., 0], (back @ direction[..., None])[..., 0], valid


def render_rays(
    scene: Mapping[str, Tensor],
    lens: Optics,
    exposure: Exposure,
    rays: Tensor | None,
    film: Mapping[str, Any],
    slices: Slices = (),
) -> dict[str, Any]:
    """The images along rays [H, W, 6], or those of the pixels, of the Gaussians that `film` says are visible."""
    height, width = film["alpha"].shape
    if rays is not None:
        o, d = rays.reshape(-1, 6).split(3, -1)
        valid = torch.ones(len(o), dtype=torch.bool)
    else:
        o, d, valid = rays_of(lens, exposure, width, height)
    axes = rotations(scene["quats"])
    unit = (axes / scene["scales"][:, None, :]).mT
    if slices:
        times, row = torch.unique(times_of(lens, exposure, width, height), return_inverse=True)
        turn, shift = (each[:, row] for each in placed_at(slices, times.expand(len(unit), len(times))))
        local = (turn.mT @ (o - shift)[..., None])[..., 0].swapaxes(0, 1)
        ways = (turn.mT @ d[..., None])[..., 0].swapaxes(0, 1)
    else:
        local, ways = o[:, None], d[:, None].expand(len(d), len(unit), 3)
    start = torch.einsum("nij,pnj->pni", unit, local - scene["means"])
    along = torch.einsum("nij,pnj->pni", unit, ways)
    t = -(start * along).sum(-1) / (along * along).sum(-1)
    closest = start + t[..., None] * along
    raw = scene["opacities"] * torch.exp(-0.5 * (closest * closest).sum(-1))
    third = axes[:, :, 2]
    across = (ways * third).sum(-1)
    if slices:
        third = (turn @ third[:, None, :, None])[..., 0].swapaxes(0, 1)
    normals = torch.where(across.detach()[..., None] > 0, -third, third)
    reached = film["visible"] if film["reached"] is None else film["visible"] & film["reached"]
    shown = (reached & valid[:, None]) & (t >= 0)
    order = torch.argsort(film["depths"].detach(), stable=True)
    raw, shown, t, normals = raw[:, order], shown[:, order], t[:, order], normals[:, order]
    alpha = raw.clamp_max(MOST)
    eligible = shown & (alpha >= LEAST)
    passing = torch.cumprod(torch.where(eligible, 1 - alpha, 1.0), -1).detach()
    shares = torch.where(eligible & (passing > END), alpha, 0.0)
    before = torch.cumprod(torch.cat([torch.ones_like(shares[:, :1]), 1 - shares], -1), -1)
    weights = shares * before[:, :-1]
    near = [(value - limit).abs() < MARGIN * limit for value, limit in ((raw, LEAST), (raw, MOST), (passing, END))]
    turning = (t.abs() < 1e-3) | (across[:, order].abs() < 1e-3 * d.norm(dim=-1, keepdim=True))
    doubtful = (
        (shown & (near[0] | near[1])) | (eligible & near[2]) | (reached[..., order] & (raw > LEAST / 2) & turning)
    )
    features = film["features"][order]
    images = weights @ features
    shape = (height, width)
    return {
        **film,
        "color": images[:, :-2].reshape(*shape, -1),
        "depth": images[:, -2].reshape(shape),
        "inverse_depth": images[:, -1].reshape(shape),
        "alpha": (1 - before[:, -1]).reshape(shape),
        "hit_distance": (weights * t * d.norm(dim=-1, keepdim=True)).sum(-1).reshape(shape),
        "normals": (weights[..., None] * normals).sum(1).reshape(*shape, 3),
        "stable": ~doubtful.any(-1).reshape(shape),
        "weights": weights,
        "order": order,
    }
