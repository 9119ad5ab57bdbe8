"""Spinning lidars: rows of returns by elevation and columns by azimuth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lumigrad.kernels.checks import check
from lumigrad.kernels.errors import ArgumentError

Array = np.ndarray
Angles = Sequence[float] | Array
DIRECTIONS = ("counter_clockwise", "clockwise")
MAX_ROWS, MAX_COLUMNS = 4096, 65536
_LARGEST = 100.0


@dataclass(frozen=True, kw_only=True, eq=False)
class SpinningLidar:
    """A lidar that spins about z: x is forward, y to the left and z up.

    The return of row i and column j comes from the direction (cos a cos e, sin a cos e, sin e), with e the elevation of
    the row and a the azimuth of the column plus the row's offset. Angles are in radians.

    Attributes:
        row_elevations: [H] from the highest to the lowest, in [-pi / 2, pi / 2].
        column_azimuths: [W] in scan order, spanning at most one turn; they may jump by whole turns.
        row_azimuth_offsets: [H]; all 0 if empty.
        direction: One of `DIRECTIONS`, seen from above: azimuths rise counter-clockwise.

    Raises:
        ArgumentError: A value is out of range.
    """

    row_elevations: Angles
    column_azimuths: Angles
    row_azimuth_offsets: Angles = ()
    direction: str = "counter_clockwise"
    kind = "lidar"
    behind = True

    def __post_init__(self) -> None:
        check(self.direction in DIRECTIONS, "direction", f"one of {DIRECTIONS}", self.direction)
        rows = _angles(self, "row_elevations", MAX_ROWS)
        _angles(self, "column_azimuths", MAX_COLUMNS)
        if len(self.row_azimuth_offsets) == 0:
            object.__setattr__(self, "row_azimuth_offsets", np.zeros(len(rows)))
        offsets = _angles(self, "row_azimuth_offsets", MAX_ROWS)
        steep = float(np.abs(rows).max())
        check(steep <= math.pi / 2 + 1e-6, "row_elevations", "angles in [-pi / 2, pi / 2], radians", steep)
        falls = bool((np.diff(rows) <= 0).all())
        check(falls, "row_elevations", "elevations from the highest to the lowest", rows[:8].tolist())
        expected = f"{len(rows)} angles, one for each row, or none"
        check(len(offsets) == len(rows), "row_azimuth_offsets", expected, len(offsets))
        span = float(self._steps().sum())
        if span > 2 * math.pi + 1e-4:
            expected = f"azimuths of at most one turn, {self.direction.replace('_', '-')}"
            raise ArgumentError("column_azimuths", expected, f"{span:.6g} radians")

    @property
    def size(self) -> tuple[int, int]:
        """The width and height of the image: columns and rows."""
        return len(self.column_azimuths), len(self.row_elevations)

    def _steps(self) -> Array:
        """[W - 1] angles from each column to the next, in the direction of the spin."""
        sign = -1.0 if self.direction == "clockwise" else 1.0
        steps: Array = sign * np.diff(np.asarray(self.column_azimuths))
        return steps - 2 * math.pi * np.floor(steps / (2 * math.pi))

    def field(self) -> list[float]:
        """Return the first azimuth of a turn and its span, and the highest elevation and the span of the rows."""
        offsets, rows = np.asarray(self.row_azimuth_offsets), np.asarray(self.row_elevations)
        first = offsets.max() if self.direction == "clockwise" else offsets.min()
        span = min(float(self._steps().sum() + np.ptp(offsets)), 2 * math.pi)
        return [float(self.column_azimuths[0] + first), span, float(rows[0]), float(rows[0] - rows[-1])]

    def table(self) -> Array:
        """[2 H + W] elevations, offsets and azimuths, float64."""
        return np.concatenate([self.row_elevations, self.row_azimuth_offsets, self.column_azimuths])

    def limit(self, width: int, height: int) -> float:
        """Points are visible in all directions."""
        return math.inf


def lidar_gradients(sums: Array) -> Mapping[str, Array]:
    """Gradients of the tables, given the gradients of each return's azimuth and elevation, [C, H, W, 2]."""
    rows, columns = sums.sum(2, dtype=np.float64), sums.sum(1, dtype=np.float64)
    return {
        "lidar_elevations": rows[..., 1],
        "lidar_azimuths": columns[..., 0],
        "lidar_offsets": rows[..., 0],
    }


def _angles(to: SpinningLidar, name: str, most: int) -> Array:
    try:
        values = np.array(getattr(to, name), np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise ArgumentError(name, "angles, radians", repr(getattr(to, name))) from error
    fits = 1 <= len(values) <= most and bool((np.abs(values) <= _LARGEST).all())
    check(fits, name, f"1 to {most} angles in [-{_LARGEST:g}, {_LARGEST:g}], radians", f"{len(values)} values")
    object.__setattr__(to, name, values)
    return values
