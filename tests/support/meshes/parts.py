"""A reference, in float64, of what registration reports about the connected components of a mesh."""

from __future__ import annotations

import functools
from collections import Counter

import numpy as np
import torch
from numpy.typing import NDArray

from support.meshes.case import Doubles, MeshShape, Whole
from support.meshes.signs import winding_of
from support.meshes.topology import Facts, Surveyed, surveyed

# Boxes nearer to each other than this fraction of the mesh's extent meet.
TOUCH = 1e-5
# Places on a face, as weights of its corners; and about how many faces of a part are examined.
MOST_FACES = 60
PLACES = np.array([[1 / 3, 1 / 3, 1 / 3], [0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.05, 0.05, 0.9]])


class Parts:
    """The components of the kept faces of a mesh, by number: `of` [F] says which face belongs to which."""

    def __init__(self, mesh: Surveyed) -> None:
        self.mesh = mesh
        self.of = self._components()
        self.count = int(self.of.max()) + 1
        self.solid = [self._is_solid(part) for part in range(self.count)]
        corners = mesh.positions[mesh.faces]
        self.corners = [corners[self.of == part] for part in range(self.count)]
        self.boxes = [(at.min((0, 1)), at.max((0, 1))) for at in self.corners]
        self.sizes = [float(np.linalg.norm(high - low)) for low, high in self.boxes]
        self.negative = [solid and _volume(at) < -1e-12 for solid, at in zip(self.solid, self.corners, strict=True)]

    def _components(self) -> Whole:
        above = [*range(len(self.mesh.faces))]

        def root(face: int) -> int:
            while above[face] != face:
                # Path halving: later walks are half as long.
                above[face] = above[above[face]]
                face = above[face]
            return face

        single: set[int] = set()
        for faces in self.mesh.edges.values():
            members = [face for face, _ in faces]
            if len(members) == 2:
                above[max(map(root, members))] = min(map(root, members))
            else:
                single.update(members)
        users: dict[int, int] = {}
        for face in sorted(single):
            for vertex in self.mesh.shape.faces[self.mesh.numbers[face]].tolist():
                ends = root(face), root(users.setdefault(vertex, face))
                above[max(ends)] = min(ends)
        roots = np.array([root(face) for face in range(len(above))])
        return np.unique(roots, return_inverse=True)[1].astype(np.int32)

    def _is_solid(self, part: int) -> bool:
        sums = Counter[tuple[int, int]]()
        alone = Counter[tuple[int, int]]()
        for edge, faces in self.mesh.edges.items():
            for face, way in faces:
                if self.of[face] == part:
                    sums[edge] += 1 if way else -1
                    alone[edge] += len(faces) == 1
        return not any(sums.values()) and not any(alone.values())

    def meeting(self) -> list[bool]:
        """Whether the box of a solid part meets that of another solid part."""
        low, high = self.mesh.positions[self.mesh.faces].min((0, 1)), self.mesh.positions[self.mesh.faces].max((0, 1))
        margin = TOUCH * float((high - low).max()) / 2

        def meet(one: int, other: int) -> bool:
            (a, b), (c, d) = self.boxes[one], self.boxes[other]
            return bool((a <= d + margin).all() and (c <= b + margin).all())

        solid = [part for part in range(self.count) if self.solid[part]]
        return [
            self.solid[part] and any(meet(part, other) for other in solid if other != part)
            for part in range(self.count)
        ]

    def winding(self, points: Doubles, part: int) -> NDArray[np.float64]:
        """How often one part winds around points."""
        return winding_of(torch.from_numpy(self.corners[part]), torch.from_numpy(points)).numpy()

    @functools.cached_property
    def turned(self) -> list[bool]:
        """Whether each part is inside out. A cavity winds against the part around it."""
        if not any(self.negative):
            return [False] * self.count
        return [solid and self._is_turned(part) for part, solid in enumerate(self.solid)]

    def _is_turned(self, part: int) -> bool:
        points = np.einsum("pc,fcx->fpx", PLACES, self.corners[part]).reshape(-1, 3)
        larger = [other for other in range(self.count) if self.sizes[other] > self.sizes[part]]
        around = [np.round(self.winding(points, other)) for other in larger]
        # Counts the parts all around it; open parts that look inward are rooms.
        winding = sum(
            int(found[0])
            for other, found in zip(larger, around, strict=True)
            if (found == found[0]).all() and (self.solid[other] or found[0] > 0)
        )
        cavity = winding > 0 if self.negative[part] else winding < 0
        return self.negative[part] != cavity

    def is_self_intersecting(self) -> bool:
        """Whether the winding number of a part beside its own faces is not 0 at the front."""
        for part, corners in enumerate(self.corners):
            u, v = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
            out = np.cross(u, v)
            out /= np.linalg.norm(out, axis=1)[:, None]
            points = np.einsum("pc,fcx->fpx", PLACES, corners) + 1e-6 * self.sizes[part] * out[:, None]
            points = points[:: len(points) // MOST_FACES + 1]
            found = np.round(self.winding(points.reshape(-1, 3), part)) + self.negative[part]
            if (found != 0).any():
                return True
        return False


def _volume(corners: Doubles) -> float:
    a, b, c = (corners - corners.mean((0, 1))).transpose(1, 0, 2)
    return float((a * np.cross(b, c)).sum() / 6)


@functools.lru_cache(64)
def parts_of(shape: MeshShape) -> Parts:
    """The components of a mesh; cached by the identity of the shape."""
    return Parts(surveyed(shape))


@functools.lru_cache(64)
def facts_of(shape: MeshShape) -> Facts:
    """The whole report; cached by the identity of the shape."""
    mesh = surveyed(shape)
    parts = parts_of(shape)
    facts = mesh.facts()
    facts.components = parts.count
    facts.overlapping_components = sum(parts.meeting())
    facts.turned_components = sum(parts.turned)
    facts.self_intersecting = facts.oriented and parts.is_self_intersecting()
    return facts


@functools.lru_cache(64)
def upright(shape: MeshShape) -> tuple[MeshShape, bool]:
    """The mesh without components that are inside out, and whether the closest face tells inside from outside."""
    facts, parts = facts_of(shape), parts_of(shape)
    simple = facts.oriented and not facts.overlapping_components and not facts.self_intersecting
    if not any(parts.turned):
        return shape, simple
    faces = shape.faces.copy()
    turned = parts.mesh.numbers[np.array(parts.turned)[parts.of]]
    faces[turned] = faces[turned][:, ::-1]
    return MeshShape(shape.vertices, faces), simple
