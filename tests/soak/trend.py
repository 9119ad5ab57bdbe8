"""Trends: the median of the slopes between all pairs of windows, which a few outliers do not move."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Share of the windows, at the beginning, in which caches fill and threads start.
WARM_UP = 0.3
# Below this, caches that are still filling cannot be told from growth.
FEWEST_WINDOWS = 8


@dataclass(frozen=True)
class Trend:
    """The trend of one quantity over the windows of a soak."""

    name: str  # Process and quantity.
    first: float  # Median over the first third of the windows after the warm-up.
    last: float  # Median over the last third.
    # Growth from the first to the last of these windows, along the fitted line; or per minute, if times are given.
    growth: float
    limit: float  # Largest good growth.
    windows: int  # Number of fitted windows; fewer than `FEWEST_WINDOWS` show nothing.

    @property
    def is_good(self) -> bool:
        """Whether the quantity does not grow, as far as the windows show."""
        return self.windows < FEWEST_WINDOWS or self.growth <= self.limit


def fitted(name: str, values: Sequence[float], limit: float, minutes: Sequence[float] | None = None) -> Trend:
    """The trend of a quantity that was sampled once in each window; `minutes` are the times of the samples."""
    start = int(WARM_UP * len(values))
    steady = values[start:]
    times = range(len(steady)) if minutes is None else minutes[start:]
    pairs = itertools.combinations(zip(times, steady, strict=True), 2)
    slopes = [(y - x) / (then - now) for (now, x), (then, y) in pairs]
    span = len(steady) - 1 if minutes is None else 1
    growth = statistics.median(slopes) * span if slopes else 0.0
    third = max(1, len(steady) // 3)
    return Trend(
        name, statistics.median(steady[:third]), statistics.median(steady[-third:]), growth, limit, len(steady)
    )
