"""How far from the axis a distorted lens is one to one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.polynomial import Polynomial

from lumigrad.kernels.checks import check

COEFFICIENTS = 8
# Far above that of any lens; powers of larger ones would not be finite.
_LARGEST = 1e6
# Coefficients of s**n below it say nothing about any s that a lens can see, and roots would not be finite.
_SMALLEST = 1e-30


def coefficients(distortion: Sequence[float] | None) -> tuple[float, ...]:
    """OpenCV's k1 k2 p1 p2 k3 k4 k5 k6, missing ones 0.

    Raises:
        ArgumentError: Their number is not 0, 4, 5 or 8, or one is not finite or beyond 1e6.
    """
    given = np.asarray(() if distortion is None else distortion, np.float64).reshape(-1)
    expected = f"4, 5 or 8 values k1 k2 p1 p2 [k3 [k4 k5 k6]] in [-{_LARGEST:g}, {_LARGEST:g}], or none"
    fits = len(given) in (0, 4, 5, 8) and bool((np.abs(given) <= _LARGEST).all())
    check(fits, "distortion", expected, given.tolist())
    return (*given.tolist(), *(0.0,) * (COEFFICIENTS - len(given)))


def max_radius_squared(distortion: Sequence[float]) -> float:
    """Up to where the distorted radius grows with the radius, as a square; infinite if it always does.

    With s the square of the undistorted radius r, the distorted one is r a(s) / b(s); its derivative has the sign of
    (a + 2 s a') b - 2 s a b', which is 1 at s = 0. The tangential part is left out.

    Args:
        distortion: [8] k1 k2 p1 p2 k3 k4 k5 k6.
    """
    k1, k2, _, _, k3, k4, k5, k6 = distortion
    above, below = Polynomial([1.0, k1, k2, k3]), Polynomial([1.0, k4, k5, k6])
    s = Polynomial([0.0, 1.0])
    slope = (above + 2 * s * above.deriv()) * below - 2 * s * above * below.deriv()
    # Where the denominator vanishes the radius jumps.
    roots = np.concatenate([slope.trim(_SMALLEST).roots(), below.trim(_SMALLEST).roots()])
    real = [float(root.real) for root in roots if abs(root.imag) <= 1e-9 * abs(root) and root.real > 0.0]
    return min(real, default=math.inf)
