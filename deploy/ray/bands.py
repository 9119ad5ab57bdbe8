"""Bands of an image: rows of tiles in a row, of which each worker draws one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# The tiles in which engines list Gaussians, and Inria's, have this height in pixels.
TILE = 16
# The engines round radii to whole pixels, and end them here.
_MARGIN, _LARGEST_RADIUS = 1.0, 1e6
# The cost of a tile without Gaussians, in those of a tile of one.
_EMPTY_TILE = 16.0
Integers = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Reach:
    """The rows of tiles that the visible Gaussians of a part reach.

    Attributes:
        rows: [M] their rows in the part, ascending.
        first: [M] the first row of tiles of each.
        last: [M] its last one.
        counts: [3, tile rows]: the tiles that they reach in each row, about; how many begin there; how many end there.
    """

    rows: Integers
    first: Integers
    last: Integers
    counts: Integers

    @staticmethod
    def of(means: npt.NDArray[Any], radii: Integers, width: int, height: int, pixel_center: float) -> Reach:
        """Finds it from projected means [N, 2] and radii [N, 2], pixels; those that are culled have radii of 0."""
        rows = np.flatnonzero(radii.any(axis=1))
        middle, radius = means[rows].astype(np.float64) - pixel_center, radii[rows].astype(np.float64)
        radius = np.where(radius >= _LARGEST_RADIUS, np.inf, radius) + _MARGIN
        (columns, first), (columns_end, last) = (
            _tiles(middle + side * radius, np.array([width, height])) for side in (-1.0, 1.0)
        )
        most = -(-height // TILE)
        across = (columns_end - columns + 1).astype(np.int64)
        ends = np.bincount(last, minlength=most)
        # Sums over Gaussians of the rows from their first to their last one.
        steps = np.bincount(first, across, most + 1) - np.bincount(last + 1, across, most + 1)
        counts = np.stack([np.cumsum(steps)[:most].astype(np.int64), np.bincount(first, minlength=most), ends])
        return Reach(rows, first, last, counts)

    def within(self, begin: int, end: int) -> Integers:
        """The rows of those that reach any of the rows of tiles from `begin` to before `end`."""
        return self.rows[(self.last >= begin) & (self.first < end) & (begin < end)]


def _tiles(places: npt.NDArray[np.float64], size: Integers) -> npt.NDArray[np.int32]:
    """[2, M] the tiles of places [M, 2], pixels, those off the image at its edge."""
    tiles: npt.NDArray[np.int32] = np.clip(np.floor(places / TILE), 0, (size - 1) // TILE).astype(np.int32).T
    return tiles


def edges_of(counts: Integers, bands: int, width: int) -> list[int]:
    """The rows of tiles, [bands + 1], at which bands of about the same cost begin, and the end of the last one.

    Args:
        counts: [workers, 3, tile rows] of `Reach`.
        bands: their number; bands are empty where there are fewer rows.
        width: of the image, pixels.
    """
    cost = np.cumsum(counts[:, 0].sum(axis=0) + _EMPTY_TILE * -(-width // TILE))
    shares = cost[-1] * np.arange(1, bands) / bands
    # Each band has one row at least, if there are as many rows as bands.
    inner, rows = np.searchsorted(cost, shares) + 1, len(cost)
    if rows >= bands:
        numbers = np.arange(1, bands)
        inner = np.minimum(np.maximum.accumulate(np.maximum(inner - numbers, 0)) + numbers, rows - bands + numbers)
    return [0, *inner.tolist(), rows]


def shared_out(counts: Integers, edges: Sequence[int]) -> list[int]:
    """The band of each worker: those that have most of a band's Gaussians draw it, so that few are moved.

    Args:
        counts: [workers, 3, tile rows] of `Reach`.
        edges: the bands, as many as workers.
    """
    begun = np.pad(np.cumsum(counts[:, 1], axis=1), ((0, 0), (1, 0)))[:, edges[1:]]
    ended = np.pad(np.cumsum(counts[:, 2], axis=1), ((0, 0), (1, 0)))[:, edges[:-1]]
    own = begun - ended
    band_of: dict[int, int] = {}
    for place in np.argsort(-own, axis=None, kind="stable").tolist():
        worker, band = divmod(place, len(own))
        if worker not in band_of and band not in band_of.values():
            band_of[worker] = band
    return [band_of[worker] for worker in range(len(own))]
