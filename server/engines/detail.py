"""Level selection: chooses each page's level of detail by its error in pixels, and culls pages by their bounds."""

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

# The level of each page, [P].
Levels = npt.NDArray[np.int8]
# The level of a page that is not drawn.
NONE = -1
_ERROR_PX = 1.0
_NEAR, _FAR = 0.01, 1e10
_LEAST_NEAR = 1e-30
_LEAST_ALPHA = 1e-30
# The number of standard deviations of each Gaussian that bounds contain.
_BOUND_DEVIATIONS = 3.0
# The largest standard deviation, as a fraction of the picture, of a Gaussian that is never culled wrongly: with default
# settings, a picture larger by 1/16 on each side shows all of it.
_LARGEST = 0.19
_ALPHA_MIN, _EPS2D = 1 / 255, 0.3
# The typical distance of a page's content from a camera within the page, as a fraction of the page's diagonal.
_INSIDE = 1 / 8


@dataclass(frozen=True)
class Detail:
    """The settings of a call: the error in pixels that it allows, and the most Gaussians that it draws.

    Attributes:
        deviations: The number of standard deviations to which a Gaussian is drawn. They are larger than in the scene by
            `factor`, and blurred by the variance `blur`, in square pixels.
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
        """Return the settings of a request, with room for `room_rows` Gaussians."""
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
        """Return how many pixels outside an edge of the picture bounds may end whose Gaussians reach into it.

        `size` is the picture's extent across the edge. This is the largest distance between a drawn Gaussian and its
        bounds, over all standard deviations up to `_LARGEST`: it is attained at the smallest or at the largest.
        """
        largest = _LARGEST * size
        beyond = self.deviations * hypot(self.factor * largest, sqrt(self.blur)) - _BOUND_DEVIATIONS * largest
        return max(self.deviations * sqrt(self.blur), beyond)


def _deviations(alpha_min: float) -> float:
    """Return the standard deviations to which a Gaussian of opacity 1 is drawn.

    Engines refuse values out of range later.
    """
    return sqrt(2 * log(1 / min(1.0, max(_LEAST_ALPHA, alpha_min))))


@dataclass(frozen=True, eq=False)
class Cut:
    """The levels of a scene's pages that a call draws.

    Attributes:
        levels: [P] int8, the level of each page; `NONE` if it is not drawn.
        report: The levels of detail, as the reply reports them.
        is_packed: Whether its Gaussians come from packed pages, which are rounded.
        has_colors: Whether its tensors include spherical harmonics.
        more_outputs: Outputs to compute besides those of the request.
    """

    table: LevelTable
    levels: Levels
    report: render_pb2.DrawnLevels
    is_packed: bool
    has_colors: bool = True
    more_outputs: tuple[str, ...] = ()

    @property
    def pages(self) -> npt.NDArray[np.int64]:
        """The drawn pages, ascending."""
        return np.flatnonzero(self.levels >= 0)

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """The number of Gaussians of each drawn page."""
        return np.asarray(self.table.counts[self.pages, self.levels[self.pages]])

    @property
    def rows(self) -> int:
        """The number of Gaussians."""
        return int(self.counts.sum())

    @property
    def shapes(self) -> dict[str, list[int]]:
        """The shapes of its tensors."""
        shapes = self.table.shapes(self.rows)
        if not self.has_colors:
            del shapes["sh"]
        return shapes

    @property
    def bytes(self) -> int:
        """The size of its tensors."""
        return 4 * sum(map(prod, self.shapes.values()))

    def numbers(self, rows: torch.Tensor) -> torch.Tensor:
        """Convert rows of the cut, [M] ascending, to row numbers in the whole scene, [M] int64."""
        counts, pages = self.counts, self.pages
        begins = np.cumsum(counts) - counts
        offsets = torch.from_numpy(self.table.starts[pages, self.levels[pages]] - begins).to(rows.device)
        ends = torch.from_numpy(begins + counts).to(rows.device)
        drawn = torch.searchsorted(rows, ends).diff(prepend=ends.new_zeros(1))
        return rows + offsets.repeat_interleave(drawn, output_size=len(rows))


def chosen(table: LevelTable, cameras: Sequence[Camera], detail: Detail) -> tuple[Levels, Floats]:
    """Choose a level for each page, the coarsest whose error is within `error_px` for all cameras that see it.

    A page is in view if a camera sees it at this level; a coarser level may reach into a picture that should not show
    the page.

    Returns:
        [P] the levels; [P, L] the errors in pixels.
    """
    errors, is_seen = _errors(table, cameras, detail)
    levels = _coarsest(errors, detail.error_px)
    levels[~is_seen[np.arange(len(levels)), levels]] = NONE
    return levels, errors


def fitted(table: LevelTable, levels: Levels, cameras: Sequence[Camera], detail: Detail) -> Levels:
    """Make pages coarser until there is room for their Gaussians.

    All pages are coarsened to one error at their typical distances, since the nearest distance is 0 if the camera is
    within a page. Remaining room makes pages finer again, those with the largest errors first.

    Returns:
        [P] the levels; there may be no room even for the coarsest.
    """
    drawn = np.flatnonzero(levels >= 0)
    if rows_of(table, levels) <= detail.most_rows:
        return levels
    typical, _ = _errors(table, cameras, detail, inside=_INSIDE)
    coarser: Levels = levels.copy()
    coarser[drawn] = _fitted(table.counts[drawn], typical[drawn], detail, levels[drawn])
    return coarser


def rows_of(table: LevelTable, levels: Levels) -> int:
    """Return the number of Gaussians of levels [P]."""
    drawn = np.flatnonzero(levels >= 0)
    return int(table.counts[drawn, levels[drawn]].sum())


def reached(
    bounds: npt.NDArray[np.float32], cameras: Sequence[Camera], settings: gaussians_pb2.GaussianSettings
) -> Flags:
    """Return whether a part of each box may be in the picture of any camera, [P]."""
    detail = Detail.of(settings, 0)
    return np.asarray(np.logical_or.reduce([_View(camera, detail).sees(bounds) for camera in cameras]))


def _fitted(
    counts: npt.NDArray[np.int64], errors: Floats, detail: Detail, finest: npt.NDArray[np.int8]
) -> npt.NDArray[np.int8]:
    """Return levels that fit, none finer than `finest`, [P]."""
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
    """Return the least error limit at which all pages fit, or the largest error if none does."""
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
    """Return the coarsest levels whose errors are within a limit, or else the finest, [P]."""
    return np.asarray(np.maximum((errors <= limit).sum(axis=1) - 1, 0), np.int8)


def _rows(counts: npt.NDArray[np.int64], levels: npt.NDArray[np.int8]) -> int:
    return int(np.take_along_axis(counts, levels[:, None].astype(np.int64), axis=1).sum())


def _errors(
    table: LevelTable, cameras: Sequence[Camera], detail: Detail, *, inside: float = 0.0
) -> tuple[Floats, Flags]:
    """Return the largest error of each level in pixels for any camera that sees it, and whether any does, [P, L].

    Errors are taken at the nearest point of a page or, with `inside`, at a distance of at least this fraction of its
    diagonal.

    Content lies in the bounds of level 0. A level displaces it by its error, wherever its Gaussians reach: seen from a
    distance to these bounds, by an angle whose sine is at most error / distance.
    """
    errors = np.zeros(table.errors.shape)
    is_seen = np.zeros(table.errors.shape, bool)
    for camera in cameras:
        view = _View(camera, detail)
        # Bounds of the coarsest level contain those of all others.
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
        """Return the pixels per unit of length at each box's nearest point, at least `inside` diagonals away, [..]."""
        focal = _focal(self._camera)
        if _is_orthographic(self._camera):
            return np.full(boxes.shape[:-2], focal)
        away = np.maximum(np.maximum(boxes[..., 0, :] - self._eye, self._eye - boxes[..., 1, :]), 0.0)
        within = inside * np.linalg.norm(boxes[..., 1, :] - boxes[..., 0, :], axis=-1)
        distance = np.hypot(np.linalg.norm(away, axis=-1), within)
        # Engines later refuse a near plane that is not above 0.
        return np.asarray(focal / np.maximum(distance, max(self._detail.near, _LEAST_NEAR)))

    def sees(self, boxes: npt.NDArray[np.float32]) -> Flags:
        """Return whether a part of each box may be in the picture, [..]; conservative with distortion."""
        seen = np.ones(boxes.shape[:-2], bool)
        for normal, offset in self._planes():
            seen &= self._highest(normal, boxes) + offset >= 0
        return seen

    def _highest(self, normal: Floats, boxes: npt.NDArray[np.float32]) -> Floats:
        """Return the largest product of a direction with a point of each box, both in the camera's frame, [..]."""
        along = normal @ self._source.rotation
        ends = np.where(along > 0, boxes[..., 1, :], boxes[..., 0, :])
        return np.asarray(ends @ along + normal @ np.asarray(self._source.translation))

    def _planes(self) -> list[tuple[Floats, float]]:
        camera = self._camera
        if camera.is_sensor or camera.projected or camera.distorted or camera.model == "fisheye":
            # The frustums of other lenses are not bounded by planes, and some lenses see behind themselves.
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
    """Return the pixels per radian, or unit of slope, at the middle of the picture; per scene unit if orthographic."""
    source: Any = camera.source
    if hasattr(source, "intrinsics"):
        return float(max(source.intrinsics[:2]))
    if hasattr(source, "tan_fov"):
        return float(max(camera.width / source.tan_fov[0], camera.height / source.tan_fov[1]) / 2)
    if hasattr(source.lens, "fx"):
        return float(max(source.lens.fx, source.lens.fy))
    polynomial: Sequence[float] = getattr(source.lens, "angle_to_pixel_distance", ())
    # A lidar's pixels divide a full turn; lenses that only have the inverse polynomial are treated the same.
    return float(polynomial[1]) if len(polynomial) > 1 else camera.width / (2 * pi)
