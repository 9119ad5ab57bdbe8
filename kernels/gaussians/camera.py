"""Cameras of the Gaussian engine, with OpenCV's K, R, t or with the matrices of diff-gaussian-rasterization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lumigrad.kernels import _native
from lumigrad.kernels.checks import check, check_size, is_number
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.gaussians import lens
from lumigrad.kernels.gaussians.camera_sources import InriaSource, OpenCVSource
from lumigrad.kernels.gaussians.lidar import SpinningLidar
from lumigrad.kernels.gaussians.rotation import rotation_matrix
from lumigrad.kernels.gaussians.sensor import SensorSource
from lumigrad.kernels.gaussians.sensor_lenses import (
    JACOBIAN_MARGIN,
    PinholeLens,
    SensorLens,
    Windshield,
    jacobian_limits,
)

Array = np.ndarray
MODELS = ("pinhole", "orthographic", "fisheye")
_CLIP_COLUMNS = [0, 1, 3]


@dataclass(frozen=True, eq=False)
class Camera:
    """A camera: +z forward, +x right, +y down. Create it with `opencv`, `inria` or `sensor`.

    Attributes:
        width, height: Size of the image, pixels.
        model: The projection, one of `MODELS`; a sensor's lens decides instead.
        source: The parameters from which the camera was created.
    """

    width: int
    height: int
    model: str
    source: OpenCVSource | InriaSource | SensorSource

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
        *,
        model: str = "pinhole",
        distortion: Sequence[float] | None = None,
    ) -> Camera:
        """OpenCV's camera, x_camera = R x_world + t.

        Args:
            fx: Focal length, pixels (orthographic: pixels per scene unit).
            fy: Focal length, pixels (orthographic: pixels per scene unit).
            cx: Principal point, pixels; the centre of pixel (0, 0) is at `Settings.pixel_center`.
            cy: Principal point, pixels.
            rotation: R [3, 3], world to camera; need not be orthonormal.
            translation: t [3], scene units.
            width: Width of the image, pixels.
            height: Height of the image, pixels.
            model: "pinhole", "orthographic" or "fisheye" (equidistant).
            distortion: For the pinhole: k1 k2 p1 p2 [k3 [k4 k5 k6]] (Brown-Conrady, OpenCV's order).

        Raises:
            ArgumentError: A value is out of range.
        """
        check_size(width, height)
        check(model in MODELS, "model", f"one of {MODELS}", model)
        for name, value in (("fx", fx), ("fy", fy)):
            ok = is_number(value) and 0.0 < float(value) < math.inf
            check(ok, name, "a finite focal length above 0, in pixels", value)
        for name, value in (("cx", cx), ("cy", cy)):
            ok = is_number(value) and math.isfinite(float(value))
            check(ok, name, "a finite principal point, in pixels", value)
        values = lens.coefficients(distortion)
        if any(values) and model != "pinhole":
            raise ArgumentError("distortion", f"none with model '{model}'; it is for 'pinhole'", f"{values}")
        source = OpenCVSource(
            (float(fx), float(fy), float(cx), float(cy)),
            _array("rotation", rotation, (3, 3)),
            _array("translation", translation, (3,)),
            values,
        )
        return Camera(width, height, model, source)

    @staticmethod
    def inria(
        view_matrix: Sequence[Sequence[float]] | Array,
        full_projection: Sequence[Sequence[float]] | Array,
        position: Sequence[float] | Array,
        tan_fov_x: float,
        tan_fov_y: float,
        width: int,
        height: int,
    ) -> Camera:
        """The camera of diff-gaussian-rasterization.

        Args:
            view_matrix: [4, 4], world to camera, for row vectors: [m, 1] @ view_matrix.
            full_projection: [4, 4], world to clip space, for row vectors.
            position: [3], the viewpoint for spherical harmonics, world frame.
            tan_fov_x: Tangent of half the horizontal field of view.
            tan_fov_y: Tangent of half the vertical field of view.
            width: Width of the image, pixels.
            height: Height of the image, pixels.

        Raises:
            ArgumentError: A value is out of range.
        """
        check_size(width, height)
        view = _array("view_matrix", view_matrix, (4, 4))
        affine = np.allclose(view[:, 3], (0.0, 0.0, 0.0, 1.0), atol=1e-5)
        check(affine, "view_matrix", "a matrix for row vectors, whose last column is 0 0 0 1", view.tolist())
        for name, value in (("tan_fov_x", tan_fov_x), ("tan_fov_y", tan_fov_y)):
            check(is_number(value) and 0.0 < float(value) < math.inf, name, "a finite value above 0", value)
        source = InriaSource(
            view,
            _array("full_projection", full_projection, (4, 4)),
            _array("position", position, (3,)),
            (float(tan_fov_x), float(tan_fov_y)),
        )
        return Camera(width, height, "pinhole", source)

    @staticmethod
    def sensor(
        lens: SensorLens,
        rotation: Sequence[Sequence[float]] | Array,
        translation: Sequence[float] | Array,
        width: int,
        height: int,
        *,
        shutter: str = "global",
        end_rotation: Sequence[Sequence[float]] | Array | None = None,
        end_translation: Sequence[float] | Array | None = None,
        row_time: str = "continuous",
        windshield: Windshield | None = None,
    ) -> Camera:
        """A real camera: Gaussians are projected through its lens and its shutter; see `Settings.projection_method`.

        Args:
            lens: The lens.
            rotation: R [3, 3], world to camera, orthonormal to 1e-4; the nearest rotation is used.
            translation: t [3], scene units: x_camera = R x_world + t.
            width: Width of the image, pixels.
            height: Height of the image, pixels.
            shutter: "global", or the order in which rows or columns are exposed: "top_to_bottom", "bottom_to_top",
                "left_to_right" or "right_to_left". The first is exposed at the pose above, the last at the end
                pose; in between the rotation turns evenly and the translation changes linearly.
            end_rotation: [3, 3] at the end of the exposure, with a rolling shutter.
            end_translation: [3].
            row_time: The time at which a projected point is exposed: "continuous", a smooth function of its row or
                column; "staircase", one time for the whole row or column, as in gsplat.
            windshield: Glass in front of the lens.

        Raises:
            ArgumentError: A value is out of range.
        """
        if isinstance(lens, SpinningLidar):
            for name, given, size in zip(("width", "height"), (width, height), lens.size, strict=True):
                check(given == size, name, f"{size}, as many as the lidar's table has", given)
        else:
            check_size(width, height)
        start = _pose("", rotation, translation)
        for name, value in (("end_rotation", end_rotation), ("end_translation", end_translation)):
            expected = "none with shutter 'global'" if shutter == "global" else f"a value with shutter {shutter!r}"
            check((value is None) == (shutter == "global"), name, expected, value)
        end = start
        if end_rotation is not None and end_translation is not None:
            end = _pose("end_", end_rotation, end_translation)
        return Camera(width, height, "sensor", SensorSource(lens, *start, *end, shutter, row_time, windshield))

    @cached_property
    def kept_views(self) -> dict[tuple[int, float], Any]:
        """The extension's views of this camera alone, by the number of Gaussians and `Settings.pixel_center`."""
        return {}

    @property
    def is_sensor(self) -> bool:
        """Whether this is a sensor."""
        return isinstance(self.source, SensorSource)

    @property
    def is_rolling(self) -> bool:
        """Whether this is a sensor with a rolling shutter."""
        return isinstance(self.source, SensorSource) and self.source.rolling

    @property
    def lidar(self) -> SpinningLidar | None:
        """The lidar, if this is one."""
        lens = self.source.lens if isinstance(self.source, SensorSource) else None
        return lens if isinstance(lens, SpinningLidar) else None

    @property
    def projected(self) -> bool:
        """Whether this is Inria's camera, with a separate projection matrix for means."""
        return isinstance(self.source, InriaSource)

    @property
    def distorted(self) -> bool:
        """Whether the lens is distorted."""
        return isinstance(self.source, OpenCVSource) and any(self.source.distortion)

    def native(self, scene: int, pixel_center: float) -> _native.GaussianView:
        """The extension's view of scene number `scene`."""
        distortion = self.source.distortion if isinstance(self.source, OpenCVSource) else (0.0,) * lens.COEFFICIENTS
        projection: list[float] = [0.0] * 12
        if isinstance(self.source, InriaSource):
            projection = self.source.projection[:, _CLIP_COLUMNS].T.reshape(-1).tolist()
        return _native.make_gaussian_view(
            width=self.width,
            height=self.height,
            scene=scene,
            model="pinhole" if self.is_sensor else self.model,
            intrinsics=self.intrinsics(pixel_center),
            limits=self.limits(),
            distorted=self.distorted,
            distortion=distortion,
            max_radius_squared=lens.max_radius_squared(distortion) if self.distorted else math.inf,
            projected=self.projected,
            projection=projection,
        )

    def intrinsics(self, pixel_center: float) -> tuple[float, float, float, float]:
        """Focal lengths and principal point in pixels, the centre of the first pixel at `pixel_center`."""
        if isinstance(self.source, OpenCVSource):
            return self.source.intrinsics
        if isinstance(self.source, SensorSource):
            return 1.0, 1.0, 0.0, 0.0
        (tan_x, tan_y), shift = self.source.tan_fov, pixel_center - 0.5
        half_width, half_height = self.width / 2, self.height / 2
        return half_width / tan_x, half_height / tan_y, half_width + shift, half_height + shift

    def limits(self) -> tuple[float, float, float, float]:
        """The limits to which the Jacobian clamps X/Z (min, max) and Y/Z (min, max)."""
        if isinstance(self.source, InriaSource):
            tan_x, tan_y = self.source.tan_fov
            wide_x, wide_y = (1 + 2 * JACOBIAN_MARGIN) * tan_x, (1 + 2 * JACOBIAN_MARGIN) * tan_y
            return -wide_x, wide_x, -wide_y, wide_y
        if isinstance(self.source, SensorSource) and isinstance(self.source.lens, PinholeLens):
            return jacobian_limits(self.source.lens, self.width, self.height)
        if self.model != "pinhole" or isinstance(self.source, SensorSource):
            return -math.inf, math.inf, -math.inf, math.inf
        fx, fy, cx, cy = self.source.intrinsics
        margin_x, margin_y = JACOBIAN_MARGIN * self.width, JACOBIAN_MARGIN * self.height
        min_u, max_u = -(cx + margin_x) / fx, (self.width - cx + margin_x) / fx
        return min_u, max_u, -(cy + margin_y) / fy, (self.height - cy + margin_y) / fy


def _pose(
    prefix: str, rotation: Sequence[Sequence[float]] | Array, translation: Sequence[float] | Array
) -> tuple[Array, Array]:
    """A sensor's rotation [3, 3] and translation [3]."""
    matrix = _array(prefix + "rotation", rotation, (3, 3))
    return rotation_matrix(prefix + "rotation", matrix), _array(prefix + "translation", translation, (3,))


def _array(name: str, value: Sequence[Sequence[float]] | Sequence[float] | Array, shape: tuple[int, ...]) -> Array:
    """Converts to a float64 array of this shape, from the same shape or flat (row-major).

    Raises:
        ArgumentError: The shape is wrong, or a value is not finite.
    """
    expected = f"finite values of shape {list(shape)}"
    try:
        array = np.array(value, np.float64)
    except (TypeError, ValueError) as error:
        raise ArgumentError(name, expected, repr(value)) from error
    fits = array.shape in (shape, (math.prod(shape),)) and bool(np.isfinite(array).all())
    check(fits, name, expected, array.tolist())
    return array.reshape(shape)
