"""Lens distortion: coefficients, and the radius up to which the distortion is invertible."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.polynomial import Polynomial

from lumigrad.kernels.checks import check

COEFFICIENTS = 8
# Far above the coefficients of any lens; powers of larger ones would overflow.
_LARGEST = 1e6
# Smaller coefficients of s**n change nothing in the field of view of a lens, and the roots would overflow.
_SMALLEST = 1e-30


def coefficients(distortion: Sequence[float] | None) -> tuple[float, ...]:
    """OpenCV's k1 k2 p1 p2 k3 k4 k5 k6; missing ones are 0.

    Raises:
        ArgumentError: The number of coefficients is not 0, 4, 5 or 8, or a coefficient is not finite or beyond 1e6.
    """
    given = np.asarray(() if distortion is None else distortion, np.float64).reshape(-1)
    expected = f"4, 5 or 8 values k1 k2 p1 p2 [k3 [k4 k5 k6]] in [-{_LARGEST:g}, {_LARGEST:g}], or none"
    fits = len(given) in (0, 4, 5, 8) and bool((np.abs(given) <= _LARGEST).all())
    check(fits, "distortion", expected, given.tolist())
    return (*given.tolist(), *(0.0,) * (COEFFICIENTS - len(given)))


def max_radius_squared(distortion: Sequence[float]) -> float:
    """The squared radius up to which the distorted radius increases with the radius; infinite if it always does.

    With s the square of the undistorted radius r, the distorted radius is r a(s) / b(s); its derivative has the sign of
    (a + 2 s a') b - 2 s a b', which is 1 at s = 0. Tangential distortion is ignored.

    Args:
        distortion: [8] k1 k2 p1 p2 k3 k4 k5 k6.
    """
    k1, k2, _, _, k3, k4, k5, k6 = distortion
    return first_fold((1.0, k1, k2, k3), (1.0, k4, k5, k6))


def first_fold(above: Sequence[float], below: Sequence[float]) -> float:
    """The smallest s > 0 at which r a(s) / b(s) stops rising with r, the root of s; infinite if it always rises.

    Args:
        above: Coefficients of a, in ascending powers.
        below: Coefficients of b, in ascending powers.
    """
    a, b, s = Polynomial(above), Polynomial(below), Polynomial([0.0, 1.0])
    slope = (a + 2 * s * a.deriv()) * b - 2 * s * a * b.deriv()
    # The distorted radius is discontinuous at roots of the denominator.
    return min(smallest_root(slope.coef), smallest_root(b.coef))


def smallest_root(coefficients: Sequence[float] | np.ndarray) -> float:
    """The smallest real root above 0 of a polynomial with coefficients in ascending powers; infinite if it has none.

    0 if the computation overflows.
    """
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            roots = Polynomial(coefficients).trim(_SMALLEST).roots()
    except np.linalg.LinAlgError:
        # Coefficients or their ratios overflow: every root must be assumed to be at 0.
        return 0.0
    real = [float(root.real) for root in roots if abs(root.imag) <= 1e-9 * abs(root) and root.real > 0.0]
    return min(real, default=math.inf)
