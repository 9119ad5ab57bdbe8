"""Pearson's chi-squared test of counts against probabilities."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

# The quantile of the normal distribution that is exceeded with probability 1e-6.
_RARE = 4.75


def assert_distributed(counts: ArrayLike, probabilities: ArrayLike) -> None:
    """Asserts that counts are those of independent draws with these probabilities, at a significance level of 1e-6.

    Cells with an expected count below five are merged, so that the statistic is approximately chi-squared.
    """
    found, p = np.asarray(counts, np.float64), np.asarray(probabilities, np.float64)
    expected = p / p.sum() * found.sum()
    few = expected < 5.0
    if few.any():
        found = np.append(found[~few], found[few].sum())
        expected = np.append(expected[~few], expected[few].sum())
    impossible = expected == 0.0
    assert not found[impossible].any(), "drawn although the probability is 0"
    found, expected = found[~impossible], expected[~impossible]
    statistic, freedom = float(((found - expected) ** 2 / expected).sum()), len(found) - 1
    # Wilson and Hilferty: the cube root is nearly normal.
    spread = 2.0 / (9.0 * freedom)
    score = ((statistic / freedom) ** (1.0 / 3.0) - (1.0 - spread)) / math.sqrt(spread)
    assert abs(score) < _RARE, f"chi-square {statistic:.1f} with {freedom} degrees of freedom: {score:.2f} deviations"
