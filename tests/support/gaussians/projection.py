"""A reference of projection in float64 torch: means, Jacobians, covariances, and which depend on rounding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from support.gaussians.case import Options

# Within this distance of a branch, float32 may take the other branch.
BRINK = 1e-5


@dataclass(frozen=True)
class Camera:
    """A camera as tensors, any of which may require gradients.

    `projection` [4, 4] (column vectors) is Inria's, whose means do not come from the intrinsics.
    """

    rotation: Tensor
    translation: Tensor
    intrinsics: Tensor
    model: str
    distortion: tuple[float, ...]
    width: int
    height: int
    eye: Tensor
    projection: Tensor | None = None
    fov_margin: float = 0.15


@dataclass(frozen=True)
class Projected:
    """Means [N, 3] in the camera's frame, [N, 2] in pixels; Jacobian [N, 2, 3]; visible and undecided ones [N]."""

    points: Tensor
    means2d: Tensor
    jacobian: Tensor
    visible: Tensor
    undecided: Tensor


def covariances_of(quats: Tensor, scales: Tensor, *, normalised: bool) -> Tensor:
    """[N, 3, 3] from w, x, y, z and scales (spec section 1.2); a quaternion is normalised or used unchanged."""
    if normalised:
        quats = quats / torch.linalg.vector_norm(quats, dim=-1, keepdim=True)
    w, vector = quats[..., :1], quats[..., 1:]
    identity = torch.eye(3, dtype=quats.dtype)
    three = vector[..., None, :].expand(*vector.shape, 3)
    cross = torch.linalg.cross(identity.expand_as(three), three)
    squares = (vector * vector).sum(-1)[..., None, None]
    outer = vector[..., :, None] * vector[..., None, :]
    # I + 2 w [v] + 2 [v]^2, and [v]^2 = v v^T - |v|^2.
    rotation = identity + 2 * w[..., None] * cross + 2 * (outer - squares * identity)
    factor = rotation * scales[..., None, :]
    return factor @ factor.transpose(-1, -2)


def symmetric(six: Tensor) -> Tensor:
    """[.., 3, 3] from xx, xy, xz, yy, yz, zz."""
    xx, xy, xz, yy, yz, zz = six.unbind(-1)
    rows = [torch.stack(row, -1) for row in ((xx, xy, xz), (xy, yy, yz), (xz, yz, zz))]
    return torch.stack(rows, -2)


