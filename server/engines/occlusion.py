"""Occlusion of boxes of Gaussians by nearer Gaussians.

Blending stops in a pixel once its transmittance reaches its minimum. The pixel is *closed* from there on: nothing
behind changes it, and more Gaussians in front can only close it sooner. So Gaussians that are behind the closers of all
pixels that they would reach, in an image of some Gaussians, do not show in an image of all.
"""

from __future__ import annotations

from itertools import product
from math import log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.kernels.gaussians import CELL, Camera, Settings

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

# Margins for rounding: in pixels, and relative to depths that kernels compute in float32.
_ROUNDING_PX = 1.0
_ROUNDING = 8 * float(np.finfo(np.float32).eps)
# The number of standard deviations of each Gaussian that bounds contain.
_BOUND_DEVIATIONS = 3.0
# How far a matrix R may be from a rotation: |R R^T - I|.
_ROTATION_ERROR = 1e-3


def can_hide(camera: Camera, settings: Settings) -> bool:
    """Return whether occlusion can be computed: where Gaussians in a box are drawn is known, and blending stops."""
    is_bent = camera.is_sensor or camera.projected or camera.distorted or camera.model != "pinhole"
    is_other = settings.inria or settings.surfels or settings.response == "ray" or settings.scale_modifier != 1.0
    if is_bent or is_other or settings.transmittance_min <= 0.0:
        return False
    # Margins for rounding suffice for rotations.
    rotation = np.asarray(camera.source.rotation, np.float64)
    return float(np.abs(rotation @ rotation.T - np.eye(3)).max()) <= _ROTATION_ERROR


class ScreenBoxes:
    """Boxes around Gaussians as seen by a camera without distortion.

    Attributes:
        near: [N], the least depth of each box; only boxes where it is above 0 have a known place in the picture.
    """

    def __init__(self, bounds: npt.NDArray[np.float32], camera: Camera, settings: Settings) -> None:
        """Project boxes; `bounds` [N, 2, 3] contain three standard deviations of each Gaussian, world frame."""
        source: Any = camera.source
        corners = np.stack([bounds[:, ends, (0, 1, 2)] for ends in product((0, 1), repeat=3)], axis=1)
        points = corners.astype(np.float64) @ np.asarray(source.rotation, np.float64).T + source.translation
        largest = float(np.abs(bounds).max(initial=0.0)) * 3 + float(np.abs(source.translation).max())
        depths = points[..., 2]
        self.near: Floats = depths.min(axis=1) - _ROUNDING * largest
        self._size = camera.width, camera.height
        self._cells = self._cells_of(points, camera, settings)

    def meet(self, cells: Flags) -> Flags:
        """Return whether a Gaussian in each box may contribute to any of the `cells` [rows, columns], [N]."""
        sums = np.pad(cells.cumsum(axis=0, dtype=np.int64).cumsum(axis=1), ((1, 0), (1, 0)))
        left, top, right, bottom = self._cells.T
        return np.asarray(sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left] > 0)

    def behind(self, depths: Floats) -> Flags:
        """Return which boxes lie behind the `depths` [rows, columns] of all their cells, [N]."""
        return np.asarray(self.near > _largest(depths, self._cells))

    def covered(self, boxes: npt.NDArray[np.int64]) -> Flags:
        """Return the cells to which Gaussians in some boxes may contribute, [rows, columns]."""
        width, height = self._size
        cells = np.zeros((-(-height // CELL), -(-width // CELL)), bool)
        for left, top, right, bottom in self._cells[boxes].tolist():
            cells[top:bottom, left:right] = True
        return cells

    def _cells_of(self, points: Floats, camera: Camera, settings: Settings) -> npt.NDArray[np.int64]:
        """Return the cells on which Gaussians are drawn, [N, 4]: first column and row, and one past the last of each.

        A Gaussian is projected by the Jacobian J at its mean m. A point p of the box is drawn at u(m) + J (p - m) with
        the projection u, which differs from u(p) by (u(p) - u(m)) (p_z - m_z) / m_z.
        """
        focal, center, size = np.split(np.array([*camera.intrinsics(settings.pixel_center), *self._size], float), 3)
        depths = np.maximum(points[..., 2], np.finfo(np.float32).tiny)
        pixels = points[..., :2] / depths[..., None] * focal + center
        low, high = pixels.min(axis=1), pixels.max(axis=1)
        near, half = depths.min(axis=1)[:, None], np.ptp(depths, axis=1)[:, None] / 2
        bend = half / (near + half)
        deviations = sqrt(2 * log(1 / settings.alpha_min))
        beyond = max(0.0, deviations / _BOUND_DEVIATIONS - 1)
        # Kernels clamp the Jacobian for means outside the picture.
        outside = np.maximum(0.0, np.maximum(-low, high - size))
        margin = (high - low) * (bend + beyond * (0.5 + bend)) + outside * bend * (1 + beyond)
        margin += deviations * sqrt(max(0.0, settings.eps2d)) + _ROUNDING_PX
        low, high = np.clip((low - margin, high + margin), 0.0, size)
        first, after = np.floor(low / CELL), np.ceil(high / CELL)
        # Boxes that reach behind the camera may be anywhere.
        is_known = self.near[:, None] > 0
        return np.where(np.tile(is_known, 4), np.hstack([first, after]), [0, 0, *np.ceil(size / CELL)]).astype(np.int64)


def all_cells(camera: Camera) -> Flags:
    """Return a mask [rows, columns] of all cells of the picture."""
    return np.ones((-(-camera.height // CELL), -(-camera.width // CELL)), bool)


def _largest(values: Floats, boxes: npt.NDArray[np.int64]) -> Floats:
    """Return the largest of `values` [rows, columns] in each box [N, 4], -inf in an empty one.

    Four windows whose edges are powers of two cover a box, the largest that are not larger than the box.
    """
    left, top, right, bottom = boxes.T
    largest = np.full(len(boxes), -np.inf)
    filled = np.flatnonzero((right > left) & (bottom > top))
    # `np.frexp` returns the number of bits of an integer.
    powers_x, powers_y = (np.frexp((end - start)[filled])[1] - 1 for start, end in ((left, right), (top, bottom)))
    # A window's value is at its first column and row.
    rows = values
    for power_y in range(powers_y.max(initial=-1) + 1):
        windows = rows
        for power_x in range(powers_x.max(initial=-1) + 1):
            of = filled[(powers_x == power_x) & (powers_y == power_y)]
            xs, ys = (left[of], right[of] - (1 << power_x)), (top[of], bottom[of] - (1 << power_y))
            largest[of] = np.maximum.reduce([windows[y, x] for y in ys for x in xs])
            windows = np.maximum(windows[:, : -(1 << power_x)], windows[:, 1 << power_x :])
        rows = np.maximum(rows[: -(1 << power_y)], rows[1 << power_y :])
    return largest
