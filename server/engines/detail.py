"""The level at which each page of a scene is drawn: culled by its bounds, and chosen by its error in pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lumigrad.kernels.gaussians import Camera
from lumigrad.server.engines.levels import LevelTable
from lumigrad.v1 import gaussians_pb2, render_pb2

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

# The level of a page that is not drawn.
NONE = -1
_ERROR_PX = 1.0
_NEAR, _FAR = 0.01, 1e10
_LEAST_NEAR = 1e-30
# Bounds contain three standard deviations, and Gaussians are drawn to 3.34 and blurred: the picture that they are
# culled by is larger on each side, by this part of itself or by the reach of the blur.
_MARGIN = 1 / 16
_REACH = 3.34
_EPS2D = 0.3


@dataclass(frozen=True)
class Detail:
    """The settings of a call: errors in pixels that it allows, and how many Gaussians it draws at most."""

    error_px: float
    most_rows: int
    near: float
    far: float
    blur_px: float

    @staticmethod
    def of(settings: gaussians_pb2.GaussianSettings, room_rows: int) -> Detail:
        """The settings of a request, with room for so many Gaussians."""
        given = settings.HasField
        return Detail(
            settings.max_error_px if given("max_error_px") else _ERROR_PX,
            min(settings.max_gaussians, room_rows) if given("max_gaussians") else room_rows,
            settings.near if given("near") else _NEAR,
            settings.far if given("far") else _FAR,
            _REACH * sqrt(max(0.0, settings.eps2d) if given("eps2d") else _EPS2D),
        )


@dataclass(frozen=True, eq=False)
class Cut:
    """The levels that a call draws of a scene.

    Attributes:
        levels: [P] int8, of each page; `NONE`: none.
        report: Levels of detail, as the reply tells them.
    """

    table: LevelTable
    levels: npt.NDArray[np.int8]
    report: render_pb2.DrawnLevels

    @property
    def pages(self) -> npt.NDArray[np.int64]:
        """The pages that are drawn, ascending."""
        return np.flatnonzero(self.levels >= 0)

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """The number of Gaussians of each page that is drawn."""
        return np.asarray(self.table.counts[self.pages, self.levels[self.pages]])

    @property
    def rows(self) -> int:
        """The number of Gaussians."""
        return int(self.counts.sum())

    def index(self) -> torch.Tensor:
        """[rows] int64, the number of each Gaussian among all rows of the scene; it rises."""
        counts, pages = self.counts, self.pages
        starts = self.table.starts[pages, self.levels[pages]]
        return torch.from_numpy(np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum()))


def chosen(table: LevelTable, cameras: Sequence[Camera], detail: Detail) -> tuple[npt.NDArray[np.int8], Floats, int]:
    """Choose a level for each page.

    Pages whose coarsest level has an error above `error_px` for a camera are drawn at that of least error that there is
    room for: then all pages become coarser alike.

    Returns:
        [P] the levels; [P, L] the errors in pixels; and the fewest Gaussians that the pages in view have, which may be
        more than there is room for, and then nothing is chosen.
    """
    errors, in_view = _errors(table, cameras, detail)
    counts, seen = table.counts[in_view], errors[in_view]
    limit = detail.error_px
    if _rows(counts, _coarsest(seen, limit)) > detail.most_rows:
        limit = _fitting_limit(counts, seen, detail)
    levels = np.full(len(errors), NONE, np.int8)
    levels[in_view] = _coarsest(seen, limit)
    return levels, errors, _rows(counts, levels[in_view])


def reached(
    bounds: npt.NDArray[np.float32], cameras: Sequence[Camera], settings: gaussians_pb2.GaussianSettings
) -> Flags:
    """[P] whether a part of each box may be in the picture of any camera."""
    detail = Detail.of(settings, 0)
    return np.asarray(np.logical_or.reduce([_View(camera, bounds, detail).in_view() for camera in cameras]))


def _fitting_limit(counts: npt.NDArray[np.int64], errors: Floats, detail: Detail) -> float:
    """The least error at which there is room for all pages, or the largest that they have."""
    limits = np.unique(errors[errors > detail.error_px])
    low, high = 0, len(limits) - 1
    while low < high:
        middle = (low + high) // 2
        if _rows(counts, _coarsest(errors, limits[middle])) > detail.most_rows:
            low = middle + 1
        else:
            high = middle
    return float(limits[low]) if len(limits) else detail.error_px


def _coarsest(errors: Floats, limit: float) -> npt.NDArray[np.int8]:
    """[P] the coarsest levels whose errors are within a limit; the finest where none is."""
    return np.asarray(np.maximum((errors <= limit).sum(axis=1) - 1, 0), np.int8)


def _rows(counts: npt.NDArray[np.int64], levels: npt.NDArray[np.int8]) -> int:
    return int(np.take_along_axis(counts, levels[:, None].astype(np.int64), axis=1).sum())


def _errors(table: LevelTable, cameras: Sequence[Camera], detail: Detail) -> tuple[Floats, Flags]:
    """[P, L] the largest error of each level for any camera, pixels, and [P] whether the page is in the view of any."""
    scale = np.zeros(len(table.bounds))
    in_view = np.zeros(len(table.bounds), bool)
    for camera in cameras:
        view = _View(camera, table.bounds, detail)
        seen = view.in_view()
        scale = np.maximum(scale, np.where(seen, view.pixels_per_unit(), 0.0))
        in_view |= seen
    return table.errors * scale[:, None], in_view


class _View:
    """Boxes as one camera sees them."""

    def __init__(self, camera: Camera, bounds: npt.NDArray[np.float32], detail: Detail) -> None:
        self._camera = camera
        self._source: Any = camera.source
        self._low, self._high = bounds[:, 0].astype(np.float64), bounds[:, 1].astype(np.float64)
        self._detail = detail
        rotation = np.asarray(self._source.rotation, np.float64)
        self._eye = -np.linalg.pinv(rotation) @ np.asarray(self._source.translation, np.float64)

    def pixels_per_unit(self) -> Floats:
        """[P] the pixels that a unit of length at the nearest point of each box takes."""
        focal = _focal(self._camera)
        if _is_orthographic(self._camera):
            return np.full(len(self._low), focal)
        away = np.maximum(np.maximum(self._low - self._eye, self._eye - self._high), 0.0)
        # Engines refuse a near plane that is not above 0, after this.
        return np.asarray(focal / np.maximum(np.linalg.norm(away, axis=1), max(self._detail.near, _LEAST_NEAR)))

    def in_view(self) -> Flags:
        """[P] whether a part of each box may be in the picture: exact to its edges only without distortion."""
        seen = np.ones(len(self._low), bool)
        for normal, offset in self._planes():
            seen &= self._highest(normal) + offset >= 0
        return seen

    def _highest(self, normal: Floats) -> Floats:
        """[P] the largest product of a direction in the camera's frame with a point of each box in that frame."""
        along = normal @ self._source.rotation
        return np.asarray(
            np.where(along > 0, self._high, self._low) @ along + normal @ np.asarray(self._source.translation)
        )

    def _planes(self) -> list[tuple[Floats, float]]:
        camera = self._camera
        if camera.is_sensor or camera.projected or camera.distorted or camera.model == "fisheye":
            # Lenses bend the planes of others, and some see what is behind them.
            return []
        fx, fy, cx, cy = self._source.intrinsics
        depth = [(np.array([0.0, 0.0, 1.0]), -self._detail.near), (np.array([0.0, 0.0, -1.0]), self._detail.far)]
        for axis, (focal, center, size) in enumerate(((fx, cx, camera.width), (fy, cy, camera.height))):
            unit, margin = np.eye(3)[axis] * focal, max(_MARGIN * size, self._detail.blur_px)
            for sign, reach in ((1.0, center + margin), (-1.0, size + margin - center)):
                if _is_orthographic(camera):
                    depth.append((sign * unit, reach))
                else:
                    depth.append((sign * unit + np.array([0.0, 0.0, reach]), 0.0))
        return depth


def _is_orthographic(camera: Camera) -> bool:
    source: Any = camera.source
    return camera.model == "orthographic" or type(getattr(source, "lens", None)).__name__ == "OrthographicLens"


def _focal(camera: Camera) -> float:
    """The pixels per radian, or per unit of a slope, at the middle of the picture; orthographic: per scene unit."""
    source: Any = camera.source
    if hasattr(source, "intrinsics"):
        return float(max(source.intrinsics[:2]))
    if hasattr(source, "tan_fov"):
        return float(max(camera.width / source.tan_fov[0], camera.height / source.tan_fov[1]) / 2)
    if hasattr(source.lens, "fx"):
        return float(max(source.lens.fx, source.lens.fy))
    polynomial: Sequence[float] = getattr(source.lens, "angle_to_pixel_distance", ())
    # Pixels of a lidar are parts of a turn, as are those of lenses that only have the polynomial of the way back.
    return float(polynomial[1]) if len(polynomial) > 1 else camera.width / (2 * pi)
