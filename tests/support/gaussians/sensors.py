"""Sensors in float64 torch: lenses, shutters, sigma points or Jacobians, and blending by their formulas; autograd
differentiates.

One camera at a time, all Gaussians with all pixels. Fixed points and inverses are iterated until their gradients have
converged as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from support.gaussians.blending import Splats, blend, pixel_centres
from support.gaussians.case import Options
from support.gaussians.colors import seen_colors
from support.rotations import rotations

EXTENT, LEAST_RATIO, TILE, RAY_TILE = 3.33, 2.5e-5, 16, 8


@dataclass(frozen=True)
class Optics:
    """A lens: `kind` is pinhole, opencv, orthographic, fisheye or ftheta; its parameters are tensors by name."""

    kind: str
    parameters: Mapping[str, Tensor]
    # The largest angle, or radius of (X/Z, Y/Z); for "monotone" domains the pinhole's limit.
    limit: float = math.inf
    domain: str = "monotone"
    reference: str = "angle_to_pixel_distance"
    behind: bool = False
    # Pixels, without distortion, at which a pinhole's Jacobian is clamped: the least x and y, and the largest.
    edges: tuple[tuple[float, float], tuple[float, float]] | None = None


@dataclass(frozen=True)
class Exposure:
    """Poses [4, 4] at both ends of the exposure, world to camera."""

    start: Tensor
    end: Tensor | None = None
    shutter: str = "global"
    row_time: str = "continuous"


# The Gaussians [begin, end) and the poses of their slice, object to world.
Slices = Sequence[tuple[int, int, Exposure]]


@dataclass(frozen=True)
class Rules:
    """The settings of sensors, besides those of blending."""

    alpha: float = 0.1
    beta: float = 2.0
    kappa: float = 0.0
    margin: float = 0.1
    require_all: bool = False
    projection_method: str = "unscented"
    depth_order: str = "z"
    tile_bounds: str = "conservative"
    response: str = "picture"
    options: Options = field(default_factory=Options)


def polynomial(coefficients: Tensor, x: Tensor) -> Tensor:
    """sum_i c_i x^i."""
    value = torch.zeros_like(x)
    for c in reversed(coefficients.unbind(-1)):
        value = value * x + c
    return value


def _polar(p: Tensor) -> tuple[Tensor, Tensor]:
    r = torch.sqrt((p[..., :2] ** 2).sum(-1).clamp_min(1e-30))
    return r, torch.atan2(r, p[..., 2])


def _distance(lens: Optics, angle: Tensor) -> Tensor:
    given = lens.parameters
    if lens.kind == "fisheye":
        return angle * polynomial(torch.cat([torch.ones(1, dtype=torch.float64), given["radial"]]), angle**2)
    forward, backward = given["angle_to_pixel_distance"], given["pixel_distance_to_angle"]
    if lens.reference == "angle_to_pixel_distance":
        return polynomial(forward, angle)
    slopes = backward[1:] * torch.arange(1, len(backward))
    x = angle.detach() / backward[1].detach()
    for _ in range(30):
        x = x - (polynomial(backward, x) - angle) / polynomial(slopes, x)
    return x


def _distorted(lens: Optics, p: Tensor) -> tuple[Tensor, Tensor]:
    k, t, s = (lens.parameters[name] for name in ("radial", "tangential", "thin_prism"))
    xy = p[..., :2] / p[..., 2:]
    far = torch.sqrt((xy**2).sum(-1).clamp_min(1e-30))
    inside = far < lens.limit
    if lens.limit < math.inf:
        xy = xy * (far.clamp_max(lens.limit) / far)[..., None]
    x, y = xy.unbind(-1)
    r = x * x + y * y
    one = torch.ones(1, dtype=torch.float64)
    factor = polynomial(torch.cat([one, k[:3]]), r) / polynomial(torch.cat([one, k[3:]]), r)
    image = torch.stack(
        [
            factor * x + 2 * t[0] * x * y + t[1] * (r + 2 * x * x) + s[0] * r + s[1] * r * r,
            factor * y + t[0] * (r + 2 * y * y) + 2 * t[1] * x * y + s[2] * r + s[3] * r * r,
        ],
        -1,
    )
    return image, inside if lens.domain == "monotone" else factor > 0.8


def bent(lens: Optics, p: Tensor) -> Tensor:
    """Directions behind the windshield, if there is one."""
    if "horizontal" not in lens.parameters:
        return p
    d = p / p.norm(dim=-1, keepdim=True)
    across, up = torch.asin(d[..., 0]), torch.asin(d[..., 1])

    def surface(c: Tensor) -> Tensor:
        order, total, at = (math.isqrt(1 + 8 * len(c)) - 3) // 2, torch.zeros_like(across), 0
        for j in range(order + 1):
            total = total + up**j * polynomial(c[at : at + order - j + 1], across)
            at += order - j + 1
        return total

    x, y = torch.sin(surface(lens.parameters["horizontal"])), torch.sin(surface(lens.parameters["vertical"]))
    z = torch.sqrt((1 - x * x - y * y).clamp_min(1e-30))
    return torch.stack([x, y, torch.where(d[..., 2] < 0, -z, z)], -1)


def pixels_of(lens: Optics, points: Tensor) -> tuple[Tensor, Tensor]:
    """Pixels [.., 2] of points [.., 3] in the camera's frame, and which the lens shows."""
    p = bent(lens, points)
    given = lens.parameters
    ahead = (p[..., 2] > 0) | lens.behind
    if lens.kind == "ftheta":
        r, angle = _polar(p)
        image = (_distance(lens, angle.clamp_max(lens.limit)) / r)[..., None] * p[..., :2]
        c, d, e = given["linear"]
        x, y = image.unbind(-1)
        return torch.stack([c * x + d * y, e * x + y], -1) + given["center"], angle < lens.limit
    p = torch.where(ahead[..., None], p, torch.ones_like(p))
    shown = ahead
    if lens.kind == "fisheye":
        r, angle = _polar(p)
        far = _distance(lens, angle.clamp_max(lens.limit))
        image, ahead = (far / r)[..., None] * p[..., :2], ahead & (far > 0)
        shown = ahead & (angle < lens.limit)
    elif lens.kind == "opencv":
        image, good = _distorted(lens, p)
        shown = ahead & good
    else:
        image = p[..., :2] if lens.kind == "orthographic" else p[..., :2] / p[..., 2:]
    pixels = image * given["focal"] + given["center"]
    return torch.where(ahead[..., None], pixels, torch.zeros_like(pixels)), shown


