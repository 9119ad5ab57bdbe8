"""Inside and outside of a mesh by their definitions, in float64: pseudo-normals, axis rays, the winding number."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from support.meshes.topology import Surveyed
from support.meshes.triangles import CHUNK, Feet

# The least distance of a ray from an edge, and of a winding number from 1/2, at which the sign counts as certain.
RAY_MARGIN, WINDING_MARGIN = 1e-6, 0.03


def winding_of(triangles: Tensor, points: Tensor) -> Tensor:
    """The winding number, a sum of solid angles over 4 pi (van Oosterom and Strackee 1983): [N]."""
    chunk = max(1, CHUNK // max(1, 3 * len(triangles)))
    parts = []
    for begin in range(0, len(points), chunk):
        a, b, c = (triangles[None] - points[begin : begin + chunk, None, None]).unbind(2)
        la, lb, lc = a.norm(dim=-1), b.norm(dim=-1), c.norm(dim=-1)
        above = (a * torch.linalg.cross(b, c)).sum(-1)
        below = la * lb * lc + (a * b).sum(-1) * lc + (b * c).sum(-1) * la + (c * a).sum(-1) * lb
        parts.append(torch.atan2(above, below).sum(-1) / (2 * torch.pi))
    return torch.cat(parts) if parts else points.new_zeros(0)


class Signs:
    """The signs of a mesh. `True` is inside; the second value of a pair is whether that is independent of rounding."""

    def __init__(self, mesh: Surveyed) -> None:
        self.mesh = mesh
        a, b, c = mesh.triangles.unbind(1)
        self.normals = torch.nn.functional.normalize(torch.linalg.cross(b - a, c - a), dim=-1, eps=1e-300)

    def edge_normal(self, start: int, end: int) -> Tensor:
        """The sum of the normals of the faces at an edge, given by its two ascending vertices."""
        return self.normals[[face for face, _ in self.mesh.edges[start, end]]].sum(0)

    @cached_property
    def vertex_normals(self) -> Tensor:
        """Sums of face normals, weighted by the angle of the face at the vertex: [V, 3]."""
        sums = torch.zeros(len(self.mesh.positions), 3, dtype=torch.float64)
        triangles, faces = self.mesh.triangles, torch.from_numpy(self.mesh.faces).long()
        for corner in range(3):
            u = triangles[:, (corner + 1) % 3] - triangles[:, corner]
            v = triangles[:, (corner + 2) % 3] - triangles[:, corner]
            angle = torch.atan2(torch.linalg.cross(u, v).norm(dim=-1), (u * v).sum(-1))
            sums.index_add_(0, faces[:, corner], angle[:, None] * self.normals)
        return sums

    def pseudo_normals(self, feet: Feet) -> Tensor:
        """The pseudo-normals of the features that the closest points lie on, not normalised: [N, 3]."""
        normals = self.normals[feet.triangle].clone()
        for row in torch.nonzero((feet.shares <= 0).any(-1)).flatten().tolist():
            face = self.mesh.faces[int(feet.triangle[row])]
            there = [int(vertex) for vertex, share in zip(face, feet.shares[row].tolist(), strict=True) if share > 0]
            if len(there) == 1:
                normals[row] = self.vertex_normals[there[0]]
            else:
                normals[row] = self.edge_normal(min(there), max(there))
        return normals

    def by_normals(self, points: Tensor, feet: Feet) -> Tensor:
        """Inside by the pseudo-normal of the closest feature (Baerentzen and Aanaes 2005)."""
        return ((points - feet.point) * self.pseudo_normals(feet)).sum(-1) < 0

    def by_winding(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Inside by a winding number above 1/2."""
        winding = winding_of(self.mesh.triangles, points)
        return winding > 0.5, (winding - 0.5).abs() > WINDING_MARGIN

    def by_rays(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Inside if two of the rays along +x, +y and +z first hit the back of a face (spec section 2)."""
        chunk = max(1, CHUNK // max(1, 3 * len(self.mesh.triangles)))
        votes, sure = [], []
        for begin in range(0, len(points), chunk):
            found = [self._ray(points[begin : begin + chunk], axis) for axis in range(3)]
            votes.append(torch.stack([back for back, _ in found]).sum(0))
            sure.append(torch.stack([certain for _, certain in found]).all(0))
        if not votes:
            return points.new_zeros(0, dtype=torch.bool), points.new_zeros(0, dtype=torch.bool)
        return torch.cat(votes) >= 2, torch.cat(sure)

    def _ray(self, points: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """Whether the nearest hit is a back face, and whether no edge and no other hit is near enough to matter."""
        sides = [(axis + 1) % 3, (axis + 2) % 3]
        flat_points, flat_triangles = points[:, sides], self.mesh.triangles[:, :, sides]
        low, high = flat_triangles.amin(1), flat_triangles.amax(1)
        room = RAY_MARGIN * (1 + (high - low).amax())
        near = (flat_points[:, None] >= low - room) & (flat_points[:, None] <= high + room)
        rows, columns = torch.nonzero(near.all(-1), as_tuple=True)
        a, b, c = (flat_triangles[columns] - flat_points[rows, None]).unbind(1)
        along = self.mesh.triangles[columns][..., axis] - points[rows, None, axis]

        def area(p: Tensor, q: Tensor) -> Tensor:
            return p[:, 0] * q[:, 1] - p[:, 1] * q[:, 0]

        shares = torch.stack([area(b, c), area(c, a), area(a, b)], -1)
        whole = shares.sum(-1)
        scale = torch.stack([a, b, c]).abs().amax((0, 2)).square().clamp_min(1e-300)
        flat = whole.abs() <= 1e-14 * scale
        turned = shares * torch.sign(whole)[:, None]
        away = (shares * along).sum(-1) / torch.where(flat, 1.0, whole)
        hit = (turned >= 0).all(-1) & ~flat & (away >= 0)
        first = torch.full((len(points),), torch.inf, dtype=points.dtype)
        first = first.scatter_reduce(0, rows, torch.where(hit, away, torch.inf), "amin")
        # A positive area of the projection means that the ray hits the back of the face.
        behind = hit & (away == first[rows]) & (whole > 0)
        inside = torch.bincount(rows[behind], minlength=len(points)) > 0
        margin = RAY_MARGIN * scale
        close = torch.where(flat, shares.abs().amax(-1), turned.amin(-1).abs()) < margin
        grazed = close & (away <= first[rows] + RAY_MARGIN) & (away >= -RAY_MARGIN)
        return inside, torch.bincount(rows[grazed], minlength=len(points)) == 0
