"""Where a scene is and how large, strays left aside, and how far from it a camera sees all of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lumigrad.client.arrays import Float32, Float64
from lumigrad.client.camera import Camera
from lumigrad.client.camera_models import OpenCVModel
from lumigrad.client.gaussians import Gaussians
from lumigrad.client.rotations import look_rotation, orbit_direction
from lumigrad.client.spheres import Spheres

# Shares of the opacity left aside at either end, and how many times the median deviation the rest may reach: where a
# dense object stands in a wide surrounding, it is the object that is looked at.
_STRAYS = 0.005
_FARTHEST_DEVIATIONS = 3.0
_MARGIN = 1.08
_RIM_POINTS = 64
# For the range of depths: what counts as visible, and how much of a scene and a path is looked at.
_VISIBLE = 0.1
_SAMPLES, _SAMPLED_CAMERAS = 20000, 16


@dataclass(frozen=True)
class Extent:
    """An upright cylinder around nearly all of a scene.

    Attributes:
        center: [3] world frame, scene units.
        up: [3] the direction of its axis.
        radius: scene units.
        half_height: likewise.
    """

    center: Float64
    up: Float64
    radius: float
    half_height: float

    @staticmethod
    def of(gaussians: Gaussians, up: Float64) -> Extent:
        """Of Gaussians, weighted by their opacities; `up` is a unit vector."""
        if not len(gaussians):
            return Extent(np.zeros(3), up, 1.0, 1.0)
        means = gaussians.means.reshape(-1, 3).astype(np.float64)
        weights = gaussians.opacities.reshape(-1).astype(np.float64)
        weights = weights if weights.any() else np.ones(len(means))
        level = orbit_direction(0.0, 0.0, up)
        axes = np.stack([level, np.cross(up, level), up])
        places, sizes = means @ axes.T, _sizes(gaussians)
        low, high = np.array([_span(places[:, axis], sizes, weights) for axis in range(3)]).T
        center = (low + high) / 2
        across = np.linalg.norm(places[:, :2] - center[:2], axis=1)
        both = np.concatenate([across, -across])
        radius = _span(both, np.tile(sizes, 2), np.tile(weights, 2))[1]
        height = float(high[2] - low[2]) / 2
        smallest = 1e-6 + 1e-3 * max(radius, height)
        return Extent(axes.T @ center, up, max(radius, smallest), max(height, smallest))

    def distance(self, elevation_degrees: float, fov_degrees: float, width: int, height: int) -> float:
        """From the centre to a camera at this elevation that sees the whole cylinder, from every side; scene units."""
        toward = orbit_direction(0.0, elevation_degrees, self.up)
        rotation = look_rotation(-toward, self.up)
        vertical = math.tan(math.radians(fov_degrees) / 2)
        tangents = np.array([vertical * width / height, vertical])
        level = orbit_direction(0.0, 0.0, self.up)
        side = np.cross(self.up, level)
        angles = np.linspace(0.0, 2 * math.pi, _RIM_POINTS, endpoint=False)
        rim = self.radius * (np.cos(angles)[:, None] * level + np.sin(angles)[:, None] * side)
        points = np.concatenate([rim + self.half_height * self.up, rim - self.half_height * self.up]) @ rotation.T
        # A point at (x, y, z) from the centre is in the picture if |x| <= tangent * (distance + z).
        needed = (np.abs(points[:, :2]) / tangents - points[:, 2:]).max()
        return _MARGIN * float(needed)


def enclosing_ball(spheres: Spheres) -> tuple[Float64, float]:
    """Centre [3] and radius of a ball around nearly all spheres; strays count little."""
    if not len(spheres):
        return np.zeros(3), 1.0
    positions = spheres.positions.astype(np.float64)
    low, high = np.percentile(positions, [2, 98], axis=0)
    center = (low + high) / 2
    reach = np.linalg.norm(positions - center, axis=1) + spheres.radii
    return center, float(np.percentile(reach, 98))


def depth_range(points: Float32, opacities: Float32 | None, cameras: Sequence[Camera]) -> tuple[float, float]:
    """Least and largest depth, along the view direction, of nearly all points that some cameras see; scene units.

    Args:
        points: [N, 3] world frame.
        opacities: [N]; None: all opaque. What is hardly visible does not count.
        cameras: OpenCV's; others are left aside.
    """
    visible = points if opacities is None else points[opacities > _VISIBLE]
    sample = visible[:: max(1, len(visible) // _SAMPLES)].astype(np.float64)
    found = [np.zeros(0)]
    for camera in cameras[:: max(1, len(cameras) // _SAMPLED_CAMERAS)]:
        model = camera.model
        if isinstance(model, OpenCVModel):
            x, y, depth = model.rotation @ sample.T + model.translation[:, None]
            inside = (depth > 0) & (np.abs(x * model.fx) < depth * camera.width)
            found.append(depth[inside & (np.abs(y * model.fy) < depth * camera.height)])
    depths = np.concatenate(found)
    if not len(depths):
        return 0.0, 1.0
    low, high = np.percentile(depths, [0.5, 98])
    return float(low), max(float(high), float(low) * 1.001 + 1e-9)


def _sizes(gaussians: Gaussians) -> Float64:
    """[N] how far each Gaussian can be seen from its mean: two standard deviations, of the middle one of three."""
    if gaussians.scales is None:
        return np.zeros(len(gaussians))
    return 2.0 * np.median(gaussians.scales.reshape(-1, 3), axis=1).astype(np.float64)


def _span(values: Float64, sizes: Float64, weights: Float64) -> tuple[float, float]:
    """Ends of an interval that holds nearly all of the weight, but not far from where half of it is."""
    low = _quantile(values - sizes, weights, _STRAYS)
    middle = _quantile(values, weights, 0.5)
    high = _quantile(values + sizes, weights, 1 - _STRAYS)
    reach = _FARTHEST_DEVIATIONS * _quantile(np.abs(values - middle) + sizes, weights, 0.5)
    return max(low, middle - reach), min(high, middle + reach)


def _quantile(values: Float64, weights: Float64, share: float) -> float:
    """The value below which that share of the weight lies."""
    order = np.argsort(values)
    sums = np.cumsum(weights[order])
    return float(np.interp(share * sums[-1], sums, values[order]))