def quaternion_of(rotation: Tensor) -> Tensor:
    """(w, x, y, z) of a rotation [3, 3] by less than half a turn."""
    w = torch.sqrt(1 + rotation.diagonal().sum()) / 2
    skew = rotation - rotation.T
    return torch.stack([w, *(torch.stack([skew[2, 1], skew[0, 2], skew[1, 0]]) / (4 * w))])


def pose_at(exposure: Exposure, time: Tensor) -> tuple[Tensor, Tensor]:
    """Rotations [.., 3, 3] and translations [.., 3] at times [..]."""
    start, end = exposure.start, exposure.end
    if end is None:
        return start[:3, :3].expand(*time.shape, 3, 3), start[:3, 3].expand(*time.shape, 3)
    a, b = quaternion_of(start[:3, :3]), quaternion_of(end[:3, :3])
    cosine = (a * b).sum()
    if float(cosine.detach()) < 0:
        b, cosine = -b, -cosine
    t = time[..., None]
    if float(cosine.detach()) > 1 - 1e-12:
        q = (1 - t) * a + t * b
    else:
        angle = torch.acos(cosine)
        q = (torch.sin((1 - t) * angle) * a + torch.sin(t * angle) * b) / torch.sin(angle)
    return rotations(q), (1 - t) * start[:3, 3] + t * end[:3, 3]


def placed_at(slices: Slices, time: Tensor) -> tuple[Tensor, Tensor]:
    """Rotations [N, .., 3, 3] and translations [N, .., 3] of the Gaussians' slices, in order, at times [N, ..]."""
    still = Exposure(torch.eye(4, dtype=torch.float64))
    parts, at = [], 0
    for begin, end, poses in (*sorted(slices, key=lambda each: each[0]), (len(time), len(time), still)):
        parts += [pose_at(still, time[at:begin]), pose_at(poses, time[begin:end])]
        at = end
    rotations, translations = zip(*parts, strict=True)
    return torch.cat(rotations), torch.cat(translations)


def time_of(exposure: Exposure, pixels: Tensor, width: int, height: int) -> Tensor:
    """The times at which pixels [.., 2] are exposed."""
    rows = exposure.shutter in ("top_to_bottom", "bottom_to_top")
    at, size = (pixels[..., 1], height) if rows else (pixels[..., 0], width)
    backwards = exposure.shutter in ("bottom_to_top", "right_to_left")
    if size == 1:
        return torch.full_like(at, 0.5)
    if exposure.row_time == "continuous":
        at = size - at - 0.5 if backwards else at - 0.5
    else:
        at = size - at.ceil() if backwards else at.floor()
    return at / (size - 1)


