"""Parameters from which cameras of spheres are created, and their frames."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lumigrad.kernels.spheres import rotation

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Axes:
    """A camera's frame and film in one precision.

    Attributes:
        eye: [3], world.
        right, down, forward: [3] unit vectors, world.
        origin: [3] centre of film pixel (0, 0), world (before a principal point offset).
        pixel_x, pixel_y: [3] steps per pixel, world.
    """

    eye: Array
    right: Array
    down: Array
    forward: Array
    origin: Array
    pixel_x: Array
    pixel_y: Array


@dataclass(frozen=True, eq=False)
class PulsarSource:
    """Pulsar's parameters, float32 [8 | 10 | 11 | 13]."""

    values: Array
    right_handed: bool
    first_r_then_t: bool

    @property
    def rotation_values(self) -> Array:
        """Axis-angle [3] or six-D [6]."""
        return self.values[3:6] if len(self.values) in (8, 10) else self.values[3:9]

    @property
    def focal(self) -> np.float32:
        """Focal length, scene units."""
        value: np.float32 = self.values[3 + len(self.rotation_values)]
        return value

    @property
    def sensor(self) -> np.float32:
        """Sensor width, scene units."""
        value: np.float32 = self.values[4 + len(self.rotation_values)]
        return value

    @property
    def offset(self) -> tuple[float, float]:
        """Principal point offset, pixels."""
        if len(self.values) in (8, 11):
            return 0.0, 0.0
        return float(self.values[-2]), float(self.values[-1])

    def axes(self, dtype: type, width: int, height: int, orthogonal: bool) -> Axes:
        """The frame; in float32 with the same operations as in Pulsar, so that results round equally."""
        as_type = np.dtype(dtype).type
        r = rotation.matrix(self.rotation_values.astype(dtype))
        position: Array = self.values[:3].astype(dtype)
        eye = r @ position if self.first_r_then_t else position
        right, down, forward = r[:, 0].copy(), -r[:, 1], r[:, 2] * as_type(-1 if self.right_handed else 1)
        focal, sensor, two = as_type(self.focal), as_type(self.sensor), as_type(2)
        pixel = sensor / as_type(width)
        sensor_height = pixel * as_type(height)
        film = eye if orthogonal else eye + focal * forward
        corner = film - right * (sensor / two) - down * (sensor_height / two)
        origin = corner + right * (pixel / two) + down * (pixel / two)
        return Axes(eye, right, down, forward, origin, right * pixel, down * pixel)


@dataclass(frozen=True, eq=False)
class OpenCVSource:
    """OpenCV's pinhole parameters, float64; intrinsics in pixels."""

    fx: float
    fy: float
    cx: float
    cy: float
    rotation: Array
    translation: Array

    def lens(self, width: int, height: int) -> tuple[float, float, float, float, int, int]:
        """The extension's arguments: the intrinsics and the size of the image."""
        return self.fx, self.fy, self.cx, self.cy, width, height
