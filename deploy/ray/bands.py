"""Divides an image into bands of consecutive rows of tiles, one for each worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# Height in pixels of the tiles in which engines list Gaussians, and of Inria's tiles.
TILE = 16
# Engines round radii to whole pixels, and clamp them to a largest radius.
_MARGIN, _LARGEST_RADIUS = 1.0, 1e6
# The cost of a tile without Gaussians, relative to the cost of one Gaussian in a tile.
_EMPTY_TILE = 16.0
Integers = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Reach:
    """The rows of tiles that the visible Gaussians of a part reach.

    Attributes:
        rows: [M] the Gaussians' rows in the part, ascending.
        first: [M] the first row of tiles that each Gaussian reaches.
        last: [M] the last row of tiles that each Gaussian reaches.
        counts: [3, tile rows] for each row of tiles: about how many tiles the Gaussians reach in it; how many Gaussians
            have it as their first row; how many as their last.
    """

    rows: Integers
    first: Integers
    last: Integers
    counts: Integers

    @staticmethod
    def of(means: npt.NDArray[Any], radii: Integers, width: int, height: int, pixel_center: float) -> Reach:
        """Finds the reach from projected means [N, 2] and radii [N, 2], pixels; culled Gaussians have radii of 0."""
        rows = np.flatnonzero(radii.any(axis=1))
        middle, radius = means[rows].astype(np.float64) - pixel_center, radii[rows].astype(np.float64)
        radius = np.where(radius >= _LARGEST_RADIUS, np.inf, radius) + _MARGIN
        (columns, first), (columns_end, last) = (
            _tiles(middle + side * radius, np.array([width, height])) for side in (-1.0, 1.0)
        )
        most = -(-height // TILE)
        across = (columns_end - columns + 1).astype(np.int64)
        ends = np.bincount(last, minlength=most)
        # The running sum of `steps` adds each Gaussian's width to every row from its first to its last.
        steps = np.bincount(first, across, most + 1) - np.bincount(last + 1, across, most + 1)
        counts = np.stack([np.cumsum(steps)[:most].astype(np.int64), np.bincount(first, minlength=most), ends])
        return Reach(rows, first, last, counts)

    def within(self, begin: int, end: int) -> Integers:
        """Returns the rows of the Gaussians that reach any of the rows of tiles [begin, end)."""
        return self.rows[(self.last >= begin) & (self.first < end) & (begin < end)]


def _tiles(places: npt.NDArray[np.float64], size: Integers) -> npt.NDArray[np.int32]:
    """Returns the tiles [2, M] of places [M, 2] in pixels; places off the image get the tile at its edge."""
    tiles: npt.NDArray[np.int32] = np.clip(np.floor(places / TILE), 0, (size - 1) // TILE).astype(np.int32).T
    return tiles


def edges_of(counts: Integers, bands: int, width: int) -> list[int]:
    """Returns the rows of tiles [bands + 1] at which bands of about the same cost begin, and the end of the last band.

    Args:
        counts: [workers, 3, tile rows] of `Reach`.
        bands: the number of bands; if there are fewer rows, some bands are empty.
        width: width of the image, pixels.
    """
    cost = np.cumsum(counts[:, 0].sum(axis=0) + _EMPTY_TILE * -(-width // TILE))
    shares = cost[-1] * np.arange(1, bands) / bands
    # If there are enough rows, each band has at least one.
    inner, rows = np.searchsorted(cost, shares) + 1, len(cost)
    if rows >= bands:
        numbers = np.arange(1, bands)
        inner = np.minimum(np.maximum.accumulate(np.maximum(inner - numbers, 0)) + numbers, rows - bands + numbers)
    return [0, *inner.tolist(), rows]


def shared_out(counts: Integers, edges: Sequence[int]) -> list[int]:
    """Returns the band of each worker. Workers with most of a band's Gaussians draw it, so that few are moved.

    Args:
        counts: [workers, 3, tile rows] of `Reach`.
        edges: the edges of the bands, of which there are as many as workers.
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