def seen(
    lens: Optics, exposure: Exposure, points: Tensor, width: int, height: int, margin: float, slices: Slices
) -> tuple[Tensor, Tensor]:
    """Pixels of points [N, .., 3] of slices, each at the time of its own row, and which are valid."""

    def at(time: Tensor) -> tuple[Tensor, Tensor]:
        rotation, translation = pose_at(exposure, time)
        turn, shift = placed_at(slices, time)
        world = turn @ points[..., None] + shift[..., None]
        pixels, shown = pixels_of(lens, (rotation @ world)[..., 0] + translation)
        return pixels, shown

    def near(pixels: Tensor) -> Tensor:
        size, edge = torch.tensor([width, height]), margin * torch.tensor([width, height])
        return ((pixels >= -edge) & (pixels < size + edge)).all(-1)

    # Beyond the margin, gsplat uses the end of the exposure as the time.
    anywhere = exposure.row_time == "continuous" and lens.domain == "monotone"

    # The limit beyond the exposure within which the time of a point is sought.
    last_time = 2 + margin if anywhere else math.inf

    zeros = torch.zeros(points.shape[:-1], dtype=torch.float64)
    first, first_valid = at(zeros)
    if exposure.end is None:
        return first, first_valid & near(first)
    last, last_valid = at(zeros + 1)
    if not anywhere:
        first_valid, last_valid = first_valid & near(first), last_valid & near(last)
    found = first_valid | last_valid
    pixels, valid = torch.where(first_valid[..., None], first, last), last_valid
    for _ in range(60 if exposure.row_time == "continuous" else 10):
        time = torch.where(found, time_of(exposure, pixels, width, height).clamp(-last_time, last_time), zeros + 1)
        pixels, valid = at(time)
    if anywhere:
        moves = (time_of(exposure, pixels, width, height) - time).abs() > 1e-6
        found = found & ~moves & (time.abs() < last_time)
    return pixels, valid & found & near(pixels)


def sigma_points(means: Tensor, quats: Tensor, scales: Tensor, rules: Rules) -> tuple[Tensor, Tensor, Tensor]:
    """Points [N, 7, 3] and their weights [7] in the mean and in the covariance."""
    spread = rules.alpha**2 * (3 + rules.kappa)
    axes = math.sqrt(spread) * (rotations(quats) * scales[:, None, :]).mT
    points = torch.cat([means[:, None], means[:, None] + axes, means[:, None] - axes], 1)
    mean = torch.full((7,), 0.5 / spread, dtype=torch.float64)
    mean[0] = 1 - 3 / spread
    covariance = mean.clone()
    covariance[0] += 1 - rules.alpha**2 + rules.beta
    return points, mean, covariance


