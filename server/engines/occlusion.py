"""Occlusion of boxes of Gaussians by nearer Gaussians.

Blending stops in a pixel once its transmittance reaches its minimum. The pixel is *closed* from there on: nothing
behind changes it. A *backdrop* shows where pixels are still open at a depth. It is a Gaussian that covers the picture
there with the least alpha that contributes, so where it does not contribute, nothing behind it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import hypot, log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lumigrad.kernels.gaussians import Camera, Settings
from lumigrad.server.engines.content import Tensors

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

# Edge of the square tiles of pixels that are tested together.
_TILE = 8
# Margins for rounding: in pixels, and relative to depths that kernels compute in float32.
_ROUNDING_PX = 1.0
_ROUNDING = 8 * float(np.finfo(np.float32).eps)
# The number of standard deviations of each Gaussian that bounds contain.
_BOUND_DEVIATIONS = 3.0
# The backdrop's alpha relative to the least that contributes, and its standard deviation relative to the picture's
# extent: at the picture's corners its alpha is smaller by 0.0001.
_ALPHA_FACTOR = 1.002
_BACKDROP_FACTOR = 64.0
# How far a matrix R may be from a rotation: |R R^T - I|.
_ROTATION_ERROR = 1e-3


def can_hide(camera: Camera, settings: Settings) -> bool:
    """Return whether occlusion can be computed: where Gaussians in a box are drawn is known, and blending stops."""
    is_bent = camera.is_sensor or camera.projected or camera.distorted or camera.model != "pinhole"
    is_other = settings.inria or settings.surfels or settings.response == "ray" or settings.scale_modifier != 1.0
    if is_bent or is_other or settings.transmittance_min <= 0.0:
        return False
    # Other matrices may shrink the backdrop, and `radius_clip` may remove it.
    rotation = np.asarray(camera.source.rotation, np.float64)
    is_rotation = float(np.abs(rotation @ rotation.T - np.eye(3)).max()) <= _ROTATION_ERROR
    return is_rotation and settings.radius_clip <= max(camera.width, camera.height)


def least_transmittance(settings: Settings) -> float:
    """Return the minimum transmittance for pictures with a backdrop, so that no pixel is closed to weaker Gaussians.

    A pixel is closed if T (1 - alpha) is at most the settings' value: the backdrop's alpha leaves less of T than the
    least alpha that contributes.
    """
    backdrop = min(settings.alpha_min * _ALPHA_FACTOR, settings.alpha_max)
    return settings.transmittance_min * (1 - backdrop) / (1 - settings.alpha_min) * (1 - _ROUNDING)


class ScreenBoxes:
    """Boxes around Gaussians as seen by a camera without distortion.

    Attributes:
        near: [N], the least depth of each box; only boxes where it is above 0 have a known place in the picture.
        nearest_backdrop: The least depth at which a backdrop is drawn.
    """

    def __init__(self, bounds: npt.NDArray[np.float32], camera: Camera, settings: Settings) -> None:
        """Project boxes; `bounds` [N, 2, 3] contain three standard deviations of each Gaussian, world frame."""
        source: Any = camera.source
        corners = np.stack([bounds[:, ends, (0, 1, 2)] for ends in product((0, 1), repeat=3)], axis=1)
        points = corners.astype(np.float64) @ np.asarray(source.rotation, np.float64).T + source.translation
        largest = float(np.abs(bounds).max(initial=0.0)) * 3 + float(np.abs(source.translation).max())
        depths = points[..., 2]
        self.near: Floats = depths.min(axis=1) - _ROUNDING * largest
        self.nearest_backdrop = settings.near + _ROUNDING * largest
        self._size = camera.width, camera.height
        self._tiles = self._tiles_of(points, camera, settings)

    def meet(self, tiles: Flags) -> Flags:
        """Return whether a Gaussian in each box may contribute to any of the `tiles` [rows, columns], [N]."""
        sums = np.pad(tiles.cumsum(axis=0, dtype=np.int64).cumsum(axis=1), ((1, 0), (1, 0)))
        left, top, right, bottom = self._tiles.T
        return np.asarray(sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left] > 0)

    def covered(self, boxes: npt.NDArray[np.int64]) -> Flags:
        """Return the tiles to which Gaussians in some boxes may contribute, [rows, columns]."""
        width, height = self._size
        tiles = np.zeros((-(-height // _TILE), -(-width // _TILE)), bool)
        for left, top, right, bottom in self._tiles[boxes].tolist():
            tiles[top:bottom, left:right] = True
        return tiles

    def _tiles_of(self, points: Floats, camera: Camera, settings: Settings) -> npt.NDArray[np.int64]:
        """Return the tiles on which Gaussians are drawn, [N, 4]: first column and row, and one past the last of each.

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
        first, after = np.floor(low / _TILE), np.ceil(high / _TILE)
        # Boxes that reach behind the camera may be anywhere.
        is_known = self.near[:, None] > 0
        return np.where(np.tile(is_known, 4), np.hstack([first, after]), [0, 0, *np.ceil(size / _TILE)]).astype(
            np.int64
        )


def all_tiles(camera: Camera) -> Flags:
    """Return a mask [rows, columns] of all tiles of the picture."""
    return np.ones((-(-camera.height // _TILE), -(-camera.width // _TILE)), bool)


def with_backdrop(tensors: Tensors, camera: Camera, settings: Settings, depth: float) -> dict[str, torch.Tensor]:
    """Make the last of [N + 1] Gaussians a backdrop at a depth; only it has a colour other than 0, [N + 1, 1]."""
    source: Any = camera.source
    fx, fy, cx, cy = camera.intrinsics(settings.pixel_center)
    extent = hypot(max(abs(cx), abs(camera.width - cx)), max(abs(cy), abs(camera.height - cy)))
    scale = _BACKDROP_FACTOR * extent * depth / min(fx, fy)
    mean = np.linalg.solve(np.asarray(source.rotation, np.float64), (0.0, 0.0, depth) - np.asarray(source.translation))
    rows: dict[str, Sequence[float]] = {
        "means": mean.tolist(),
        "quats": (1.0, 0.0, 0.0, 0.0),
        "scales": (scale, scale, scale),
        "opacities": (settings.alpha_min * _ALPHA_FACTOR,),
    }
    like = tensors["means"]
    for name, row in rows.items():
        tensors[name][-1:] = like.new_tensor(row).reshape(1, *tensors[name].shape[1:])
    colors = like.new_zeros(len(like), 1)
    colors[-1] = 1.0
    return {**tensors, "colors": colors}


def open_tiles(color: torch.Tensor) -> torch.Tensor:
    """Return the tiles [rows, columns] in which a backdrop contributes to a pixel of its picture [H, W]."""
    height, width = color.shape
    padded = torch.nn.functional.pad(color > 0, (0, -width % _TILE, 0, -height % _TILE))
    rows, columns = (size // _TILE for size in padded.shape)
    return padded.reshape(rows, _TILE, columns, _TILE).any(3).any(1)
