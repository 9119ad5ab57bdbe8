"""The closest point of a set of triangles, float64, by computing it for every triangle that can contain it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Pairs of a point and a triangle that are bounded at once.
CHUNK = 1 << 20
# Tolerance relative to the size of the set: triangles whose bounds differ by less are computed.
SLACK = 1e-9


@dataclass(frozen=True)
class Feet:
    """For N points: closest point [N, 3], triangle [N], barycentric coordinates [N, 3], distance [N].

    `rival` [N]: the distance between the closest point and another point of the triangles that is farther away by at
    most `tolerance`, relative to the distance; 0 if there is none.
    """

    point: Tensor
    triangle: Tensor
    shares: Tensor
    distance: Tensor
    rival: Tensor

    def at(self, rows: Tensor) -> Feet:
        """The entries of some of the points."""
        return Feet(*(values[rows] for values in vars(self).values()))


def shares_of(point: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Barycentric coordinates of the point of each triangle that is closest to its `point`: all [K, 3]."""
    u, v, w = b - a, c - a, point - a
    # Areas avoid the cancellation in a Gram determinant.
    normal = torch.linalg.cross(u, v)
    det = normal.square().sum(-1)
    s, t = (torch.linalg.cross(w, v) * normal).sum(-1), (torch.linalg.cross(u, w) * normal).sum(-1)
    inside = (det > 0) & (s >= 0) & (t >= 0) & (s + t <= det)
    safe = torch.where(inside, det, 1.0)
    best = torch.stack([1 - (s + t) / safe, s / safe, t / safe], -1)
    least = torch.where(inside, -1.0, torch.inf)
    zero = torch.zeros_like(det)

    def along(start: Tensor, end: Tensor) -> Tensor:
        way = end - start
        length = (way * way).sum(-1)
        share = ((point - start) * way).sum(-1) / torch.where(length > 0, length, 1.0)
        return torch.where(length > 0, share, 0.0).clamp(0, 1)

    ab, bc, ca = along(a, b), along(b, c), along(c, a)
    edges = (
        torch.stack([1 - ab, ab, zero], -1),
        torch.stack([zero, 1 - bc, bc], -1),
        torch.stack([ca, zero, 1 - ca], -1),
    )
    for shares in edges:
        square = (point - combined(shares, a, b, c)).square().sum(-1)
        closer = square < least
        best, least = torch.where(closer[:, None], shares, best), torch.where(closer, square, least)
    return best


def combined(shares: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The point [K, 3] with these barycentric coordinates."""
    return shares[:, :1] * a + shares[:, 1:2] * b + shares[:, 2:] * c


def closest(points: Tensor, triangles: Tensor, tolerance: float = 0.0) -> Feet:
    """The closest points of triangles [F, 3, 3] to points [N, 3]."""
    chunk = max(1, CHUNK // max(1, len(triangles)))
    parts = [_closest(points[begin : begin + chunk], triangles, tolerance) for begin in range(0, len(points), chunk)]
    if not parts:
        parts = [_closest(points, triangles, tolerance)]
    return Feet(*(torch.cat(values) for values in zip(*(vars(part).values() for part in parts), strict=True)))


def _closest(points: Tensor, triangles: Tensor, tolerance: float) -> Feet:
    centres = triangles.mean(1)
    radii = (triangles - centres[:, None]).norm(dim=-1).amax(-1)
    away = torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist")
    size = away.amax() + radii.amax() if away.numel() else torch.zeros((), dtype=points.dtype)
    bound = away.amin(-1, keepdim=True) + tolerance + SLACK * size
    rows, columns = torch.nonzero(away - radii <= bound, as_tuple=True)
    a, b, c = triangles[columns].unbind(1)
    shares = shares_of(points[rows], a, b, c)
    feet = combined(shares, a, b, c)
    distance = (points[rows] - feet).norm(dim=-1)
    least = torch.full((len(points),), torch.inf, dtype=points.dtype).scatter_reduce(0, rows, distance, "amin")
    # The first of the equally close triangles.
    numbers = torch.where(distance == least[rows], torch.arange(len(rows)), len(rows))
    first = torch.full((len(points),), len(rows)).scatter_reduce(0, rows, numbers, "amin")
    foot = feet[first]
    apart = (feet - foot[rows]).norm(dim=-1) / distance.clamp_min(1e-300)
    apart = torch.where(distance <= least[rows] + tolerance, apart, 0.0)
    rival = torch.zeros(len(points), dtype=points.dtype).scatter_reduce(0, rows, apart, "amax")
    return Feet(foot, columns[first], shares[first], least, rival)
