"""The inputs of a fit: photographs with their cameras, and one primitive for each point of a reconstruction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Array
from lumigrad.client.base.extras import require
from lumigrad.client.datasets.capture import Capture
from lumigrad.client.datasets.points import Points
from lumigrad.client.datasets.view import View, resized
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.fitting.background import Background
from lumigrad.client.formats.scene import sh_from_colors
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.values.target_image import TargetImage


@dataclass(frozen=True, eq=False)
class Shot:
    """A photograph and its camera.

    Attributes:
        name: name of its view.
        pixels: [H, W, 3] uint8.
        mask: [H, W] uint8, 0 where the photograph is ignored; None: nowhere.
        camera: its camera.
        opacity: [H, W] uint8, 0 where the scene shall be empty; None: the photograph does not tell.
    """

    name: str
    pixels: Array
    mask: Array | None
    camera: Camera
    opacity: Array | None = None

    @staticmethod
    def of(view: View, photograph: Array, background: Background) -> Shot:
        """Puts a background behind a view's photograph [H, W, 4] uint8; the camera becomes one of its size."""
        height, width = photograph.shape[:2]
        opacity = np.ascontiguousarray(photograph[..., 3]) if background.is_transparent else None
        pixels, mask = background.behind(photograph), _mask(view, (width, height))
        return Shot(view.name, pixels, mask, view.resized(width, height).camera, opacity)

    @property
    def halved(self) -> Shot:
        """The same at half the width and height."""
        image: Any = require("PIL.Image", "fit", "reading photographs")
        height, width = self.pixels.shape[:2]
        size = max(width // 2, 1), max(height // 2, 1)
        # The mean of the pixels, as a sensor with fewer of them would see.
        pixels = np.array(image.fromarray(self.pixels).resize(size, image.Resampling.BOX))
        mask = opacity = None
        if self.mask is not None:
            mask = np.array(image.fromarray(self.mask).resize(size, image.Resampling.NEAREST))
        if self.opacity is not None:
            opacity = np.array(image.fromarray(self.opacity).resize(size, image.Resampling.BOX))
        return Shot(self.name, pixels, mask, resized(self.camera, *size), opacity)

    @property
    def photograph(self) -> Array:
        """The photograph [H, W, 3], values from 0 to 1, float32."""
        return np.divide(self.pixels, 255, dtype=np.float32)

    @property
    def target_image(self) -> TargetImage:
        """The target image of a training's view. Where a photograph is transparent its colours do not count."""
        if self.mask is None or self.opacity is None:
            return TargetImage(self.pixels, self.opacity if self.mask is None else self.mask)
        return TargetImage(self.pixels, np.minimum(self.mask, self.opacity))


def shots_of(capture: Capture, size: int, background: Background | str) -> tuple[list[Shot], Background]:
    """The photographs of a data set, in the order of their views' names; views without one are left out.

    Args:
        capture: the data set.
        size: largest width and height, pixels; larger photographs are reduced.
        background: the background, or how it is chosen, see `Background.of`.

    Returns:
        The photographs before their background, and the background.
    """
    views = sorted((view for view in capture.views if view.image), key=lambda view: view.name)
    if len(views) < 2:
        raise InvalidArgument.of("dataset", f"expected at least two photographs, found {len(views)}")
    photographs = [_read(view, size) for view in views]
    if isinstance(background, str):
        background = Background.of(photographs, background)
    return [Shot.of(*each, background) for each in zip(views, photographs, strict=True)], background


def _read(view: View, size: int) -> Array:
    """[H, W, 4] uint8, a view's photograph, at most `size` pixels wide and high."""
    image: Any = require("PIL.Image", "fit", "reading photographs")
    picture = image.open(view.image).convert("RGBA")
    picture.thumbnail((size, size), image.Resampling.LANCZOS)
    return np.array(picture)


def divide(shots: Sequence[Shot], every: int) -> tuple[list[Shot], list[Shot]]:
    """Splits shots into fitted and held-out ones: every `every`-th from the first on; 0: all are in both."""
    if not every:
        return list(shots), list(shots)
    return [shot for index, shot in enumerate(shots) if index % every], list(shots[::every])


def _mask(view: View, size: tuple[int, int]) -> Array | None:
    if view.mask is None:
        return None
    image: Any = require("PIL.Image", "fit", "reading masks")
    mask = image.open(view.mask).convert("L").resize(size, image.Resampling.NEAREST)
    levels: Array = np.asarray(mask, np.uint8)
    return levels


# Without a reconstruction: random points in a ball around what the cameras look at, whose radius is this share of
# their median distance from it.
_RANDOM_POINTS, _RANDOM_RADIUS = 20_000, 0.4
_OPACITY = 0.1
# The number of neighbours whose distances set a primitive's initial size.
_NEIGHBOURS = 3
# The smallest size, for coinciding points, relative to the median.
_LEAST_SPACING = 1e-3


def random_points(capture: Capture, seed: int) -> Points:
    """Points of random colours where the subject probably is, for data sets without points."""
    generator = np.random.default_rng(seed)
    directions = generator.normal(size=(_RANDOM_POINTS, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    distances = [np.linalg.norm(view.camera.model.eye - capture.focus) for view in capture.views]
    reach = _RANDOM_RADIUS * float(np.median(distances)) * np.cbrt(generator.random((_RANDOM_POINTS, 1)))
    return Points(capture.focus + reach * directions, generator.random((_RANDOM_POINTS, 3)))


def gaussians_at(points: Points, sh_degree: int) -> Gaussians:
    """Round, faint Gaussians with harmonics up to a degree, sized by the distances to their neighbours."""
    count = len(points)
    sh = np.zeros((count, (sh_degree + 1) ** 2, 3), np.float32)
    sh[:, :1] = sh_from_colors(points.colors)
    return Gaussians(
        points.positions,
        np.tile([1.0, 0.0, 0.0, 0.0], (count, 1)),
        np.tile(spacing(points.positions)[:, None], (1, 3)),
        np.full(count, _OPACITY),
        sh=sh,
    )


def surfels_at(points: Points, sh_degree: int, seed: int) -> Gaussians:
    """The same as flat Gaussians, turned at random, so that each camera sees most of them from their front or back."""
    round_ones = gaussians_at(points, sh_degree)
    quats = np.random.default_rng(seed).normal(size=(len(points), 4)).astype(np.float32)
    quats /= np.linalg.norm(quats, axis=1, keepdims=True)
    assert round_ones.scales is not None
    return replace(round_ones, quats=quats, scales=round_ones.scales[:, :2])


def spheres_at(points: Points) -> Spheres:
    """Spheres that nearly touch."""
    return Spheres(points.positions, points.colors, spacing(points.positions) / 2)


def spacing(positions: Array) -> Array:
    """[N] root mean square distance of points [N, 3] to their three nearest neighbours, scene units."""
    if len(positions) <= _NEIGHBOURS:
        raise InvalidArgument.of("dataset", f"expected more than {_NEIGHBOURS} initial points, got {len(positions)}")
    tree = require("scipy.spatial", "fit", "the sizes of initial primitives").cKDTree(positions)
    # The nearest is the point itself.
    distances = tree.query(positions, _NEIGHBOURS + 1)[0][:, 1:]
    found = np.sqrt(np.square(distances).mean(axis=1))
    return np.asarray(np.maximum(found, _LEAST_SPACING * (np.median(found) or 1.0)), np.float32)
