"""Open meshes whose faces look into what they nearly enclose: rooms seen from inside, or objects inside out."""

from __future__ import annotations

import numpy as np

from lumigrad.client.values.mesh import Mesh, MeshReport

# A surface encloses a space if the areas of its faces cancel but for this fraction, and the space has at least this
# fraction of the volume of a cube of the surface's area.
_MOST_OPEN, _LEAST_SPACE = 0.6, 1e-3

INWARD = "its faces look into what they nearly enclose, which counts as free: turn them unless it is a room"


def looks_in(mesh: Mesh, report: MeshReport) -> bool:
    """Whether an open mesh of one part encloses a space behind its faces, if a fan of triangles closed its border."""
    if report.closed or report.components != 1 or report.nonmanifold_edges or report.inconsistent_edges:
        return False
    places, welded = np.unique(mesh.vertices.astype(np.float64), axis=0, return_inverse=True)
    corners = welded.reshape(-1)[mesh.faces]
    edges = np.sort(corners[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2), axis=1)
    pairs, counts = np.unique(edges, axis=0, return_counts=True)
    border = places[pairs[counts == 1]]
    lengths = np.linalg.norm(border[:, 1] - border[:, 0], axis=1)
    if not lengths.sum() > 0:
        return False
    centre = np.average(border.mean(axis=1), axis=0, weights=lengths)
    first, second, third = (places[corners[:, corner]] - centre for corner in range(3))
    normals = np.cross(second - first, third - first) / 2
    area = np.linalg.norm(normals, axis=1).sum()
    volume = (first * normals).sum() / 3
    return bool(np.linalg.norm(normals.sum(axis=0)) < _MOST_OPEN * area and volume < -_LEAST_SPACE * area**1.5)
