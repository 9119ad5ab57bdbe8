"""The levels of one page: each merges the Gaussians of the level before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lumigrad.client.base.arrays import Float32
from lumigrad.client.formats.levels.merging import covariances_of, error_of, merged
from lumigrad.client.formats.levels.ordering import MERGED, merging_order
from lumigrad.client.formats.scene import StoredScene

# Gaussians end where renderers cut them off, at this many standard deviations.
CUT = 3.0


@dataclass(frozen=True)
class Page:
    """One page with all its levels.

    Attributes:
        levels: the Gaussians of each level, the finest first, each in the order in which they are merged.
        errors: the error of each level, scene units; see `GaussianLevels`.
        bounds: [L, 2, 3], see `GaussianLevels`.
        core: [2, 3] a box around all levels up to one standard deviation.
    """

    levels: list[StoredScene]
    errors: list[float]
    bounds: Float32
    core: Float32

    @staticmethod
    def of(scene: StoredScene, count: int) -> Page:
        """Merges a page of at least one Gaussian into `count` levels, the first of which is the page itself."""
        scene = scene.reordered(merging_order(scene))
        levels, errors = [scene], [0.0]
        variances = np.zeros(len(scene))
        for _ in range(count - 1):
            if len(scene) > 1:
                scene, variances = merged(scene, np.arange(0, len(scene), MERGED), variances)
            levels.append(scene)
            errors.append(max(errors[-1], error_of(scene, variances)))
        return Page(levels, errors, _boxes(levels, CUT), _boxes(levels, 1.0)[-1])


def levels_of(rows: int) -> int:
    """Returns the number of levels of a page of `rows` rows down to a level of one row."""
    count = 1
    while rows > 1:
        rows, count = -(-rows // MERGED), count + 1
    return count


def _boxes(levels: list[StoredScene], deviations: float) -> Float32:
    """Returns boxes [L, 2, 3] around the Gaussians of each level and of finer levels, at `deviations` sigma."""
    low, high = [], []
    for scene in levels:
        reach = deviations * np.sqrt(np.einsum("nii->ni", covariances_of(scene)))
        low.append((scene.means - reach).min(axis=0))
        high.append((scene.means + reach).max(axis=0))
    lowest, highest = np.minimum.accumulate(low).astype(np.float32), np.maximum.accumulate(high).astype(np.float32)
    # Rounded outwards, so that float32 cuts nothing off.
    return np.stack([np.nextafter(lowest, -np.inf), np.nextafter(highest, np.inf)], axis=1).astype(np.float32)
