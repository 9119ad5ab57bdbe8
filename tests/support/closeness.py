"""Assertions that arrays are close, by the tolerances of the engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike


def assert_same_bits(actual: Mapping[str, ArrayLike], expected: Mapping[str, ArrayLike]) -> None:
    """Asserts that there is an array for each expected one, of the same type, shape and bits."""
    for name, value in expected.items():
        a, e = np.asarray(actual[name]), np.asarray(value)
        assert (a.dtype, a.shape) == (e.dtype, e.shape), name
        whole = f"i{e.itemsize}"
        np.testing.assert_array_equal(
            np.ascontiguousarray(a).view(whole), np.ascontiguousarray(e).view(whole), err_msg=name
        )


def spread_out(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns an equal array whose elements are not adjacent in memory."""
    every_second = tuple(slice(0, None, 2) for _ in values.shape)
    padded = np.full([2 * size for size in values.shape], 7, values.dtype)
    padded[every_second] = values
    return padded[every_second]


def assert_image(actual: ArrayLike, expected: ArrayLike, tolerance: float | ArrayLike = 1e-5) -> None:
    """Asserts that no pixel differs by more than the tolerance, which may be given per element."""
    a, e = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert a.shape == e.shape, f"shape {a.shape}, expected {e.shape}"
    excess = np.abs(a - e) - np.asarray(tolerance, np.float64)
    assert not np.isnan(a).any(), "not a number"
    if excess.size and excess.max() > 0:
        at = np.unravel_index(int(excess.argmax()), excess.shape)
        count = int((excess > 0).sum())
        raise AssertionError(f"{count} of {a.size} elements differ; at {at}: {a[at]!r}, expected {e[at]!r}")


def assert_of_maximum(name: str, actual: ArrayLike, expected: ArrayLike, tolerance: float = 1e-4) -> None:
    """Asserts that differences are small relative to the largest expected element; NaN matches any finite value."""
    a, e = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert a.shape == e.shape, f"{name}: shape {a.shape}, expected {e.shape}"
    assert np.isfinite(a).all(), f"{name}: not finite"
    known = np.isfinite(e)
    if not known.any():
        return
    scale = max(float(np.abs(e[known]).max()), 1e-12)
    worst = float(np.abs(a - e)[known].max()) / scale
    assert worst <= tolerance, f"{name}: off by {worst:.2e} of the maximum {scale:.3e}, allowed {tolerance:.0e}"


def assert_relative(
    name: str, actual: ArrayLike, expected: ArrayLike, tolerance: float = 1e-4, noise: float = 0.0
) -> None:
    """Asserts that the norm of the difference is small relative to the expected norm, or at most the noise."""
    a, e = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert a.shape == e.shape, f"{name}: shape {a.shape}, expected {e.shape}"
    assert np.isfinite(a).all(), f"{name}: not finite"
    scale = max(float(np.linalg.norm(e)), 1e-7)
    error = float(np.linalg.norm(a - e))
    allowed = tolerance * scale + noise
    assert error <= allowed, (
        f"{name}: off by {error / scale:.2e} of the norm {scale:.3e}, allowed {allowed / scale:.1e}"
    )
