"""Histograms that record many values at once, which is cheaper than in prometheus_client."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class _Series:
    __slots__ = ("counts", "total")

    def __init__(self, count: int) -> None:
        # Counts by bucket, not cumulative; the last has no upper bound.
        self.counts = [0] * count
        self.total = 0.0


class Histograms(Collector):
    """The histograms of one metric, by the values of its labels."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], *, buckets: Sequence[float], registry: CollectorRegistry
    ) -> None:
        """Register a metric whose buckets have these ascending upper bounds."""
        self._name, self._text, self._labels = f"lumigrad_{name}", text, labels
        self._bounds = tuple(buckets)
        bounds = (*buckets, float("inf"))
        self._names = [floatToGoString(bound) for bound in bounds]  # type: ignore[no-untyped-call]
        self._lock = threading.Lock()
        self._series: dict[tuple[str, ...], _Series] = {}
        registry.register(self)

    def observe(self, value: float, *labels: str) -> None:
        """Count a value."""
        with self._lock:
            series = self._series.get(labels) or self._add(labels)
            series.counts[bisect_left(self._bounds, value)] += 1
            series.total += value

    def observe_all(self, values: Sequence[float], *labels: str) -> None:
        """Count several values at once, faster than one by one."""
        bounds = self._bounds
        with self._lock:
            series = self._series.get(labels) or self._add(labels)
            counts = series.counts
            for value in values:
                counts[bisect_left(bounds, value)] += 1
            series.total += sum(values)

    def add(self, counts: Sequence[int], total: float, *labels: str) -> None:
        """Count values by bucket, not cumulative; `total` is their sum."""
        with self._lock:
            series = self._series.get(labels) or self._add(labels)
            series.counts = [old + more for old, more in zip(series.counts, counts, strict=True)]
            series.total += total

    def show(self, *labels: str) -> None:
        """Show a series without values."""
        with self._lock:
            self._add(labels)

    def collect(self) -> Iterator[Metric]:
        """Yield all series."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        with self._lock:
            found = [(labels, list(series.counts), series.total) for labels, series in self._series.items()]
        for labels, counts, total in found:
            seen, buckets = 0, []
            for name, count in zip(self._names, counts, strict=True):
                seen += count
                buckets.append((name, seen))
            family.add_metric(labels, buckets, total)
        yield family

    def _add(self, labels: tuple[str, ...]) -> _Series:
        series = self._series[labels] = _Series(len(self._names))
        return series
