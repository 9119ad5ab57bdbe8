"""The work of distance queries: a million triangles, points near them and around them, counted in a tree of boxes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.meshes.scene import points, torus
from tests.benchmarks.roofline.device import Need

WIDE = 16
POINTS, SAMPLED = 1_000_000, 300
# Instructions of a warp, which searches for two points: to open a node, to choose what is next, to measure the
# triangles of a leaf, and to begin and end a search. They are half of those in the compiler's listings, because the
# engine's own tree needs fewer visits: a mesh of 70,000 triangles then needs no more than the 1,140 (near) and 2,890
# (box) for a point that Nsight Compute counts.
OPEN, STEP, LEAF, ROW = 20, 30, 55, 175
# Bytes of a node of sixteen boxes, and of a leaf of sixteen triangles; of a point and its results.
NODE_BYTES, LEAF_BYTES, POINT_BYTES = 384, 576, 64

Doubles = NDArray[np.float64]


class Tree:
    """A tree like the engine's, with sixteen triangles per leaf and sixteen boxes per node, in Morton order."""

    def __init__(self, corners: Doubles) -> None:
        """Builds the tree of triangles `corners` [F, 3, 3]."""
        ordered = corners[_morton_order(corners.mean(1))]
        missing = -len(ordered) % WIDE
        self.triangles = np.concatenate([ordered, np.repeat(ordered[-1:], missing, 0)]).reshape(-1, WIDE, 3, 3)
        low, high = self.triangles.min((1, 2)), self.triangles.max((1, 2))
        self.levels: list[tuple[Doubles, Doubles]] = []
        while True:
            missing = -len(low) % WIDE
            low = np.concatenate([low, np.full((missing, 3), 1e9)]).reshape(-1, WIDE, 3)
            high = np.concatenate([high, np.full((missing, 3), 1e9)]).reshape(-1, WIDE, 3)
            self.levels.append((low, high))
            if len(low) == 1:
                return
            low, high = low.min(1), np.where(high < 1e9, high, -1e9).max(1)

    @property
    def leaves(self) -> int:
        """Number of leaves."""
        return len(self.triangles)

    @property
    def nodes(self) -> int:
        """Number of nodes of all levels."""
        return sum(len(low) for low, _ in self.levels)

    def visits(self, point: Doubles) -> tuple[int, int]:
        """Nodes and leaves that a search opens, the nearest child first."""
        limit, nodes, leaves = np.inf, 0, 0
        waiting = [(0.0, len(self.levels) - 1, 0)]
        while waiting:
            bound, level, number = waiting.pop()
            if bound >= limit:
                continue
            if level < 0:
                leaves += 1
                limit = min(limit, _least_square(self.triangles[number], point))
                continue
            nodes += 1
            low, high = self.levels[level]
            bounds = (np.maximum(np.maximum(low[number] - point, point - high[number]), 0) ** 2).sum(-1)
            children = [(bounds[i], level - 1, number * WIDE + int(i)) for i in np.argsort(-bounds)]
            waiting += [child for child in children if child[0] < limit]
        return nodes, leaves


def needs() -> dict[str, Need]:
    """The needs of a million queries in random order, for distances without a sign."""
    scene = torus("1M")
    tree = Tree(scene.vertices[scene.faces])
    result = {}
    for kind in ("near", "box"):
        nodes, leaves = np.mean([tree.visits(p) for p in points(scene, kind, SAMPLED)], 0)
        steps = 2 * nodes + leaves
        issued = POINTS / 2 * (nodes * OPEN + steps * STEP + leaves * LEAF + ROW)
        # The tree, 40 MB, is read only once, since it fits into the second-level cache of either device.
        moved = POINTS * POINT_BYTES + tree.leaves * LEAF_BYTES + tree.nodes * NODE_BYTES
        result[f"points {kind} ({nodes:.1f} nodes, {leaves:.1f} leaves)"] = Need(moved, issued)
    return result


def _morton_order(centres: Doubles) -> NDArray[np.int64]:
    low = centres.min(0)
    cells = ((centres - low) / (centres.max(0) - low).max() * 1023).astype(np.int64)
    codes = np.zeros(len(cells), np.int64)
    for bit in range(10):
        for axis in range(3):
            codes |= (cells[:, axis] >> bit & 1) << (3 * bit + axis)
    return np.argsort(codes, kind="stable")


def _least_square(triangles: Doubles, point: Doubles) -> float:
    """The least squared distance to triangles [n, 3, 3]: to their planes inside, to their edges outside."""
    a, ab, ac = triangles[:, 0], triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]
    to = point - a
    d00, d01, d11 = ((u * v).sum(-1) for u, v in ((ab, ab), (ab, ac), (ac, ac)))
    d20, d21 = (to * ab).sum(-1), (to * ac).sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        v, w = (x / (d00 * d11 - d01**2) for x in (d11 * d20 - d01 * d21, d00 * d21 - d01 * d20))
    inside = (v >= 0) & (w >= 0) & (v + w <= 1)
    plane = ((to - v[:, None] * ab - w[:, None] * ac) ** 2).sum(-1)
    edges = []
    for start, end in ((0, 1), (1, 2), (2, 0)):
        origin, along = triangles[:, start], triangles[:, end] - triangles[:, start]
        t = (((point - origin) * along).sum(-1) / np.maximum((along**2).sum(-1), 1e-30)).clip(0, 1)
        edges.append(((point - origin - t[:, None] * along) ** 2).sum(-1))
    return float(np.where(inside, plane, np.min(edges, 0)).min())
