"""Quaternions of length 1, and of which the largest component is left out, as most compressed formats store them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.arrays import Float32, Float64

Array = npt.NDArray[Any]


def unit_quats(quats: Array) -> Float64:
    """[N, 4] (w, x, y, z) at length 1; of length 0: no rotation, which is what Inria's formula makes of it."""
    wide = quats.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    return np.asarray(np.where(lengths > 0, wide / np.maximum(lengths, 1e-300), np.array([1.0, 0.0, 0.0, 0.0])))


def from_smallest_three(largest: Array, others: Array) -> Float32:
    """[N, 4] quaternions of length 1 in the file's order of components, the largest one positive.

    Args:
        largest: [N] which component was left out, 0 to 3.
        others: [N, 3] the others in order.
    """
    rows = np.arange(len(others))
    # Row k: where the three others go if component k was left out.
    places = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])[largest]
    wide = others.astype(np.float64)
    quats = np.zeros((len(others), 4))
    quats[rows[:, None], places] = wide
    quats[rows, largest] = np.sqrt(np.maximum(0.0, 1.0 - np.square(wide).sum(axis=1)))
    return quats.astype(np.float32)


def smallest_three(quats: Float64) -> tuple[Array, Float64]:
    """What `from_smallest_three` takes, from quaternions [N, 4] of length 1 in the file's order."""
    rows = np.arange(len(quats))
    largest = np.abs(quats).argmax(axis=1)
    # q and -q are the same rotation.
    positive = quats * np.where(quats[rows, largest] < 0, -1.0, 1.0)[:, None]
    others = positive[np.arange(4)[None] != largest[:, None]].reshape(len(quats), 3)
    return largest, others
