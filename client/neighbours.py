"""How dense a cloud is: the mean distance from a point to its nearest neighbour."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

# Enough for a mean within a few per cent, few enough for a million points to take about a second.
_SAMPLES = 256
_BLOCK = 1 << 16


def mean_neighbour_distance(positions: npt.NDArray[Any]) -> float:
    """Mean distance to the nearest neighbour, over a fixed random sample of the points.

    Args:
        positions: [N, 3], scene units. Points that are not finite, and copies of a point, are ignored.

    Returns:
        The distance; 0 if no two points differ.
    """
    points = positions[np.isfinite(positions).all(axis=1)].astype(np.float64)
    if len(points) < 2:
        return 0.0
    points -= points.mean(axis=0)
    generator = np.random.default_rng(0)
    queries = points[generator.choice(len(points), min(_SAMPLES, len(points)), replace=False)]
    # A difference of squares: distances below this are rounding, so such pairs count as copies.
    tolerance = 1e-12 * float(np.square(points).sum(axis=1).max())
    nearest = np.full(len(queries), np.inf)
    for start in range(0, len(points), _BLOCK):
        block = points[start : start + _BLOCK]
        squared = np.square(block).sum(axis=1) - 2.0 * queries @ block.T + np.square(queries).sum(axis=1)[:, None]
        squared[squared <= tolerance] = np.inf
        np.minimum(nearest, squared.min(axis=1), out=nearest)
    found = nearest[np.isfinite(nearest)]
    return float(np.sqrt(found).mean()) if len(found) else 0.0
