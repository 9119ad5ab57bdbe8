"""Numbers that Hypothesis draws for the kernels, the same ones in each run."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

numbers = st.floats(-1, 1, width=32)
common = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers of every order of magnitude from `low` to `high`."""
    return st.floats(np.log10(low), np.log10(high)).map(lambda exponent: float(np.float32(10**exponent)))
