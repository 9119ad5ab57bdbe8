"""Pulsar's float32 arithmetic: its approximate exponential and logarithm, and its order of summation."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float32]

f32 = np.float32
EPS = f32(1e-6)
LARGEST = f32(3.4e38)
NO_BOX = 65535


def fast_exp(x: ArrayLike) -> Floats:
    """Section 1.1: two to the power of x / ln 2, with a mantissa that is linear between powers of two."""
    power = np.maximum(np.asarray(x, f32) * f32(1.442695040), f32(-126))
    bits = (power + f32(126.94269504)) * f32(8388608)
    return np.asarray(bits.astype(np.uint32).view(f32), f32)


def fast_ln(x: ArrayLike) -> Floats:
    """Section 1.1: the bit pattern of x, read as a fixed-point logarithm."""
    bits = np.ascontiguousarray(np.asarray(x, f32)).view(np.uint32)
    return np.asarray(bits.astype(f32) * f32(8.2629582881927490e-8) - f32(87.989971088), f32)


def dot(a: Floats, b: Floats) -> Floats:
    """Scalar product over the last axis: x, then y, then z."""
    return np.asarray((a[..., 0] * b[..., 0] + a[..., 1] * b[..., 1]) + a[..., 2] * b[..., 2], f32)


def length(a: Floats) -> Floats:
    """Euclidean length over the last axis."""
    return np.sqrt(dot(a, a))


def scaled(vectors: Floats, factors: Floats) -> Floats:
    """Vectors [..., 3] times one factor each [...]."""
    return vectors * np.asarray(factors)[..., None]
