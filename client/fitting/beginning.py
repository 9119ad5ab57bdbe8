"""The initial scene of a fit: one primitive for each point of a reconstruction."""

from __future__ import annotations

import numpy as np

from lumigrad.client.base.arrays import Array
from lumigrad.client.base.extras import require
from lumigrad.client.datasets.points import Points
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.scene import sh_from_colors
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.spheres import Spheres

_OPACITY = 0.1
# The number of neighbours whose distances set a primitive's initial size.
_NEIGHBOURS = 3
# The smallest size, for coinciding points, relative to the median.
_LEAST_SPACING = 1e-3


def gaussians_at(points: Points, sh_degree: int) -> Gaussians:
    """Round, faint Gaussians, sized by the distances to their neighbours.

    Args:
        points: N of them, with colours.
        sh_degree: largest degree of the spherical harmonics.
    """
    count = len(points)
    sh = np.zeros((count, (sh_degree + 1) ** 2, 3), np.float32)
    sh[:, :1] = sh_from_colors(points.colors)
    return Gaussians(
        points.positions,
        np.tile([1.0, 0.0, 0.0, 0.0], (count, 1)),
        np.tile(spacing(points.positions)[:, None], (1, 3)),
        np.full(count, _OPACITY),
        sh=sh,
    )


def spheres_at(points: Points) -> Spheres:
    """Spheres that nearly touch."""
    return Spheres(points.positions, points.colors, spacing(points.positions) / 2)


def spacing(positions: Array) -> Array:
    """[N] root mean square distance of points [N, 3] to their three nearest neighbours, scene units."""
    if len(positions) <= _NEIGHBOURS:
        raise InvalidArgument.of("dataset", f"expected more than {_NEIGHBOURS} initial points, got {len(positions)}")
    tree = require("scipy.spatial", "fit", "the sizes of what a fit begins with").cKDTree(positions)
    # The nearest is the point itself.
    distances = tree.query(positions, _NEIGHBOURS + 1)[0][:, 1:]
    found = np.sqrt(np.square(distances).mean(axis=1))
    return np.asarray(np.maximum(found, _LEAST_SPACING * (np.median(found) or 1.0)), np.float32)
