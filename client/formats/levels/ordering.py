"""The order in which Gaussians become pages, and the order in a page in which neighbours are merged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float32, Float64
from lumigrad.client.formats.clustering import morton_codes
from lumigrad.client.formats.scene import StoredScene

Codes = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]

# The most Gaussians of a page at its finest level.
PAGE_ROWS = 65536
# Gaussians merged into one of the next level.
MERGED = 4
# Outliers beyond these quantiles of each axis must not coarsen the curve for all others.
_QUANTILES = 0.001, 0.999
# Set in the codes of Gaussians that would stretch the pages of their small neighbours.
_LARGE = np.uint64(1 << 63)
# Fewest sampled Gaussians per page from which the typical extent of a page is measured.
_LEAST = 4
_CUT = 3.0


@dataclass(frozen=True)
class Curve:
    """A Z-order curve through a scene, on which Gaussians that are larger than pages come last.

    Attributes:
        low: [3] corner of the box that the curve fills.
        high: [3] the opposite corner.
        reach: the largest cut-off radius of a Gaussian on an ordinary page, scene units.
    """

    low: Float64
    high: Float64
    reach: float

    @staticmethod
    def through(means: Float32, share: float, page_rows: int) -> Curve:
        """Fits a curve to sampled positions [N, 3], N >= 1, that are a fraction `share` of a scene."""
        low, high = np.quantile(means.astype(np.float64), _QUANTILES, axis=0)
        rows = int(page_rows * share)
        if rows < _LEAST or len(means) <= rows:
            return Curve(low, high, np.inf)
        ordered = means[np.argsort(morton_codes(means, low, high))]
        starts = np.arange(0, len(means), rows)
        sizes = np.maximum.reduceat(ordered, starts) - np.minimum.reduceat(ordered, starts)
        return Curve(low, high, float(np.median(sizes.max(axis=1))))

    def codes(self, means: Float32, scales: Float32) -> Codes:
        """Returns the places [N] of Gaussians along the curve."""
        large = _CUT * scales.max(axis=1) > self.reach
        return np.asarray(morton_codes(means, self.low, self.high) | np.where(large, _LARGE, np.uint64(0)))


def pages_of(codes: Codes, page_rows: int, *, last: bool) -> Iterator[int]:
    """Yields where pages of sorted Gaussians end; all but the last are at least half full.

    A page ends between the two neighbours whose common cell is largest, so that pages are as compact as cells.

    Args:
        codes: [N] ascending.
        page_rows: the most Gaussians of a page.
        last: whether the scene ends here; otherwise Gaussians that do not fill a page are left for later.
    """
    start = 0
    while len(codes) - start > page_rows:
        first = start + (page_rows + 1) // 2
        changes = codes[first - 1 : start + page_rows] ^ codes[first : start + page_rows + 1]
        start = first + len(changes) - 1 - int(changes[::-1].argmax())
        yield start
    if last and start < len(codes):
        yield len(codes)


def merging_order(scene: StoredScene) -> Integers:
    """Returns indices [N] such that runs of 4, 16, 64, … Gaussians are compact: the leaves of a balanced k-d tree."""
    size = 1
    while size < len(scene):
        size *= MERGED
    # Padding lies at infinity and comes last.
    points = np.full((3, size), np.inf, np.float32)
    points[:, : len(scene)] = scene.means.T
    order = np.arange(size).reshape(1, size)
    while order.shape[1] > MERGED:
        found = points[:, order]
        low, high = _of_runs(np.minimum, found), _of_runs(np.maximum, np.where(np.isinf(found), -np.inf, found))
        # Runs without a point have the extent -inf.
        axes = (high - np.where(np.isinf(low), 0.0, low)).argmax(axis=0)
        half = order.shape[1] // 2
        values = found[axes, np.arange(len(order))]
        order = np.take_along_axis(order, np.argpartition(values, half - 1, axis=1), axis=1).reshape(-1, half)
    flat = order.ravel()
    return flat[flat < len(scene)]


def _of_runs(extreme: np.ufunc, values: Float32) -> Float32:
    """Returns [D, R], the extremes of runs [D, R, 2^k], reduced in pairs, which is faster for many short runs."""
    shape = values.shape[:2]
    while values.size > shape[0] * shape[1]:
        pairs = values.reshape(-1, 2)
        values = extreme(pairs[:, 0], pairs[:, 1])
    return values.reshape(shape)
