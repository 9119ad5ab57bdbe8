"""The level at which each page of a scene is drawn: chosen by its error in pixels, and culled by its bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, log, pi, prod, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lumigrad.kernels.gaussians import Camera
from lumigrad.server.engines.levels import LevelTable
from lumigrad.v1 import gaussians_pb2, render_pb2

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

# [P] the level of each page.
Levels = npt.NDArray[np.int8]
# The level of a page that is not drawn.
NONE = -1
_ERROR_PX = 1.0
_NEAR, _FAR = 0.01, 1e10
_LEAST_NEAR = 1e-30
_LEAST_ALPHA = 1e-30
# Bounds contain so many standard deviations of each Gaussian.
_BOUND_DEVIATIONS = 3.0
# The largest standard deviation of a Gaussian of which nothing is lost, as a part of the picture: a picture that is
# larger by 1/16 on each side shows all of it, unless settings say otherwise.
_LARGEST = 0.19
_ALPHA_MIN, _EPS2D = 1 / 255, 0.3
# The typical distance of a page's content from a camera within the page, as a part of the page's diagonal.
_INSIDE = 1 / 8


@dataclass(frozen=True)
class Detail:
    """The settings of a call: errors in pixels that it allows, and how many Gaussians it draws at most.

    Attributes:
        deviations: A Gaussian is drawn to so many standard deviations, each of which is larger than in the scene by
            `factor`, and blurred to the variance `blur`, square pixels.
    """

    error_px: float
    most_rows: int
    near: float
    far: float
    deviations: float
    factor: float
    blur: float

    @staticmethod
    def of(settings: gaussians_pb2.GaussianSettings, room_rows: int) -> Detail:
        """The settings of a request, with room for so many Gaussians."""
        given = settings.HasField
        return Detail(
            settings.max_error_px if given("max_error_px") else _ERROR_PX,
            min(settings.max_gaussians, room_rows) if given("max_gaussians") else room_rows,
            settings.near if given("near") else _NEAR,
            settings.far if given("far") else _FAR,
            _deviations(settings.alpha_min if given("alpha_min") else _ALPHA_MIN),
            settings.scale_modifier if given("scale_modifier") else 1.0,
            max(0.0, settings.eps2d) if given("eps2d") else _EPS2D,
        )

    def margin(self, size: int) -> float:
        """The pixels beyond an edge of a picture, `size` wide, in which bounds may end of Gaussians that reach into it.

        This is the largest distance between what is drawn and what bounds contain, over all standard deviations up to
        a part of the picture: that of the smallest or of the largest.
        """
        largest = _LARGEST * size
        beyond = self.deviations * hypot(self.factor * largest, sqrt(self.blur)) - _BOUND_DEVIATIONS * largest
        return max(self.deviations * sqrt(self.blur), beyond)


def _deviations(alpha_min: float) -> float:
    """The standard deviations to which a Gaussian of opacity 1 is drawn; engines refuse values out of range later."""
    return sqrt(2 * log(1 / min(1.0, max(_LEAST_ALPHA, alpha_min))))


@dataclass(frozen=True, eq=False)
class Cut:
    """The levels that a call draws of a scene.

    Attributes:
        levels: [P] int8, of each page; `NONE`: none.
        report: Levels of detail, as the reply tells them.
        is_packed: Whether its Gaussians are those of packed pages, which are rounded.
        has_backdrop: Whether there is a row for a backdrop after its Gaussians, and no spherical harmonics.
    """

    table: LevelTable
    levels: Levels
    report: render_pb2.DrawnLevels
    is_packed: bool
    has_backdrop: bool = False

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

    @property
    def shapes(self) -> dict[str, list[int]]:
        """The shapes of its tensors."""
        shapes = self.table.shapes(self.rows + self.has_backdrop)
        if self.has_backdrop:
            del shapes["sh"]
        return shapes

    @property
    def bytes(self) -> int:
        """The size of its tensors."""
        return 4 * sum(map(prod, self.shapes.values()))

    def numbers(self, rows: torch.Tensor) -> torch.Tensor:
        """[M] int64, the numbers among all rows of the scene of some Gaussians of the cut, whose rows [M] rise."""
        counts, pages = self.counts, self.pages
        begins = np.cumsum(counts) - counts
        offsets = torch.from_numpy(self.table.starts[pages, self.levels[pages]] - begins).to(rows.device)
        ends = torch.from_numpy(begins + counts).to(rows.device)
        drawn = torch.searchsorted(rows, ends).diff(prepend=ends.new_zeros(1))
        return rows + offsets.repeat_interleave(drawn, output_size=len(rows))


def chosen(table: LevelTable, cameras: Sequence[Camera], detail: Detail) -> tuple[Levels, Floats]:
    """Choose a level for each page, the coarsest whose error is within `error_px` for all cameras that see it.

    A page is in view if a camera sees this level; a coarser one may reach into a picture in which nothing of the page
    should be.

    Returns:
        [P] the levels; [P, L] the errors in pixels.
    """
    errors, is_seen = _errors(table, cameras, detail)
    levels = _coarsest(errors, detail.error_px)
    levels[~is_seen[np.arange(len(levels)), levels]] = NONE
    return levels, errors


def fitted(table: LevelTable, levels: Levels, cameras: Sequence[Camera], detail: Detail) -> Levels:
    """Make pages coarser until there is room for their Gaussians.

    They become coarser alike: to one error at their typical distances, since the nearest one is 0 where the camera is
    within a page. What room is left makes pages finer, those with the largest errors first.

    Returns:
        [P] the levels, for which there is no room if there is none for the coarsest.
    """
    drawn = np.flatnonzero(levels >= 0)
    if rows_of(table, levels) <= detail.most_rows:
        return levels
    typical, _ = _errors(table, cameras, detail, inside=_INSIDE)
    coarser: Levels = levels.copy()
    coarser[drawn] = _fitted(table.counts[drawn], typical[drawn], detail, levels[drawn])
    return coarser


def rows_of(table: LevelTable, levels: Levels) -> int:
    """The Gaussians of levels [P]."""
    drawn = np.flatnonzero(levels >= 0)
    return int(table.counts[drawn, levels[drawn]].sum())


def reached(
    bounds: npt.NDArray[np.float32], cameras: Sequence[Camera], settings: gaussians_pb2.GaussianSettings
) -> Flags:
    """[P] whether a part of each box may be in the picture of any camera."""
    detail = Detail.of(settings, 0)
    return np.asarray(np.logical_or.reduce([_View(camera, detail).sees(bounds) for camera in cameras]))


def _fitted(
    counts: npt.NDArray[np.int64], errors: Floats, detail: Detail, finest: npt.NDArray[np.int8]
) -> npt.NDArray[np.int8]:
    """[P] levels for which there is room, none finer than `finest`."""
    levels = np.maximum(_coarsest(errors, _fitting_limit(counts, errors, detail)), finest)
    pages = np.arange(len(levels))
    while True:
        finer = np.maximum(levels - 1, 0)
        more, room = counts[pages, finer] - counts[pages, levels], detail.most_rows - _rows(counts, levels)
        able = np.flatnonzero((levels > finest) & (more <= room))
        if not len(able):
            return levels
        able = able[np.argsort(-errors[able, levels[able]], kind="stable")]
        levels[able[np.cumsum(more[able]) <= room]] -= 1


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


def _errors(
    table: LevelTable, cameras: Sequence[Camera], detail: Detail, *, inside: float = 0.0
) -> tuple[Floats, Flags]:
    """[P, L] the largest error of each level for any camera that sees it, pixels, and whether any does.

    Errors are those at the nearest point of a page, or, with `inside`, at a distance that is never below this part of
    its diagonal.

    Content lies in the bounds of level 0. A level moves it by its error, wherever its Gaussians reach: seen from a
    distance to these bounds, by an angle whose sine is at most error / distance.
    """
    errors = np.zeros(table.errors.shape)
    is_seen = np.zeros(table.errors.shape, bool)
    for camera in cameras:
        view = _View(camera, detail)
        # Bounds of the coarsest levels contain all others.
        pages = np.flatnonzero(view.sees(table.bounds[:, -1]))
        seen = view.sees(table.bounds[pages])
        pixels = table.errors[pages] * view.pixels_per_unit(table.bounds[pages, 0], inside)[:, None]
        errors[pages] = np.maximum(errors[pages], np.where(seen, pixels, 0.0))
        is_seen[pages] |= seen
    return errors, is_seen


class _View:
    """Boxes [.., 2, 3] as one camera sees them."""

    def __init__(self, camera: Camera, detail: Detail) -> None:
        self._camera = camera
        self._source: Any = camera.source
        self._detail = detail
        rotation = np.asarray(self._source.rotation, np.float64)
        self._eye = -np.linalg.pinv(rotation) @ np.asarray(self._source.translation, np.float64)

    def pixels_per_unit(self, boxes: npt.NDArray[np.float32], inside: float) -> Floats:
        """[..] the pixels that a unit of length takes at the nearest point of each box, or so far inside."""
        focal = _focal(self._camera)
        if _is_orthographic(self._camera):
            return np.full(boxes.shape[:-2], focal)
        away = np.maximum(np.maximum(boxes[..., 0, :] - self._eye, self._eye - boxes[..., 1, :]), 0.0)
        within = inside * np.linalg.norm(boxes[..., 1, :] - boxes[..., 0, :], axis=-1)
        distance = np.hypot(np.linalg.norm(away, axis=-1), within)
        # Engines refuse a near plane that is not above 0, after this.
        return np.asarray(focal / np.maximum(distance, max(self._detail.near, _LEAST_NEAR)))

    def sees(self, boxes: npt.NDArray[np.float32]) -> Flags:
        """[..] whether a part of each box may be in the picture: exact to its edges only without distortion."""
        seen = np.ones(boxes.shape[:-2], bool)
        for normal, offset in self._planes():
            seen &= self._highest(normal, boxes) + offset >= 0
        return seen

    def _highest(self, normal: Floats, boxes: npt.NDArray[np.float32]) -> Floats:
        """[..] the largest product of a direction in the camera's frame with a point of each box in that frame."""
        along = normal @ self._source.rotation
        ends = np.where(along > 0, boxes[..., 1, :], boxes[..., 0, :])
        return np.asarray(ends @ along + normal @ np.asarray(self._source.translation))

    def _planes(self) -> list[tuple[Floats, float]]:
        camera = self._camera
        if camera.is_sensor or camera.projected or camera.distorted or camera.model == "fisheye":
            # Lenses bend the planes of others, and some see what is behind them.
            return []
        fx, fy, cx, cy = self._source.intrinsics
        depth = [(np.array([0.0, 0.0, 1.0]), -self._detail.near), (np.array([0.0, 0.0, -1.0]), self._detail.far)]
        for axis, (focal, center, size) in enumerate(((fx, cx, camera.width), (fy, cy, camera.height))):
            unit, margin = np.eye(3)[axis] * focal, self._detail.margin(size)
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