def distorted(uv: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """OpenCV's Brown-Conrady map of (X/Z, Y/Z) [.., 2]; coefficients k1 k2 p1 p2 k3 k4 k5 k6, missing ones 0."""
    k1, k2, p1, p2, k3, k4, k5, k6 = (*coefficients, *[0.0] * (8 - len(coefficients)))
    u, v = uv.unbind(-1)
    square = u * u + v * v
    radial = (1 + square * (k1 + square * (k2 + square * k3))) / (1 + square * (k4 + square * (k5 + square * k6)))
    return torch.stack(
        [
            u * radial + 2 * p1 * u * v + p2 * (square + 2 * u * u),
            v * radial + p1 * (square + 2 * v * v) + 2 * p2 * u * v,
        ],
        -1,
    )


def unfolded_radius_squared(coefficients: tuple[float, ...]) -> float:
    """The squared radius up to which the radial distortion is monotonic; infinite if it always is."""
    k1, k2, _, _, k3, k4, k5, k6 = (*coefficients, *[0.0] * (8 - len(coefficients)))
    above, below = np.polynomial.Polynomial([1, k1, k2, k3]), np.polynomial.Polynomial([1, k4, k5, k6])
    square = np.polynomial.Polynomial([0, 1])
    # The sign of d/dr of r above(r^2) / below(r^2).
    slope = (above + 2 * square * above.deriv()) * below - 2 * square * above * below.deriv()
    found = [root.real for poly in (slope, below) for root in poly.roots() if abs(root.imag) < 1e-12 and root.real > 0]
    return min(found, default=float("inf"))


def _limits(camera: Camera) -> tuple[Tensor, Tensor]:
    """The bounds to which X/Z and Y/Z are clamped in the Jacobian, [2] each (spec section 0)."""
    fx, fy, cx, cy = camera.intrinsics.unbind(-1)
    width, height = camera.width, camera.height
    share = camera.fov_margin
    low = torch.stack([-(cx + share * width) / fx, -(cy + share * height) / fy])
    high = torch.stack([(width - cx + share * width) / fx, (height - cy + share * height) / fy])
    return low, high


def _pinhole(camera: Camera, points: Tensor, fork: bool) -> Projected:
    focal, centre = camera.intrinsics[:2], camera.intrinsics[2:]
    depth = points[:, 2:]
    uv = points[:, :2] / depth
    low, high = _limits(camera)
    clamped = torch.maximum(torch.minimum(uv, high), low)
    slope = clamped / depth
    if fork:
        # The fork treats the clamped X as a constant: X = u Z, J02 = -f X / Z^2 (spec section 6, item 3).
        held = torch.where(clamped == uv, points[:, :2], (clamped * depth).detach())
        slope = held / depth**2
    inverse = (1 / depth)[..., None]
    flat = torch.cat([inverse * torch.eye(2, dtype=points.dtype), -slope[..., None]], -1)
    visible = torch.ones_like(depth[:, 0], dtype=torch.bool)
    edges = torch.minimum((uv - low).abs(), (uv - high).abs()).amin(-1)
    undecided = edges < BRINK * (1 + uv.abs().amax(-1))
    seen = uv
    if camera.distortion:
        bend = torch.func.vmap(torch.func.jacfwd(lambda value: distorted(value, camera.distortion)))(clamped)
        flat = bend @ flat
        square, limit = (uv * uv).sum(-1), unfolded_radius_squared(camera.distortion)
        visible = square <= limit
        undecided = undecided | ((square - limit).abs() < 10 * BRINK * limit)
        seen = distorted(torch.where(visible[:, None], uv, torch.zeros_like(uv)), camera.distortion)
    means2d = seen * focal + centre
    return Projected(points, means2d, focal[:, None] * flat, visible, undecided.detach())


def _fisheye_map(point: Tensor) -> Tensor:
    """Equidistant: the distance is the angle to the axis; a series near the axis avoids the root."""
    x, y, z = point.unbind(-1)
    square = x * x + y * y
    near = square < 1e-8 * z * z
    radius = torch.sqrt(torch.where(near, torch.ones_like(square), square))
    ratio = square / (z * z)
    series = (1 - ratio / 3 + ratio * ratio / 5) / z
    scale = torch.where(near, series, torch.atan2(radius, z) / radius)
    return torch.stack([x * scale, y * scale], -1)


def _smooth(camera: Camera, points: Tensor) -> Projected:
    def film(point: Tensor) -> Tensor:
        return point[:2] if camera.model == "orthographic" else _fisheye_map(point)

    focal, centre = camera.intrinsics[:2], camera.intrinsics[2:]
    jacobian = torch.func.vmap(torch.func.jacfwd(film))(points)
    means2d = torch.func.vmap(film)(points) * focal + centre
    always = torch.ones_like(points[:, 0], dtype=torch.bool)
    return Projected(points, means2d, focal[:, None] * jacobian, always, ~always)


def project(camera: Camera, means: Tensor, options: Options) -> Projected:
    """Means [N, 3] through a camera; near and far limits included (spec sections 1.1, 1.3)."""
    points = means @ camera.rotation.T + camera.translation
    depth = points[:, 2].detach()
    limits = (options.near, options.far)
    visible = (depth > limits[0]) if options.inria else ((depth >= limits[0]) & (depth <= limits[1]))
    size = means.detach().abs().amax(-1) + camera.translation.detach().abs().amax()
    undecided = ((depth[:, None] - torch.tensor(limits)).abs() < BRINK * size[:, None]).any(-1)
    # Replaces invisible points, whose divisions by zero would make gradients NaN.
    safe = torch.where(visible[:, None], points, torch.tensor([0.0, 0.0, 1.0], dtype=points.dtype))
    fork = options.semantics == "inria_depth"
    flat = _pinhole(camera, safe, fork) if camera.model == "pinhole" else _smooth(camera, safe)
    means2d = flat.means2d
    if camera.projection is not None:
        ones = torch.cat([means, torch.ones_like(means[:, :1])], -1)
        clip = ones @ camera.projection.T
        ndc = clip[:, :2] / (torch.where(visible, clip[:, 3], 1.0) + 1e-7)[:, None]
        # Inria's pixel centres are at whole numbers; for other centres the image is shifted.
        means2d = ((ndc + 1) * torch.tensor([camera.width, camera.height]) - 1) / 2 + options.pixel_center
    return Projected(safe, means2d, flat.jacobian, visible & flat.visible, undecided | (flat.undecided & visible))
