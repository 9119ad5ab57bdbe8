"""A reference of a mesh's topology, computed with sets and dictionaries."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from support.meshes.case import Doubles, MeshShape, Whole


@dataclass
class Facts:
    """A report. Edges are those of the kept faces; `parts.facts_of` fills in the facts about components."""

    vertices: int
    faces: int
    welded_vertices: int
    degenerate_faces: int
    duplicate_faces: int
    boundary_edges: int
    nonmanifold_edges: int
    inconsistent_edges: int
    closed: bool
    oriented: bool
    low: tuple[float, ...]
    high: tuple[float, ...]
    volume: float
    area: float
    components: int = 0
    overlapping_components: int = 0
    turned_components: int = 0
    self_intersecting: bool = False


def _edges_of(corners: Whole) -> dict[tuple[int, int], list[tuple[int, bool]]]:
    found: dict[tuple[int, int], list[tuple[int, bool]]] = {}
    for number, face in enumerate(corners.tolist()):
        for start, end in zip(face, face[1:] + face[:1], strict=True):
            found.setdefault((min(start, end), max(start, end)), []).append((number, start < end))
    return found


class Surveyed:
    """A mesh with its vertices welded by position, and its degenerate and repeated faces removed."""

    def __init__(self, shape: MeshShape) -> None:
        self.shape = shape
        distinct, welded = np.unique(shape.vertices + 0.0, axis=0, return_inverse=True)
        self.positions: Doubles = distinct
        corners = welded.reshape(-1)[shape.faces]
        flat = self._flat(corners)
        self.degenerate = np.flatnonzero(flat)
        seen: set[tuple[int, ...]] = set()
        bodies: set[frozenset[int]] = set()
        kept, whole, duplicates = [], [], 0
        for number in np.flatnonzero(~flat):
            face = tuple(int(corner) for corner in corners[number])
            start = face.index(min(face))
            turned = face[start:] + face[:start]
            duplicates += frozenset(face) in bodies
            bodies.add(frozenset(face))
            whole.append(int(number))
            if turned not in seen:
                seen.add(turned)
                kept.append(int(number))
        self.duplicates = duplicates
        self._keep(corners, kept)
        # Repeated faces stay if edges would have three faces without them, and no edge has a single face.
        counts = {len(faces) for faces in _edges_of(self.faces).values()}
        if len(kept) < len(whole) and min(counts) > 1 and max(counts) > 2:
            self._keep(corners, whole)
        if duplicates:
            self._drop_backs(corners)

    def _drop_backs(self, corners: Whole) -> None:
        """Drops later faces of groups that pair each face with one that looks the other way, if the rest is closed."""
        groups = self._groups(corners)
        dropped: list[int] = []
        for members in groups:
            first = dict[frozenset[int], int]()
            for number in members:
                first.setdefault(frozenset(corners[number].tolist()), number)
            fronts = sorted(first.values())
            edges = _edges_of(corners[np.array(fronts)]).values()
            closed = all(len(faces) == 2 and faces[0][1] != faces[1][1] for faces in edges)
            if 2 * len(first) == len(members) and closed:
                dropped += sorted({*members} - {*fronts})
        if dropped:
            self._keep(corners, sorted({*self.numbers.tolist()} - {*dropped}))

    def _groups(self, corners: Whole) -> list[list[int]]:
        """The kept faces, grouped by shared vertices."""
        above: dict[int, int] = {}

        def root(vertex: int) -> int:
            above.setdefault(vertex, vertex)
            while above[vertex] != vertex:
                # Path halving: later walks are half as long.
                above[vertex] = above[above[vertex]]
                vertex = above[vertex]
            return vertex

        for number in self.numbers.tolist():
            a, *others = corners[number].tolist()
            for other in others:
                above[root(other)] = root(a)
        found: dict[int, list[int]] = {}
        for number in self.numbers.tolist():
            found.setdefault(root(int(corners[number][0])), []).append(number)
        return [*found.values()]

    def _keep(self, corners: Whole, numbers: list[int]) -> None:
        self.numbers: Whole = np.array(numbers, np.int32)
        self.faces: Whole = corners[self.numbers].astype(np.int32)

    def _flat(self, corners: Whole) -> NDArray[np.bool_]:
        a, b, c = (self.positions[corners[:, k]] for k in range(3))
        same = (corners == np.roll(corners, 1, axis=1)).any(1)
        return same | (np.linalg.norm(np.cross(b - a, c - a), axis=1) == 0)

    @cached_property
    def triangles(self) -> Tensor:
        """[F, 3, 3] of the kept faces."""
        return torch.from_numpy(self.positions[self.faces])

    @cached_property
    def edges(self) -> dict[tuple[int, int], list[tuple[int, bool]]]:
        """The faces of each edge, by its two ascending vertices, and whether each face traverses it in that order."""
        return _edges_of(self.faces)

    @cached_property
    def volume(self) -> float:
        """The signed volume of the kept faces."""
        a, b, c = (self.triangles - self.triangles.mean((0, 1))).unbind(1)
        return float((a * torch.linalg.cross(b, c)).sum() / 6)

    def facts(self) -> Facts:
        """The report."""
        counts = Counter(len(faces) for faces in self.edges.values())
        pairs = [faces for faces in self.edges.values() if len(faces) == 2]
        inconsistent = sum(one == other for (_, one), (_, other) in pairs)
        closed = set(counts) == {2}
        a, b, c = self.triangles.unbind(1)
        return Facts(
            vertices=len(self.shape.vertices), faces=len(self.shape.faces), welded_vertices=len(self.positions),
            degenerate_faces=len(self.degenerate), duplicate_faces=self.duplicates, boundary_edges=counts[1],
            nonmanifold_edges=sum(count for faces, count in counts.items() if faces > 2),
            inconsistent_edges=inconsistent, closed=closed, oriented=closed and not inconsistent,
            low=tuple(self.shape.vertices.min(0).tolist()), high=tuple(self.shape.vertices.max(0).tolist()),
            volume=self.volume, area=float(torch.linalg.cross(b - a, c - a).norm(dim=-1).sum() / 2),
        )  # fmt: skip


@lru_cache(64)
def surveyed(shape: MeshShape) -> Surveyed:
    """The mesh of a shape; cached by the identity of the shape."""
    return Surveyed(shape)
