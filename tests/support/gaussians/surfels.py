"""2D Gaussians in float64 torch: all pixels with all Gaussians; autograd differentiates (sensors spec section 7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from support.gaussians.blending import DEPTH_MARGIN, MARGIN, pixel_centres
from support.gaussians.colors import seen_colors
from support.rotations import rotations

LEAST, MOST, END, EXTENT, TILE = 1 / 255, 0.99, 1e-4, 3.33, 16


@dataclass(frozen=True)
class Pinhole:
    """A camera: rotation [3, 3] and translation [3] from the world, intrinsics [4] fx, fy, cx, cy in pixels."""

    rotation: Tensor
    translation: Tensor
    intrinsics: Tensor

    @property
    def matrix(self) -> Tensor:
        """K [3, 3]."""
        fx, fy, cx, cy = self.intrinsics
        zero, one = torch.zeros_like(fx), torch.ones_like(fx)
        return torch.stack([fx, zero, cx, zero, fy, cy, zero, zero, one]).reshape(3, 3)


@dataclass(frozen=True)
class Planes:
    """Surfels in a view: rows [N, 3, 3] from (u, v, 1) to homogeneous pixels, boxes, depths, and normals [N, 3]."""

    rows: Tensor
    centres: Tensor
    radii: Tensor
    depths: Tensor
    normals: Tensor
    visible: Tensor
    sure: Tensor


def _motions(count: int, motion: Tensor | None, moved: int) -> tuple[Tensor, Tensor]:
    """Rotations [N, 3, 3] and translations [N, 3] of the Gaussians to the world."""
    turn = torch.eye(3, dtype=torch.float64).expand(count, 3, 3)
    shift = torch.zeros(count, 3, dtype=torch.float64)
    if motion is None:
        return turn, shift
    turn = torch.cat([motion[:3, :3].expand(moved, 3, 3), turn[moved:]])
    return turn, torch.cat([motion[:3, 3].expand(moved, 3), shift[moved:]])


def planes_of(
    scene: Mapping[str, Tensor], turn: Tensor, camera: Pinhole, size: tuple[int, int], near: float, clip: float
) -> Planes:
    """The surfels' planes, and gsplat's boxes."""
    axes = turn @ rotations(scene["quats"])
    points = scene["means"] @ camera.rotation.T + camera.translation
    in_camera = camera.rotation @ axes
    columns = [in_camera[:, :, k] * scene["scales"][:, k : k + 1] for k in (0, 1)]
    rows = camera.matrix @ torch.stack([*columns, points], -1)
    sign = torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64)
    last = rows[:, 2]
    denominator = (sign * last * last).sum(-1)
    weights = sign / torch.where(denominator == 0, 1.0, denominator)[:, None]
    centres = torch.stack([(weights * rows[:, k] * last).sum(-1) for k in (0, 1)], -1)
    with torch.no_grad():
        spread = centres**2 - torch.stack([(weights * rows[:, k] ** 2).sum(-1) for k in (0, 1)], -1)
        exact = EXTENT * spread.clamp_min(1e-4).sqrt()
        radii = exact.ceil()
        film = torch.tensor(size, dtype=torch.float64)
        in_film = ((centres + radii > 0) & (centres - radii < film)).all(-1)
        visible = (points[:, 2] > near) & (denominator != 0) & (radii > clip).any(-1) & in_film
        sure = ((radii - exact) > 1e-3).all(-1) & ((radii - exact) < 1 - 1e-3).all(-1)
        for edge in (centres - radii, centres + radii):
            off = (edge / TILE - (edge / TILE).round()).abs() * TILE
            sure &= (off > 1e-3).all(-1)
    third = axes[:, :, 2]
    facing = ((third @ camera.rotation.T) * points).sum(-1).detach() < 0
    return Planes(rows, centres, radii, points[:, 2], torch.where(facing[:, None], third, -third), visible, sure)


def reached_by(planes: Planes, pixels: Tensor, tile: int) -> Tensor:
    """Whether pixels [P, N] lie in tiles that the boxes meet."""
    low = ((planes.centres - planes.radii).detach() / tile).floor() * tile
    high = ((planes.centres + planes.radii).detach() / tile).ceil() * tile
    return ((pixels[:, None] >= low) & (pixels[:, None] < high)).all(-1) & planes.visible


def hits_of(planes: Planes, pixels: Tensor) -> Tensor:
    """Homogeneous (u, v) [P, N, 3] in which the rays of pixels [P, 2] meet the planes."""
    x, y = pixels[:, None, 0, None], pixels[:, None, 1, None]
    last = planes.rows[..., 2, :]
    return torch.linalg.cross(x * last - planes.rows[..., 0, :], y * last - planes.rows[..., 1, :])


def render_surfels(
    scene: Mapping[str, Tensor],
    camera: Pinhole,
    width: int,
    height: int,
    *,
    background: Tensor | None = None,
    near: float = 0.01,
    clip: float = 0.0,
    tile: int = TILE,
    degree: int = 0,
    motion: Tensor | None = None,
    moved: int = 0,
) -> dict[str, Any]:
    """The images [H, W, ..] by name, `stable` [H, W], where every branch has a margin, and results of each Gaussian.

    The first `moved` Gaussians have the rigid motion [4, 4].
    """
    pixels = pixel_centres(width, height, 0.5)
    turn, shift = _motions(len(scene["means"]), motion, moved)
    points = (turn @ scene["means"][..., None])[..., 0] + shift
    planes = planes_of({**scene, "means": points}, turn, camera, (width, height), near, clip)
    order = torch.argsort(planes.depths.detach(), stable=True)
    hits = hits_of(planes, pixels)
    met = hits[..., 2] != 0
    uv = hits[..., :2] / torch.where(met, hits[..., 2], 1.0)[..., None]
    plane, disc = (uv * uv).sum(-1), 2 * ((pixels[:, None] - planes.centres) ** 2).sum(-1)
    raw = (scene["opacities"] * torch.exp(-0.5 * torch.minimum(plane, disc)))[:, order]
    shown = (reached_by(planes, pixels, tile) & met)[:, order]
    alpha = raw.clamp_max(MOST)
    eligible = shown & (alpha >= LEAST)
    passing = torch.cumprod(torch.where(eligible, 1 - alpha, 1.0), -1).detach()
    shares = torch.where(eligible & (passing > END), alpha, 0.0)
    before = torch.cumprod(torch.cat([torch.ones_like(shares[:, :1]), 1 - shares], -1), -1)
    weights = shares * before[:, :-1]
    depths, left = planes.depths[order], before[:, -1]
    colors = scene.get("colors")
    if colors is None:
        eye = -torch.linalg.inv(camera.rotation) @ camera.translation
        # Directions are those in the slices' own frames.
        offsets = scene["means"] - (turn.mT @ (eye - shift)[..., None])[..., 0]
        colors = seen_colors(scene["sh"], offsets, torch.zeros(3, dtype=torch.float64), degree)[0]
    color = weights @ colors[order]
    if background is not None:
        color = color + left[:, None] * background
    depth = weights @ depths
    expected = depth / (1 - left).clamp_min(1e-10)
    apart = torch.tril(depths[:, None] - depths[None, :])
    images = {
        "color": color,
        "alpha": 1 - left,
        "transmittance": left,
        "depth": depth,
        "expected_depth": expected,
        "median_depth": _median(weights, before[:, :-1], depths),
        "normals": weights @ planes.normals[order],
        "distortion": 2 * torch.einsum("pi,ij,pj->p", weights, apart, weights),
        "contributors": (shares > 0).sum(-1),
        "stable": _stable(planes, order, raw, plane[:, order], disc[:, order], shown, eligible, passing, before),
    }
    made = {name: value.reshape(height, width, *value.shape[1:]) for name, value in images.items()}
    made["surface_normals"] = normals_of_surface(made["expected_depth"], camera)
    # Normals of pixels with uncertain neighbours are uncertain.
    around = torch.nn.functional.max_pool2d((~made["stable"])[None, None].double(), 3, 1, 1)[0, 0] == 0
    return {**made, "steady": around, "planes": planes, "weights": weights, "order": order}


def _median(weights: Tensor, before: Tensor, depths: Tensor) -> Tensor:
    candidates = (weights > 0) & (before > 0.5)
    last = (candidates * torch.arange(1, weights.shape[1] + 1)).max(-1).values
    return torch.where(last > 0, depths[(last - 1).clamp_min(0)], 0.0)


def _stable(
    planes: Planes,
    order: Tensor,
    raw: Tensor,
    plane: Tensor,
    disc: Tensor,
    shown: Tensor,
    eligible: Tensor,
    passing: Tensor,
    before: Tensor,
) -> Tensor:
    """Pixels [P] at which every branch is decided by a margin."""

    def near(value: Tensor, limit: float) -> Tensor:
        return (value - limit).abs() < MARGIN * limit

    live = passing > END / 2
    doubtful = (shown & near(raw, LEAST)) | (eligible & (near(raw, MOST) | near(passing, END)))
    doubtful |= eligible & near(before[:, 1:], 0.5)
    doubtful |= eligible & ((plane - disc).abs() < 1e-3 * (plane + disc))
    doubtful |= ~planes.sure[order] & (raw > LEAST / 2)
    depths = planes.depths[order].detach()
    gaps = torch.cat([depths[1:] - depths[:-1], torch.ones(1, dtype=torch.float64)])
    doubtful |= eligible & (gaps > 0) & (gaps < DEPTH_MARGIN * depths)
    return ~(doubtful & live).any(-1)


def normals_of_surface(depth: Tensor, camera: Pinhole) -> Tensor:
    """Normals [H, W, 3], in the world, of the surface at depths [H, W]; 0 at the border."""
    height, width = depth.shape
    fx, fy, cx, cy = camera.intrinsics
    pixels = pixel_centres(width, height, 0.5).reshape(height, width, 2)
    rays = torch.stack([(pixels[..., 0] - cx) / fx, (pixels[..., 1] - cy) / fy, torch.ones_like(depth)], -1)
    back = torch.linalg.inv(camera.rotation)
    points = (depth[..., None] * rays - camera.translation) @ back.T
    down, right = points[2:, 1:-1] - points[:-2, 1:-1], points[1:-1, 2:] - points[1:-1, :-2]
    inner = torch.nn.functional.normalize(torch.linalg.cross(down, right), dim=-1, eps=1e-12)
    return torch.nn.functional.pad(inner, (0, 0, 1, 1, 1, 1))
