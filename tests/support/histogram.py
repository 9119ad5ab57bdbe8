"""A histogram of durations, accurate to a few per cent, whose memory does not depend on their number."""

from __future__ import annotations

import math
from collections import Counter

# Ratio of the bounds of neighbouring buckets.
_RATIO = 1.05
_LEAST_SECONDS = 1e-5


class Histogram:
    """Counts of durations in buckets whose bounds grow geometrically."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0
        self.max = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        bucket = max(0, math.ceil(math.log(max(seconds, _LEAST_SECONDS) / _LEAST_SECONDS, _RATIO)))
        self._buckets[bucket] += 1
        self.count += 1
        self.max = max(self.max, seconds)

    def merge(self, other: Histogram) -> None:
        """Add the counts of another histogram."""
        self._buckets += other._buckets
        self.count += other.count
        self.max = max(self.max, other.max)

    def quantile(self, share: float) -> float:
        """The time within which this share of the durations lies; 0 if there are none."""
        left = share * self.count
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                return min(self.max, _LEAST_SECONDS * _RATIO**bucket)
        return self.max

    def __str__(self) -> str:
        parts = [f"p{100 * share:g} {self.quantile(share) * 1e3:.1f}" for share in (0.5, 0.9, 0.99)]
        return f"{self.count} calls, ms: {', '.join(parts)}, max {self.max * 1e3:.1f}"
