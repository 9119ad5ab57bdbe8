"""Parts that compressing writers share: an order in which neighbours lie side by side, code books and palettes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float32, Float64

Integers = npt.NDArray[np.int64]

# Bits of each axis in a Morton code; three axes fit into 64.
_MORTON_BITS = 21
_LLOYD_STEPS = 12
_QUANTILES = 4096
# Axes along which cells of a palette are split.
_PRINCIPAL_AXES = 16
# Samples for fitting code books and axes; larger ones change the result by less than its own error.
_SAMPLE, _VECTORS = 1 << 18, 1 << 14


def morton_order(means: Float32) -> Integers:
    """Returns the indices [N] that sort finite positions [N, 3] along a Z-order curve."""
    low, high = means.min(axis=0, initial=np.inf), means.max(axis=0, initial=-np.inf)
    return np.argsort(morton_codes(means, low, high), kind="stable")


def morton_codes(means: Float32, low: npt.NDArray[Any], high: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Returns the Morton codes [N] of positions [N, 3] in a box, below 2^63.

    Positions outside the box are clamped to it.
    """
    start, end = np.asarray(low, np.float64), np.asarray(high, np.float64)
    fractions = (means - start) / np.where(end > start, end - start, 1.0)
    cells = (np.clip(fractions, 0.0, 1.0) * ((1 << _MORTON_BITS) - 1)).astype(np.uint64)
    codes = np.zeros(len(means), np.uint64)
    for axis in range(3):
        codes |= _spread(cells[:, axis]) << np.uint64(axis)
    return codes


def code_book(values: npt.NDArray[Any], size: int) -> Float64:
    """Returns `size` ascending numbers for values of any shape, by Lloyd's algorithm."""
    flat = values.ravel().astype(np.float64)
    # Sampling the sorted values at even spacing keeps the extremes.
    flat = np.sort(flat)[np.linspace(0, flat.size - 1, min(flat.size, _SAMPLE)).astype(np.int64)]
    # The best spacing is proportional to density^(-1/3), so between quantiles entries grow with their distance^(2/3).
    quantiles = np.interp(np.linspace(0, flat.size - 1, _QUANTILES), np.arange(flat.size), flat)
    shares = np.concatenate([[0.0], np.cumsum(np.diff(quantiles) ** (2 / 3))])
    book = np.interp(np.linspace(0, shares[-1], size), shares, quantiles)
    totals = np.concatenate([[0.0], np.cumsum(flat)])
    for _ in range(_LLOYD_STEPS):
        # Sums of sorted values between the middles of neighbouring entries.
        ends = np.concatenate([[0], np.searchsorted(flat, (book[1:] + book[:-1]) / 2), [flat.size]])
        sums, counts = np.diff(totals[ends]), np.diff(ends)
        book = np.where(counts > 0, sums / np.maximum(counts, 1), book)
    return np.sort(book)


def nearest_entries(book: Float64, values: npt.NDArray[Any]) -> Integers:
    """Returns the indices of the nearest entries of an ascending code book, in the shape of the values."""
    return np.searchsorted((book[1:] + book[:-1]) / 2, values.astype(np.float64))


def palette(vectors: Float32, size: int) -> tuple[Float32, Integers]:
    """Returns at most `size` representatives [P, D] of vectors [N, D], and the index of each vector's [N].

    Cells with the largest errors are split at their means along the axis of their largest spread, until there are
    enough; the means of the cells are the representatives. Takes O(N log P) steps, where k-means takes O(N P).
    """
    if len(vectors) <= size:
        return vectors, np.arange(len(vectors))
    rows = np.ascontiguousarray(_principal_coordinates(vectors).T)
    order, bounds, before = np.arange(len(vectors)), np.array([0, len(vectors)]), 0
    while before < len(bounds) <= size:
        before = len(bounds)
        places, bounds = _split(rows, bounds, size - (len(bounds) - 1))
        rows, order = np.take(rows, places, axis=1), order[places]
    counts = np.diff(bounds)
    sums = np.add.reduceat(vectors[order], bounds[:-1], axis=0, dtype=np.float64)
    labels = np.empty(len(vectors), np.int64)
    labels[order] = np.repeat(np.arange(len(counts)), counts)
    return np.asarray(sums / counts[:, None], np.float32), labels


def _principal_coordinates(vectors: Float32) -> Float32:
    """Returns [N, up to 16], the coordinates along the axes of the largest variance."""
    sample = vectors[:: max(1, len(vectors) // _VECTORS)].astype(np.float64)
    _, axes = np.linalg.eigh(np.cov(sample, rowvar=False))
    return np.asarray(vectors @ axes[:, -_PRINCIPAL_AXES:].astype(np.float32))


def _split(rows: Float32, bounds: Integers, room: int) -> tuple[Integers, Integers]:
    """Splits the cells with the largest errors: at most `room`, and at most half of all.

    Args:
        rows: [D, N] coordinates, cell by cell; made relative to the mean of their cell in place.
        bounds: [P + 1] where the cells begin and end.
        room: the most cells to split.

    Returns:
        The order [N] of the vectors as indices into `rows`, and the bounds of the new cells.
    """
    counts = np.diff(bounds)
    means = np.add.reduceat(rows, bounds[:-1], axis=1, dtype=np.float64) / counts
    rows -= np.repeat(means.astype(np.float32), counts, axis=1)
    spread = np.add.reduceat(np.square(rows), bounds[:-1], axis=1, dtype=np.float64)
    errors = spread.sum(axis=0)
    chosen = np.zeros(len(counts), bool)
    chosen[np.argsort(errors, kind="stable")[-min(room, (len(counts) + 1) // 2) :]] = True
    chosen &= errors > 0
    cell = np.repeat(np.arange(len(counts)), counts)
    above = (rows[spread.argmax(axis=0)[cell], np.arange(len(cell))] > 0) & chosen[cell]
    places = np.argsort(2 * cell + above, kind="stable")
    middles = bounds[1:] - np.add.reduceat(above, bounds[:-1], dtype=np.int64)
    return places, np.unique(np.concatenate([bounds, middles]))


def _spread(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns the values with two zero bits inserted between adjacent bits."""
    spread = values
    for shift, mask in (
        (32, 0x1F00000000FFFF),
        (16, 0x1F0000FF0000FF),
        (8, 0x100F00F00F00F00F),
        (4, 0x10C30C30C30C30C3),
        (2, 0x1249249249249249),
    ):
        spread = (spread | spread << np.uint64(shift)) & np.uint64(mask)
    return spread
