"""The inputs of a fit: photographs with their cameras, and one primitive for each point of a reconstruction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Array
from lumigrad.client.base.extras import require
from lumigrad.client.datasets.capture import Capture
from lumigrad.client.datasets.points import Points
from lumigrad.client.datasets.view import View
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.scene import sh_from_colors
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.values.target import Target


@dataclass(frozen=True, eq=False)
class Shot:
    """A photograph and its camera.

    Attributes:
        name: name of its view.
        pixels: [H, W, 3] uint8.
        mask: [H, W] uint8, 0 where the photograph is ignored; None: nowhere.
        camera: its camera.
    """

    name: str
    pixels: Array
    mask: Array | None
    camera: Camera

    @staticmethod
    def of(view: View, size: int) -> Shot:
        """Reads a view's photograph, at most `size` pixels wide and high; transparent pixels become black."""
        assert view.image is not None
        image: Any = require("PIL.Image", "fit", "reading photographs")
        picture = image.open(view.image).convert("RGBA")
        picture.thumbnail((size, size), image.Resampling.LANCZOS)
        picture = image.alpha_composite(image.new("RGBA", picture.size, "black"), picture).convert("RGB")
        camera = view.resized(*picture.size).camera
        return Shot(view.name, np.array(picture), _mask(image, view, picture.size), camera)

    @property
    def photograph(self) -> Array:
        """The photograph [H, W, 3], values from 0 to 1, float32."""
        return np.divide(self.pixels, 255, dtype=np.float32)

    @property
    def target(self) -> Target:
        """The target of a training's view."""
        return Target(self.pixels, self.mask)


def shots_of(capture: Capture, size: int) -> list[Shot]:
    """The photographs of a data set, in the order of their views' names; views without one are left out."""
    views = sorted((view for view in capture.views if view.image), key=lambda view: view.name)
    if len(views) < 2:
        raise InvalidArgument.of("dataset", f"expected at least two photographs, found {len(views)}")
    return [Shot.of(view, size) for view in views]


def divide(shots: Sequence[Shot], every: int) -> tuple[list[Shot], list[Shot]]:
    """Splits shots into fitted and held-out ones: every `every`-th from the first on; 0: all are in both."""
    if not every:
        return list(shots), list(shots)
    return [shot for index, shot in enumerate(shots) if index % every], list(shots[::every])


def _mask(image: Any, view: View, size: tuple[int, int]) -> Array | None:
    if view.mask is None:
        return None
    mask = image.open(view.mask).convert("L").resize(size, image.Resampling.NEAREST)
    levels: Array = np.asarray(mask, np.uint8)
    return levels


_OPACITY = 0.1
# The number of neighbours whose distances set a primitive's initial size.
_NEIGHBOURS = 3
# The smallest size, for coinciding points, relative to the median.
_LEAST_SPACING = 1e-3


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
