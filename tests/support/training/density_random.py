"""A reference of density control's random numbers in numpy: Philox4x32-10, and normals in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: Words, key: Words) -> Words:
    """Counters [N, 4] and keys [N, 2], of 32 bits each, to words [N, 4]."""
    c, k = counter.copy(), key.copy()
    for _ in range(10):
        first, second = c[:, 0] * np.uint64(0xD2511F53), c[:, 2] * np.uint64(0xCD9E8D57)
        c = np.stack(
            [(second >> _HALF) ^ c[:, 1] ^ k[:, 0], second & _LOW, (first >> _HALF) ^ c[:, 3] ^ k[:, 1], first & _LOW],
            axis=1,
        )
        k = (k + np.array([0x9E3779B9, 0xBB67AE85], np.uint64)) & _LOW
    return c


def words(seed: int, step: int, stream: int, rows: NDArray[np.integer]) -> Words:
    row = rows.astype(np.uint64)
    constant = [np.full_like(row, value) for value in (stream, step & 0xFFFFFFFF, step >> 32)]
    key = np.tile(np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint64), (len(row), 1))
    return philox(np.stack([row, *constant], axis=1), key)


def normals(seed: int, step: int, stream: int, rows: NDArray[np.integer]) -> NDArray[np.float64]:
    """Normal numbers [N, 4], by the Box-Muller transform of the words after their conversion to float32."""
    w = words(seed, step, stream, rows)
    unit = (w[:, 0::2] >> np.uint64(1) | np.uint64(1)).astype(np.float32).astype(np.float64) * 2.0**-31
    turn = w[:, 1::2].astype(np.uint32).view(np.int32).astype(np.float32).astype(np.float64) * 2.0**-31
    radius = np.sqrt(-2.0 * np.log(unit))
    pairs = np.stack([radius * np.cos(np.pi * turn), radius * np.sin(np.pi * turn)], axis=-1)
    return pairs.reshape(len(w), 4)
