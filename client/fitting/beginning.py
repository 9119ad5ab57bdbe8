"""The initial scene of a fit: one primitive for each point of a reconstruction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lumigrad.client.base.arrays import Array
from lumigrad.client.base.extras import require
from lumigrad.client.datasets.capture import Capture
from lumigrad.client.datasets.points import Points
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.scene import sh_from_colors
from lumigrad.client.training.options import extent_of
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.spheres import Spheres

# Without a reconstruction, a fit begins with random points in a ball around the point that the cameras look at. The
# ball's radius is this share of the cameras' median distance from that point.
_RANDOM_POINTS, _RANDOM_RADIUS = 20_000, 0.4
_OPACITY = 0.1
# The number of neighbours whose distances set a primitive's initial size.
_NEIGHBOURS = 3
# The smallest size, relative to the median, for points that coincide.
_LEAST_SPACING = 1e-3


def extent_for(cameras: Sequence[Camera], begin: Gaussians | Spheres) -> float:
    """Returns a length by which a fit takes the unit of a data set's coordinates, scene units.

    It is the radius of the region around the cameras or, if that is more, the median distance of the initial scene from
    their mean: cameras may be close together, or at one place.
    """
    centers = begin.means if isinstance(begin, Gaussians) else begin.positions
    middle = np.mean([camera.model.eye for camera in cameras], axis=0)
    away = float(np.median(np.linalg.norm(np.asarray(centers, np.float64) - middle, axis=1)))
    return max(extent_of(cameras) if len(cameras) > 1 else 0.0, away) or 1.0


def random_points(capture: Capture, seed: int) -> Points:
    """Returns points with random colours where the subject probably is, for data sets without points."""
    generator = np.random.default_rng(seed)
    directions = generator.normal(size=(_RANDOM_POINTS, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    distances = [np.linalg.norm(view.camera.model.eye - capture.focus) for view in capture.views]
    reach = _RANDOM_RADIUS * float(np.median(distances)) * np.cbrt(generator.random((_RANDOM_POINTS, 1)))
    return Points(capture.focus + reach * directions, generator.random((_RANDOM_POINTS, 3)))


def gaussians_at(points: Points, sh_degree: int) -> Gaussians:
    """Returns round, faint Gaussians with spherical harmonics up to a degree, sized by the distances between points."""
    count, positions = len(points), points.positions.astype(np.float32)
    sh = np.zeros((count, (sh_degree + 1) ** 2, 3), np.float32)
    sh[:, :1] = sh_from_colors(points.colors)
    return Gaussians(
        positions,
        np.tile([1.0, 0.0, 0.0, 0.0], (count, 1)),
        np.tile(spacing(positions)[:, None], (1, 3)),
        np.full(count, _OPACITY),
        sh=sh,
    )


def surfels_at(points: Points, sh_degree: int, seed: int) -> Gaussians:
    """Returns flat Gaussians like those of `gaussians_at`, turned at random so that cameras see few of them edge-on."""
    round_ones = gaussians_at(points, sh_degree)
    quats = np.random.default_rng(seed).normal(size=(len(points), 4)).astype(np.float32)
    quats /= np.linalg.norm(quats, axis=1, keepdims=True)
    assert round_ones.scales is not None
    return replace(round_ones, quats=quats, scales=round_ones.scales[:, :2])


def spheres_at(points: Points) -> Spheres:
    """Returns spheres that nearly touch."""
    positions = points.positions.astype(np.float32)
    return Spheres(positions, points.colors, spacing(positions) / 2)


def spacing(positions: Array) -> Array:
    """Returns the RMS distances [N] of points [N, 3] to their three nearest neighbours, scene units."""
    if len(positions) <= _NEIGHBOURS:
        raise InvalidArgument.of("dataset", f"expected more than {_NEIGHBOURS} initial points, got {len(positions)}")
    tree = require("scipy.spatial", "fit", "the sizes of initial primitives").cKDTree(positions)
    # The nearest point is the point itself.
    distances = tree.query(positions, _NEIGHBOURS + 1)[0][:, 1:]
    found = np.sqrt(np.square(distances).mean(axis=1))
    return np.asarray(np.maximum(found, _LEAST_SPACING * (np.median(found) or 1.0)), np.float32)
