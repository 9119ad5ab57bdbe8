"""The levels of one page: each merges the Gaussians of the level before it."""

from __future__ import annotations

from collections.abc import Iterable
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
        errors: of each level, scene units, see `GaussianLevels`.
        bounds: [2, 3], see `GaussianLevels`.
        core: [2, 3] the same up to one standard deviation.
    """

    levels: list[StoredScene]
    errors: list[float]
    bounds: Float32
    core: Float32

    @staticmethod
    def of(scene: StoredScene, count: int) -> Page:
        """Merges a page of at least one Gaussian into so many levels, the page itself the first."""
        scene = scene.reordered(merging_order(scene))
        levels, errors = [scene], [0.0]
        variances = np.zeros(len(scene))
        for _ in range(count - 1):
            if len(scene) > 1:
                scene, variances = merged(scene, np.arange(0, len(scene), MERGED), variances)
            levels.append(scene)
            errors.append(max(errors[-1], error_of(scene, variances)))
        core, bounds = _boxes(levels, (1.0, CUT))
        return Page(levels, errors, bounds, core)


def levels_of(rows: int) -> int:
    """Returns the number of levels of a page of so many rows, the last of one row."""
    count = 1
    while rows > 1:
        rows, count = -(-rows // MERGED), count + 1
    return count


def _boxes(scenes: Iterable[StoredScene], deviations: tuple[float, ...]) -> list[Float32]:
    """Returns [2, 3] for each number of standard deviations, the box around all Gaussians up to it."""
    low, high = np.full((len(deviations), 3), np.inf), np.full((len(deviations), 3), -np.inf)
    for scene in scenes:
        spread = np.sqrt(np.einsum("nii->ni", covariances_of(scene)))
        for place, count in enumerate(deviations):
            low[place] = np.minimum(low[place], (scene.means - count * spread).min(axis=0))
            high[place] = np.maximum(high[place], (scene.means + count * spread).max(axis=0))
    # Rounded outwards, so that float32 cuts nothing off.
    low32, high32 = np.nextafter(low.astype(np.float32), -np.inf), np.nextafter(high.astype(np.float32), np.inf)
    return list(np.stack([low32, high32], axis=1).astype(np.float32))
