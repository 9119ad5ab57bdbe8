"""Pearson's test of counts against what was expected of them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

# The quantile of the normal distribution that is exceeded with probability 1e-6.
_RARE = 4.75


def assert_distributed(counts: ArrayLike, probabilities: ArrayLike) -> None:
    """The counts are those of independent draws with these probabilities, as far as one in a million can tell.

    Cells in which fewer than five are expected are taken together, so that the sum is distributed as it should be.
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