def jacobian_ellipses(scene: Mapping[str, Tensor], lens: Optics, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pixels [N, 2] of the means, covariances [N, 2, 2] by the Jacobian there, and which means [N] the lens shows."""
    points = scene["means"] @ start[:3, :3].T + start[:3, 3]
    pixels, shown = pixels_of(lens, points)
    base = points
    if lens.edges is not None:
        depth = torch.where(points[:, 2:] > 0, points[:, 2:], torch.ones_like(points[:, 2:]))
        at = points[:, :2] / depth
        low, high = ((torch.tensor(edge) - lens.parameters["center"]) / lens.parameters["focal"] for edge in lens.edges)
        base = torch.cat([torch.minimum(torch.maximum(at, low), high) * points[:, 2:], points[:, 2:]], 1)
    image = pixels_of(lens, base)[0]
    rows = [torch.autograd.grad(image[:, k].sum(), base, create_graph=True)[0] for k in (0, 1)]
    across = torch.stack(rows, 1) @ start[:3, :3] @ (rotations(scene["quats"]) * scene["scales"][:, None, :])
    return pixels, across @ across.mT, shown


def render(
    scene: Mapping[str, Tensor],
    lens: Optics,
    exposure: Exposure,
    width: int,
    height: int,
    rules: Rules,
    slices: Slices = (),
) -> dict[str, Any]:
    """The images "color", "alpha", "transmittance", "depth" and "inverse_depth", [H, W, ..]; "stable" pixels; and what
    each Gaussian becomes: "means2d", "conics", "depths", "visible", "radii"."""
    o = rules.options
    if rules.projection_method == "jacobian":
        mean, sharp, shown = jacobian_ellipses(scene, lens, exposure.start)
    else:
        points, w, c = sigma_points(scene["means"], scene["quats"], scene["scales"], rules)
        pixels, valid = seen(lens, exposure, points, width, height, rules.margin, slices)
        mean = (w[:, None] * pixels).sum(1)
        apart = pixels - mean[:, None]
        sharp = (c[:, None, None] * apart[..., None] * apart[..., None, :]).sum(1)
        shown = valid.all(1) if rules.require_all else valid.any(1)
    blurred = sharp + o.eps2d * torch.eye(2, dtype=torch.float64)
    determinant = torch.linalg.det(blurred)
    conics = torch.stack([blurred[:, 1, 1], -blurred[:, 0, 1], blurred[:, 0, 0]], -1) / determinant[:, None]
    half = torch.full((), 0.5 if exposure.end is not None else 0.0, dtype=torch.float64)
    rotation, translation = pose_at(exposure, half)
    turn, shift = placed_at(slices, half.expand(len(mean)))
    centre = ((turn @ scene["means"][..., None])[..., 0] + shift) @ rotation.T + translation
    distance = centre.norm(dim=-1)
    by_distance = rules.depth_order == "distance"
    depths = distance if by_distance else centre[:, 2]
    ranged = distance if by_distance and lens.behind else centre[:, 2]
    visible = shown & (ranged >= o.near) & (ranged <= o.far)
    visible &= (determinant > 0) & (blurred[:, 0, 0] > 0) & (blurred[:, 1, 1] > 0)
    grid = pixel_centres(width, height, 0.5)
    reached, radii, inside = _reach(scene["opacities"], mean, sharp, blurred, grid, width, height, rules)
    visible &= inside
    splats = Splats(
        mean, conics, scene["opacities"], depths,
        torch.cat([seen_colors_of(scene, exposure, slices), depths[:, None], 1 / depths[:, None]], -1), visible,
        torch.zeros_like(visible), reached,
    )  # fmt: skip
    blended = blend(splats, grid, replace(o, semantics="exact"))
    images = blended.features.reshape(height, width, -1)
    through = blended.transmittance.reshape(height, width)
    return {
        "color": images[..., :-2],
        "depth": images[..., -2],
        "inverse_depth": images[..., -1],
        "transmittance": through,
        "alpha": 1 - through,
        "stable": blended.stable.reshape(height, width),
        "means2d": mean,
        "conics": conics,
        "depths": depths,
        "visible": visible,
        "radii": radii * visible[:, None],
        "reached": reached,
        "features": splats.features,
    }


def seen_colors_of(scene: Mapping[str, Tensor], exposure: Exposure, slices: Slices = ()) -> Tensor:
    """Colours [N, D] as seen from the mean of the centres at both ends, by slices at the middle of the exposure."""
    if "sh" not in scene:
        return scene["colors"]
    ends = [exposure.start] if exposure.end is None else [exposure.start, exposure.end]
    eye = sum((-pose[:3, :3].T @ pose[:3, 3] for pose in ends), torch.zeros(3, dtype=torch.float64)) / len(ends)
    turn, shift = placed_at(slices, torch.full((len(scene["means"]),), 0.5, dtype=torch.float64))
    eye = (turn.mT @ (eye - shift)[..., None])[..., 0]
    return seen_colors(scene["sh"], scene["means"], eye, math.isqrt(scene["sh"].shape[1]) - 1)[0]


@torch.no_grad()
def _reach(
    opacities: Tensor, mean: Tensor, sharp: Tensor, blurred: Tensor, grid: Tensor, width: int, height: int, rules: Rules
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Pixels [P, N] within gsplat's tiles (None: all), radii [N, 2], and which Gaussians [N] they leave."""
    ratio = (torch.linalg.det(sharp) / torch.linalg.det(blurred)).clamp_min(LEAST_RATIO)
    gsplat = rules.tile_bounds == "gsplat"
    sharper = gsplat and rules.projection_method == "unscented"
    shown = opacities * (torch.sqrt(ratio) if sharper else 1.0)
    reach = torch.sqrt(2 * torch.log((shown / rules.options.alpha_min).clamp_min(1.0)))
    if gsplat:
        reach = reach.clamp_max(EXTENT)
    radii = (reach[:, None] * torch.sqrt(blurred.diagonal(dim1=1, dim2=2).clamp_min(0))).ceil()
    size = torch.tensor([width, height])
    inside = (shown >= rules.options.alpha_min) & (radii > rules.options.radius_clip).any(-1)
    if gsplat or rules.response == "picture":
        inside &= ((mean + radii > 0) & (mean - radii < size)).all(-1)
    if not gsplat:
        return None, radii, inside
    tile = TILE if rules.response == "picture" else RAY_TILE
    low, high = ((mean - radii) / tile).floor() * tile, ((mean + radii) / tile).ceil() * tile
    return ((grid[:, None] > low) & (grid[:, None] < high)).all(-1), radii, inside
