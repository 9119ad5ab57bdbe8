"""Report of steps made without Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from lumigrad.kernels._native import ADAM_SUMS, LOSS_VALUES, PLANE_VALUES
from lumigrad.kernels.training import image_loss_values, plane_loss_value, statistics_of
from lumigrad.server.training.step import Done
from lumigrad.v1 import density_pb2

# Loss terms that compare colours; then loss terms that compare another plane, with the plane of the target image.
OF_COLORS = ("l1", "l2", "dssim")
OF_PLANES = {"depth": "depth", "alpha": "mask"}
# Loss terms of the surface that surfels describe.
OF_SURFACES = ("normal", "distortion")


@dataclass(frozen=True, eq=False)
class RunReport:
    """Report of steps made without Python, in the order of their numbers on the device.

    Attributes:
        reports: The extension's report of each step.
        views: The views of each step.
        targets: The names of the tensors that each step's target images have.
        weights: Weights of the loss.
        parts: The loss terms of surfaces, and those that are means of parameters.
        names: Names of the parameters that have statistics.
        density: Changes by density control; only for a single step.
    """

    reports: Sequence[Any]
    views: Sequence[Sequence[int]]
    targets: Sequence[Collection[str]]
    weights: dict[str, float]
    parts: Sequence[str]
    names: Sequence[str]
    count: int
    density: density_pb2.DensityReport | None = None

    @property
    def is_complete(self) -> bool:
        """Whether `wait` would return at once."""
        return all(report.is_complete for report in self.reports)

    def wait(self) -> None:
        """Wait until the numbers have arrived, on any thread; raises if the device is lost."""
        for report in self.reports:
            report.wait()

    @property
    def milliseconds(self) -> dict[str, float]:
        """The kernels' times, once the report is complete."""
        times: dict[str, float] = defaultdict(float)
        for report in self.reports:
            for stage, milliseconds in report.milliseconds.items():
                times[stage] += milliseconds
        return times

    def read(self) -> list[Done]:
        """Return the results, once the report is complete."""
        steps = zip(self.views, self.targets, self.reports, strict=False)
        return [self._read(views, targets, report.numbers) for views, targets, report in steps]

    def _read(self, views: Sequence[int], targets: Collection[str], numbers: list[float]) -> Done:
        weights, rest = self.weights, iter(numbers)

        def rows(count: int, width: int) -> list[list[float]]:
            return [[next(rest) for _ in range(width)] for _ in range(count)]

        visible, loss, terms = int(next(rest)), 0.0, {}
        of_colors = rows(len(views), LOSS_VALUES)
        if any(weights[name] for name in OF_COLORS):
            terms = image_loss_values(of_colors, {name: weights[name] for name in OF_COLORS})
            loss = terms.pop("total")
        for name, target in OF_PLANES.items():
            found = rows(len(views), PLANE_VALUES) if weights[name] else []
            if found and target in targets:
                terms[name] = plane_loss_value(found)
                loss += weights[name] * terms[name]
        for name in self.parts:
            terms[name] = next(rest)
            loss += weights[name] * terms[name]
        statistics = statistics_of(self.names, rows(len(self.names), ADAM_SUMS))
        return Done(views, loss, terms, self.count, visible, statistics, self.density)
