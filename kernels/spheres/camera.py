"""Cameras of the sphere engine, with Pulsar's parameters or with OpenCV's K, R, t."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lumigrad.kernels import _native
from lumigrad.kernels.checks import MAX_EXTENT, check_size
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.spheres import rotation as rotations
from lumigrad.kernels.spheres.camera_sources import OpenCVSource, PulsarSource

Array = np.ndarray
_LENGTHS = (8, 10, 11, 13)


@dataclass(frozen=True, eq=False)
class Camera:
    """A camera. Create it with `pulsar` or `opencv`.

    Attributes:
        width, height: Size of the image, pixels.
        orthogonal: Whether the projection is orthographic.
        focal: Distance of the film from the eye, scene units; 0 if orthogonal; 1 for OpenCV's cameras.
        auto_min_depth: Default start of the depth range: the focal length for Pulsar's cameras, 0 for OpenCV's.
        offset: Principal point offset (x, y), pixels; a positive one moves the image to the left and up.
        scale: Pixels per unit on the plane z = 1 (perspective) or per scene unit (orthogonal), (x, y).
        centre: Pixel coordinates of the optical axis (x, y); pixel centres are at integers.
        source: The parameters from which the camera was created.
    """

    width: int
    height: int
    orthogonal: bool
    focal: float
    auto_min_depth: float
    offset: tuple[float, float]
    scale: tuple[float, float]
    centre: tuple[float, float]
    source: PulsarSource | OpenCVSource

    @staticmethod
    def pulsar(
        parameters: Sequence[float],
        width: int,
        height: int,
        *,
        orthogonal: bool = False,
        right_handed: bool = False,
        first_r_then_t: bool = False,
    ) -> Camera:
        """A camera with Pulsar's 8, 10, 11 or 13 parameters.

        Args:
            parameters: Position (3), rotation (3 axis-angle or 6 six-D), focal length, sensor width and, with 10 or 13
                values, the principal point offset in pixels. Lengths in scene units.
            width: Width of the image, pixels.
            height: Height of the image, pixels.
            orthogonal: Orthographic projection; the focal length must be 0.
            right_handed: The camera looks along -z of its frame.
            first_r_then_t: The eye is at R * position.

        Raises:
            ArgumentError: The number of parameters is wrong, or a size or a length is out of range.
        """
        check_size(width, height)
        values = np.asarray(parameters, np.float32).reshape(-1)
        if len(values) not in _LENGTHS:
            raise ArgumentError("camera parameters", "8, 10, 11 or 13 values", f"{len(values)}")
        if not np.isfinite(values).all():
            raise ArgumentError("camera parameters", "finite values", f"{values.tolist()}")
        source = PulsarSource(values, right_handed, first_r_then_t)
        if not rotations.is_rotation(source.rotation_values):
            raise ArgumentError(
                "six-D rotation", "two vectors that are neither 0 nor parallel", f"{source.rotation_values.tolist()}"
            )
        focal, sensor = float(source.focal), float(source.sensor)
        if orthogonal and focal != 0.0:
            raise ArgumentError("focal length", "0 for an orthogonal camera", f"{focal}")
        if not orthogonal and not focal > 1e-6:
            raise ArgumentError("focal length", "a value above 1e-6 for a perspective camera", f"{focal}")
        if not sensor > 0.0:
            raise ArgumentError("sensor width", "a value above 0", f"{sensor}")
        px, py = source.offset
        limit = MAX_EXTENT - max(width, height)
        if max(abs(px), abs(py)) > limit / 2:
            raise ArgumentError("principal point offset", f"at most {limit // 2} pixels", f"({px}, {py})")
        scale = width / sensor * (1.0 if orthogonal else focal)
        half = 0.0 if orthogonal else 0.5
        return Camera(
            width=width,
            height=height,
            orthogonal=orthogonal,
            focal=focal,
            auto_min_depth=focal,
            offset=(px, py),
            scale=(scale, scale),
            # Pulsar's orthographic rays are offset by half a pixel from the film.
            centre=(width / 2 - half - px, height / 2 - half - py),
            source=source,
        )

    @staticmethod
    def opencv(
        fx: float,
        fy: float,
        cx: float,
        cy: float,
        rotation: Sequence[Sequence[float]] | Array,
        translation: Sequence[float] | Array,
        width: int,
        height: int,
    ) -> Camera:
        """OpenCV's pinhole camera: x right, y down, z forward, x_camera = R x_world + t.

        Args:
            fx: Focal length, pixels.
            fy: Focal length, pixels.
            cx: Principal point, pixels; the centre of pixel (u, v) is at (u + 0.5, v + 0.5).
            cy: Principal point, pixels.
            rotation: R [3, 3], world to camera.
            translation: t [3], scene units.
            width: Width of the image, pixels.
            height: Height of the image, pixels.

        Raises:
            ArgumentError: R is not a rotation, or a value is out of range.
        """
        check_size(width, height)
        r = np.asarray(rotation, np.float64)
        r = r.reshape(3, 3) if r.size == 9 else np.zeros((3, 3))
        t = np.asarray(translation, np.float64).reshape(-1)
        if not (np.isfinite(r).all() and np.allclose(r @ r.T, np.eye(3), atol=1e-3) and np.linalg.det(r) > 0):
            raise ArgumentError("rotation", "an orthonormal 3x3 matrix of determinant 1", f"{np.asarray(rotation)}")
        if t.shape != (3,) or not np.isfinite(t).all():
            raise ArgumentError("translation", "3 finite values", f"{np.asarray(translation)}")
        for name, value in (("fx", fx), ("fy", fy)):
            if not 0.0 < value < np.inf:
                raise ArgumentError(name, "a finite focal length above 0, in pixels", f"{value}")
        for name, value in (("cx", cx), ("cy", cy)):
            if not np.isfinite(value):
                raise ArgumentError(name, "a finite principal point, in pixels", f"{value}")
        source = OpenCVSource(fx, fy, cx, cy, r, t)
        return Camera(
            width=width,
            height=height,
            orthogonal=False,
            focal=1.0,
            auto_min_depth=0.0,
            offset=(0.0, 0.0),
            scale=(fx, fy),
            centre=(cx - 0.5, cy - 0.5),
            source=source,
        )

    @property
    def eye(self) -> list[float]:
        """Position in the world, scene units."""
        if isinstance(self.source, OpenCVSource):
            return (-self.source.rotation.T @ self.source.translation).tolist()  # type: ignore[no-any-return]
        return self.source.axes(np.float64, self.width, self.height, self.orthogonal).eye.tolist()  # type: ignore[no-any-return]

    def native(self, min_depth: float, max_depth: float) -> _native.SphereCamera:
        """The extension's camera, with the depth range of the call."""
        if isinstance(self.source, OpenCVSource):
            return _native.opencv_sphere_camera(
                self.source.lens(self.width, self.height), *self._pose, min_depth, max_depth
            )
        z_min, z_max = np.float32(min_depth), np.float32(max_depth)
        return _native.make_sphere_camera(
            **self._native_view,
            z_min=float(z_min),
            z_max=float(z_max),
            inverse_range=float(np.float32(1) / (z_max - z_min)),
            z_min64=min_depth,
            z_max64=max_depth,
        )

    @cached_property
    def _pose(self) -> tuple[list[float], list[float]]:
        """Rotation and translation of OpenCV's camera."""
        source = self.source
        assert isinstance(source, OpenCVSource)
        return source.rotation.ravel().tolist(), source.translation.tolist()

    @cached_property
    def _native_view(self) -> dict[str, Any]:
        """The extension's arguments for Pulsar's camera, without the depth range."""
        f32, source = np.float32, self.source
        assert isinstance(source, PulsarSource)
        a, m = (source.axes(each, self.width, self.height, self.orthogonal) for each in (np.float32, np.float64))
        px, py = int(self.offset[0]), int(self.offset[1])
        origin = a.origin - a.pixel_x * f32(abs(px)) - a.pixel_y * f32(abs(py)) - a.eye
        length_x, length_y = _length(a.pixel_x), _length(a.pixel_y)
        forward = _unit(np.cross(a.pixel_y, a.pixel_x).astype(f32))
        forward = -forward if float(forward @ a.forward) < 0 else forward
        aperture = (self.width + 2 * abs(px), self.height + 2 * abs(py))
        return dict(
            width=self.width,
            height=self.height,
            orthogonal=self.orthogonal,
            border=(max(0, 2 * px), max(0, 2 * py)),
            aperture=aperture,
            eye=a.eye.tolist(),
            origin=origin.tolist(),
            pixel_x=a.pixel_x.tolist(),
            pixel_y=a.pixel_y.tolist(),
            forward=forward.tolist(),
            rotation=np.concatenate([a.pixel_x / length_x, a.pixel_y / length_y, forward]).tolist(),
            half_pixel=float(f32(0.5) * length_x),
            focal=self.focal,
            pixels_per_unit=tuple(float(f32(1) / (f32(2) * (f32(0.5) * n))) for n in (length_x, length_y)),
            axis=tuple(float((f32(n) - f32(1)) * f32(0.5)) for n in aperture),
            eye64=m.eye.tolist(),
            rotation64=np.concatenate([m.right, m.down, m.forward]).tolist(),
            scale=self.scale,
            centre=self.centre,
        )


def _length(v: Array) -> np.float32:
    length: np.float32 = np.sqrt((v[0] * v[0] + v[1] * v[1]) + v[2] * v[2])
    return length


def _unit(v: Array) -> Array:
    return (v / _length(v)).astype(np.float32)
