"""A few places that lie far from all others, as those of cameras whose poses are wrong do."""

from __future__ import annotations

import numpy as np

from lumigrad.client.base.arrays import Array, Float64

# At least this share of all places is near, and others within so many times the distance of the farthest of them.
_SHARE, _FAR = 0.9, 10.0


def near_places(places: Float64) -> Array:
    """Returns which of the places [N, 3] are not strays, bool [N]; of fewer than eleven none is a stray."""
    distances = np.linalg.norm(places - np.median(places, axis=0), axis=1)
    reach = _FAR * np.quantile(distances, _SHARE, method="higher")
    # If nearly all are at one place, the others tell the size of the scene.
    return np.asarray((distances <= reach) | (reach == 0))
