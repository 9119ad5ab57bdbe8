"""All metrics of a worker at one moment."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from lumigrad.client.monitor.exposition import Sample

Key = tuple[str, ...]


class Snapshot:
    """Finds values by name and labels."""

    def __init__(self, samples: Iterable[Sample], moment: float) -> None:
        """`moment` is when they were read, seconds of any clock that only goes forward."""
        self.moment = moment
        self._samples: dict[str, list[Sample]] = defaultdict(list)
        for sample in samples:
            self._samples[sample.name].append(sample)

    def __contains__(self, name: object) -> bool:
        return name in self._samples

    def value(self, name: str, **labels: str) -> float:
        """The sum of what has these labels; 0 if there is none."""
        wanted = labels.items()
        return sum(sample.value for sample in self._samples.get(name, ()) if wanted <= sample.labels.items())

    def by(self, name: str, *labels: str, **wanted: str) -> dict[Key, float]:
        """The sums for each combination of some labels, of what has others as wanted."""
        sums: dict[Key, float] = defaultdict(float)
        for sample in self._samples.get(name, ()):
            if wanted.items() <= sample.labels.items():
                sums[tuple(sample.labels.get(label, "") for label in labels)] += sample.value
        return dict(sums)

    def labels(self, name: str) -> Mapping[str, str]:
        """The labels of a metric that has one sample; none if it has none."""
        return next((sample.labels for sample in self._samples.get(name, ())), {})

    def where_one(self, name: str, label: str) -> str:
        """The value of a label where the metric is 1; empty if it is nowhere."""
        return next((sample.labels.get(label, "") for sample in self._samples.get(name, ()) if sample.value == 1), "")


class Interval:
    """What happened between two snapshots of one worker process."""

    def __init__(self, before: Snapshot, after: Snapshot) -> None:
        self.before = before
        self.after = after
        self.seconds = max(after.moment - before.moment, 1e-9)

    def rate(self, name: str, **labels: str) -> float:
        """The increase of counters per second."""
        return (self.after.value(name, **labels) - self.before.value(name, **labels)) / self.seconds

    def rates(self, name: str, *labels: str, **wanted: str) -> dict[Key, float]:
        """The same for each combination of some labels, the largest first; those that stood still are left out."""
        before = self.before.by(name, *labels, **wanted)
        grown = {key: value - before.get(key, 0.0) for key, value in self.after.by(name, *labels, **wanted).items()}
        rates = {key: value / self.seconds for key, value in grown.items() if value > 0}
        return dict(sorted(rates.items(), key=lambda entry: -entry[1]))

    def quantile(self, share: float, name: str, **labels: str) -> float:
        """A quantile of a histogram's new observations, straight between the limits of its buckets; NaN without any.

        What is above the last finite limit counts as that.
        """
        counts = sorted(
            (float(limit), value - self.before.value(f"{name}_bucket", le=limit, **labels))
            for (limit,), value in self.after.by(f"{name}_bucket", "le", **labels).items()
        )
        if not counts or counts[-1][1] <= 0:
            return math.nan
        wanted, lower, below = share * counts[-1][1], 0.0, 0.0
        for limit, count in counts:
            if math.isinf(limit):
                break
            if count >= wanted:
                return lower + (limit - lower) * (wanted - below) / (count - below)
            lower, below = limit, count
        return lower
