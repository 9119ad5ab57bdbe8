"""Cameras: size, pose and lens model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lumigrad.client.base.arguments import number
from lumigrad.client.base.arrays import Float64, affine_array, check_shape, float64_array
from lumigrad.client.base.cautions import warn_of_fractions, warn_of_radians
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.values.camera_models import (
    InriaModel,
    OpenCVModel,
    Projection,
    PulsarModel,
    RowTime,
    SensorModel,
    Shutter,
)
from lumigrad.client.values.lenses import FisheyeLens, FThetaLens, Lens, PinholeLens, SpinningLidar, Windshield
from lumigrad.client.values.rotations import look_rotation, orbit_direction

# The limit of the protocol; workers have lower limits.
_LARGEST_SIZE = (1 << 31) - 1


@dataclass(frozen=True, eq=False)
class Camera:
    """A camera and the size of its image.

    Create one with `look_at`, `orbit`, `opencv`, `from_view_matrix`, `sensor`, `pulsar` or `inria`.

    Attributes:
        width: image width in pixels.
        height: image height in pixels.
        model: maps the world to the image.

    Example:
        camera = Camera.look_at((0, 0, -4), (0, 0, 0), width=64, height=48)
    """

    width: int
    height: int
    model: PulsarModel | OpenCVModel | InriaModel | SensorModel

    def __post_init__(self) -> None:
        for name in ("width", "height"):
            vars(self)[name] = _pixels(name, getattr(self, name))
        if isinstance(self.model, SensorModel) and self.model.rays is not None:
            check_shape("rays", self.model.rays.shape, (self.height, self.width, 6))
        lens = self.model.lens if isinstance(self.model, SensorModel) else self.model
        is_parallel = isinstance(lens, OpenCVModel) and lens.projection == "orthographic"
        if isinstance(lens, OpenCVModel | PinholeLens | FisheyeLens) and not is_parallel:
            warn_of_fractions((lens.fx, lens.fy), (lens.cx, lens.cy), (self.width, self.height))

    @property
    def position(self) -> Float64:
        """The position [3] in the world, scene units; with a rolling shutter the mean of start and end.

        With OpenCV's model -R^T t, from where harmonics are seen, also if R is not a rotation.
        """
        return self.model.eye

    @property
    def view_matrix(self) -> Float64:
        """The matrix [4, 4] world to camera, scene units, for column vectors: x right, y down, z forward.

        With a rolling shutter, the pose when the first row or column is exposed.

        Raises:
            InvalidArgument: this is a Pulsar camera, which has other axes.
        """
        model = self.model
        if isinstance(model, InriaModel):
            return np.asarray(model.view_matrix.T)
        if isinstance(model, PulsarModel):
            raise InvalidArgument.of("camera", "expected one with a view matrix, got a Pulsar camera; see model")
        matrix = np.eye(4)
        matrix[:3, :3], matrix[:3, 3] = model.rotation, model.translation
        return matrix

    @property
    def K(self) -> Float64:
        """The intrinsics [3, 3] fx 0 cx, 0 fy cy, 0 0 1, pixels; the centre of the first pixel is at 0.5.

        Raises:
            InvalidArgument: this is a Pulsar camera, an f-theta lens or a lidar, which have no such matrix.
        """
        model = self.model
        lens = model.lens if isinstance(model, SensorModel) else model
        if isinstance(lens, InriaModel):
            size = self.width / 2, self.height / 2
            return np.array([[size[0] / lens.tan_fov_x, 0, size[0]], [0, size[1] / lens.tan_fov_y, size[1]], [0, 0, 1]])
        if isinstance(lens, PulsarModel | FThetaLens | SpinningLidar):
            name = type(lens).__name__
            raise InvalidArgument.of("camera", f"expected one with focal lengths in pixels, got {name}; see model")
        return np.array([[lens.fx, 0, lens.cx], [0, lens.fy, lens.cy], [0, 0, 1]])

    @property
    def paraxial_focal_lengths(self) -> tuple[float, float]:
        """Pixels per radian in x and y, on the optical axis; for an orthographic camera, pixels per scene unit.

        Raises:
            InvalidArgument: this is a Pulsar camera or a lidar, which have none.
        """
        lens = self.model.lens if isinstance(self.model, SensorModel) else None
        if isinstance(lens, FThetaLens):
            given = getattr(lens, lens.reference)[1]
            slope = given if lens.reference == "angle_to_pixel_distance" else 1.0 / given
            return slope * lens.linear[0], slope
        return float(self.K[0, 0]), float(self.K[1, 1])

    @staticmethod
    def pulsar(
        parameters: Any,
        width: int,
        height: int,
        *,
        orthogonal: bool = False,
        right_handed: bool = False,
        first_r_then_t: bool = False,
    ) -> Camera:
        """Returns Pulsar's camera from its parameter vector, see `PulsarModel`.

        Args:
            parameters: [8 | 10 | 11 | 13] position, rotation, focal length, sensor width, offset.
            width: picture width in pixels.
            height: picture height in pixels.
            orthogonal: parallel rays; the focal length must be 0.
            right_handed: the view direction is -z instead of +z.
            first_r_then_t: the eye is at rotation * position.

        Raises:
            InvalidArgument: there is a wrong number of parameters, or another argument is wrong.

        Example:
            camera = Camera.pulsar([0, 0, -4, 0, 0, 0, 5, 2], 64, 64)
        """
        return Camera(width, height, PulsarModel(parameters, orthogonal, right_handed, first_r_then_t))

    @staticmethod
    def opencv(
        fx: float,
        fy: float,
        cx: float,
        cy: float,
        rotation: Any,
        translation: Any,
        width: int,
        height: int,
        *,
        model: Projection = "pinhole",
        distortion: Any = (),
    ) -> Camera:
        """Returns OpenCV's camera from its intrinsics (pixels) and world-to-camera pose, see `OpenCVModel`.

        Args:
            fx: focal length in x, pixels.
            fy: focal length in y, pixels.
            cx: principal point in x, pixels; the centre of the first pixel is at 0.5.
            cy: principal point in y, pixels.
            rotation: [3, 3] world to camera. Gaussians accept any matrix, also one that scales or mirrors the picture;
                spheres need a rotation.
            translation: [3] world to camera, scene units.
            width: picture width in pixels.
            height: picture height in pixels.
            model: "pinhole", "orthographic" or "fisheye".
            distortion: coefficients of a pinhole, in OpenCV's order, see `OpenCVModel`.

        Raises:
            InvalidArgument: an argument is wrong.

        Example:
            camera = Camera.opencv(80, 80, 32, 24, np.eye(3), (0, 0, 4), 64, 48)
        """
        fx, fy, cx, cy = (number(name, value) for name, value in {"fx": fx, "fy": fy, "cx": cx, "cy": cy}.items())
        return Camera(width, height, OpenCVModel(fx, fy, cx, cy, rotation, translation, model, distortion))

    @staticmethod
    def from_view_matrix(
        view_matrix: Any,
        intrinsics: Any,
        width: int,
        height: int,
        *,
        model: Projection = "pinhole",
        distortion: Any = (),
    ) -> Camera:
        """Returns OpenCV's camera from its matrices.

        Args:
            view_matrix: [4, 4] world to camera, for column vectors; the last row is 0 0 0 1. Its rotation may scale or
                mirror, as in `opencv`.
            intrinsics: [3, 3] the matrix K: fx 0 cx, 0 fy cy, 0 0 1; pixels.
            width: picture width in pixels.
            height: picture height in pixels.
            model: "pinhole", "orthographic" or "fisheye".
            distortion: coefficients of a pinhole, in OpenCV's order, see `OpenCVModel`.

        Raises:
            InvalidArgument: a matrix has the wrong shape, the wrong last row, or skew.

        Example:
            same = Camera.from_view_matrix(camera.view_matrix, camera.K, camera.width, camera.height)
        """
        view = affine_array("view_matrix", view_matrix)
        k = float64_array("intrinsics", intrinsics, (3, 3))
        if k[0, 1] or k[1, 0] or not np.allclose(k[2], (0.0, 0.0, 1.0)):
            raise InvalidArgument.of("intrinsics", f"expected fx 0 cx, 0 fy cy, 0 0 1, got {k.tolist()}")
        return Camera.opencv(
            k[0, 0], k[1, 1], k[0, 2], k[1, 2], view[:3, :3], view[:3, 3], width, height,
            model=model, distortion=distortion,
        )  # fmt: skip

    @staticmethod
    def sensor(
        lens: Lens,
        rotation: Any,
        translation: Any,
        width: int,
        height: int,
        *,
        shutter: Shutter = "global",
        end_rotation: Any = None,
        end_translation: Any = None,
        row_time: RowTime = "continuous",
        windshield: Windshield | None = None,
        rays: Any = None,
    ) -> Camera:
        """Returns a sensor from its lens and its world-to-camera poses, see `SensorModel`; for Gaussians only.

        Args:
            lens: the lens, or a lidar.
            rotation: [3, 3] world to camera, when the first row or column is exposed.
            translation: [3] world to camera, scene units.
            width: picture width in pixels.
            height: picture height in pixels.
            shutter: "global", or the order in which rows or columns are exposed.
            end_rotation: [3, 3] world to camera, when the last row or column is exposed, with a rolling shutter.
            end_translation: [3] world to camera at that time, scene units.
            row_time: "continuous" or "staircase".
            windshield: glass in front of the lens.
            rays: [H, W, 6] origins and directions that replace the rays of the lens, world frame.

        Raises:
            InvalidArgument: an argument is wrong.

        Example:
            lens = FisheyeLens(fx=80, fy=80, cx=32, cy=24, radial=(0.01,))
            camera = Camera.sensor(lens, np.eye(3), (0, 0, 4), 64, 48)
        """
        end = end_rotation, end_translation
        model = SensorModel(lens, rotation, translation, shutter, *end, row_time, windshield, rays)
        return Camera(width, height, model)

    @staticmethod
    def inria(
        view_matrix: Any,
        full_projection: Any,
        position: Any,
        tan_fov_x: float,
        tan_fov_y: float,
        width: int,
        height: int,
    ) -> Camera:
        """Returns the camera of diff-gaussian-rasterization, see `InriaModel`; usually used with an Inria semantics.

        Args:
            view_matrix: [4, 4] world to camera, for row vectors.
            full_projection: [4, 4] world to normalised device coordinates, for row vectors.
            position: [3] the camera's position in the world, scene units.
            tan_fov_x: tangent of half the horizontal field of view.
            tan_fov_y: tangent of half the vertical field of view.
            width: picture width in pixels.
            height: picture height in pixels.

        Raises:
            InvalidArgument: an argument is wrong.

        Example:
            view = np.eye(4)
            view[3, 2] = 4
            camera = Camera.inria(view, view @ projection, (0, 0, -4), 0.5, 0.5, 64, 64)
        """
        tangents = number("tan_fov_x", tan_fov_x), number("tan_fov_y", tan_fov_y)
        return Camera(width, height, InriaModel(view_matrix, full_projection, position, *tangents))

    @staticmethod
    def look_at(
        eye: Sequence[float] | Float64,
        target: Sequence[float] | Float64,
        up: Sequence[float] | Float64 = (0.0, 1.0, 0.0),
        *,
        fov_degrees: float = 45.0,
        width: int = 512,
        height: int = 512,
    ) -> Camera:
        """Returns a pinhole camera at `eye` with `target` in the middle of the image.

        Args:
            eye: [3] position, world frame, scene units.
            target: [3] the point looked at.
            up: [3] world direction that points up in the image. In scenes fitted to photographs y points down: pass
                (0, -1, 0), the commands' default for Gaussians.
            fov_degrees: vertical field of view, in (0, 180).
            width: picture width in pixels.
            height: picture height in pixels.

        Raises:
            InvalidArgument: an argument is wrong, or `up` is the view direction.

        Example:
            camera = Camera.look_at((0, 0, -4), (0, 0, 0), up=(0, -1, 0), width=64, height=48)
            camera.view_matrix, camera.K, camera.position  # [4, 4], [3, 3], [3] float64
        """
        eye = float64_array("eye", eye, (3,))
        rotation = look_rotation(float64_array("target", target, (3,)) - eye, float64_array("up", up, (3,)))
        fov = number("fov_degrees", fov_degrees)
        if not 0.0 < fov < 180.0:
            raise InvalidArgument.of("fov_degrees", f"expected an angle in (0, 180), got {fov:g}")
        warn_of_radians("fov_degrees", fov)
        center = _pixels("width", width) / 2, _pixels("height", height) / 2
        focal = center[1] / math.tan(math.radians(fov) / 2)
        return Camera.opencv(focal, focal, *center, rotation, -rotation @ eye, width, height)

    @staticmethod
    def orbit(
        center: Sequence[float] | Float64,
        distance: float,
        azimuth_degrees: float,
        elevation_degrees: float,
        up: Sequence[float] | Float64 = (0.0, 1.0, 0.0),
        *,
        fov_degrees: float = 45.0,
        width: int = 512,
        height: int = 512,
    ) -> Camera:
        """Returns a pinhole camera on a sphere around `center`, looking at it.

        Args:
            center: [3] the point looked at, world frame.
            distance: distance from `center`, scene units.
            azimuth_degrees: angle around `up`, counter-clockwise seen from above; 0 is the axis after `up` in the order
                x, y, z, x, so +z if y is up.
            elevation_degrees: angle above the horizon, in (-90, 90).
            up: [3] world direction that points up; see `look_at`.
            fov_degrees: vertical field of view, in (0, 180).
            width: picture width in pixels.
            height: picture height in pixels.

        Raises:
            InvalidArgument: an argument is wrong.

        Example:
            cameras = [Camera.orbit((0, 0, 0), 4, 30 * k, 20, width=64, height=64) for k in range(12)]
        """
        azimuth, elevation = number("azimuth_degrees", azimuth_degrees), number("elevation_degrees", elevation_degrees)
        if not math.isfinite(azimuth):
            raise InvalidArgument.of("azimuth_degrees", f"expected a finite angle, got {azimuth:g}")
        if not -90.0 < elevation < 90.0:
            raise InvalidArgument.of("elevation_degrees", f"expected an angle in (-90, 90), got {elevation:g}")
        reach = number("distance", distance)
        if not 0.0 < reach < math.inf:
            raise InvalidArgument.of("distance", f"expected a distance > 0, got {reach:g}")
        center = float64_array("center", center, (3,))
        direction = orbit_direction(azimuth, elevation, float64_array("up", up, (3,)))
        return Camera.look_at(
            center + reach * direction, center, up, fov_degrees=fov_degrees, width=width, height=height
        )


def _pixels(name: str, value: Any) -> int:
    size = number(name, value)
    if not 1 <= size <= _LARGEST_SIZE or size != int(size):
        raise InvalidArgument.of(name, f"expected a whole number of pixels from 1 to {_LARGEST_SIZE}, got {size:g}")
    return int(size)
