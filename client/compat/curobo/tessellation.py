"""Triangles of round shapes and of voxels, counter-clockwise seen from outside."""

from __future__ import annotations

import numpy as np

from lumigrad.client.base.arrays import Array, Float64

# Facets around an axis; they deviate inwards by up to 0.2 % of the radius.
_SECTORS = 48
# The corners of a voxel's sides, two triangles each, by the direction in which the side looks.
_SIDES = {
    (-1, 0, 0): ((0, 0, 0), (0, 0, 1), (0, 1, 1), (0, 1, 0)),
    (1, 0, 0): ((1, 0, 0), (1, 1, 0), (1, 1, 1), (1, 0, 1)),
    (0, -1, 0): ((0, 0, 0), (1, 0, 0), (1, 0, 1), (0, 0, 1)),
    (0, 1, 0): ((0, 1, 0), (0, 1, 1), (1, 1, 1), (1, 1, 0)),
    (0, 0, -1): ((0, 0, 0), (0, 1, 0), (1, 1, 0), (1, 0, 0)),
    (0, 0, 1): ((0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 1)),
}


def revolved(profile: Float64) -> tuple[Float64, Array]:
    """Returns the closed surface that a profile sweeps around z.

    Args:
        profile: [n, 2] distances from z and heights, upward; the first and the last are on z.

    Returns:
        Vertices [V, 3] and faces [F, 3].
    """
    angles = 2 * np.pi * np.arange(_SECTORS) / _SECTORS
    rings = profile[1:-1]
    around = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    sides = np.concatenate(
        [rings[:, :1, None] * around[None], np.broadcast_to(rings[:, 1:, None], (len(rings), _SECTORS, 1))], 2
    )
    vertices = np.concatenate([sides.reshape(-1, 3), [[0, 0, profile[0, 1]], [0, 0, profile[-1, 1]]]])
    here = np.arange(_SECTORS)
    there = (here + 1) % _SECTORS
    first, last = len(vertices) - 2, len(vertices) - 1
    faces = [np.stack([np.full(_SECTORS, first), there, here], 1)]
    for ring in range(len(rings) - 1):
        low, high = ring * _SECTORS, (ring + 1) * _SECTORS
        faces += [
            np.stack([low + here, low + there, high + there], 1),
            np.stack([low + here, high + there, high + here], 1),
        ]
    top = (len(rings) - 1) * _SECTORS
    faces.append(np.stack([np.full(_SECTORS, last), top + here, top + there], 1))
    return vertices, np.concatenate(faces).astype(np.int32)


def voxel_faces(cells: Array) -> tuple[Float64, Array]:
    """Returns the surface of voxels of edge 1: the sides that no other voxel shares.

    Args:
        cells: [N, 3] whole numbers, the lower corners, each once.

    Returns:
        Vertices [V, 3] and faces [F, 3].
    """
    taken = {tuple(cell) for cell in cells.tolist()}
    quads = [
        [[x + dx, y + dy, z + dz] for dx, dy, dz in corners]
        for x, y, z in cells.tolist()
        for (nx, ny, nz), corners in _SIDES.items()
        if (x + nx, y + ny, z + nz) not in taken
    ]
    vertices, index = np.unique(np.array(quads).reshape(-1, 3), axis=0, return_inverse=True)
    corners = index.reshape(-1, 4)
    return vertices.astype(np.float64), np.concatenate([corners[:, [0, 1, 2]], corners[:, [0, 2, 3]]]).astype(np.int32)
