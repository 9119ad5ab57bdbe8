"""Camera models: a projection and a pose each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, get_args

import numpy as np

from lumigrad.client.base.arguments import instance, one_of
from lumigrad.client.base.arrays import Float32, Float64, array_text, float32_array, float64_array, to_numpy
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.values.lenses import Lens, OrthographicLens, SpinningLidar, Windshield
from lumigrad.client.values.rotations import axis_angle_rotation, six_d_rotation, why_no_rotation

PULSAR_LENGTHS = (8, 10, 11, 13)
DISTORTION_LENGTHS = (0, 4, 5, 8)
Projection = Literal["pinhole", "orthographic", "fisheye"]
Shutter = Literal["global", "top_to_bottom", "left_to_right", "bottom_to_top", "right_to_left"]
RowTime = Literal["continuous", "staircase"]
# Names of shutters in NCore's files and gsplat's classes.
NCORE_SHUTTERS: dict[str, Shutter] = {
    "GLOBAL": "global",
    **{f"ROLLING_{name.upper()}": name for name in get_args(Shutter) if name != "global"},
}


@dataclass(frozen=True, eq=False)
class PulsarModel:
    """Pulsar's camera: a film of some width at focal length f in front of the eye. World y is up.

    Attributes:
        parameters: [8 | 10 | 11 | 13] position (3), rotation as axis-angle (3) or six-D (6), focal length, sensor
            width, and for 10 and 13 the principal point offset in pixels (2). Lengths in scene units.
        orthogonal: parallel rays; the focal length must be 0.
        right_handed: the view direction is -z instead of +z.
        first_r_then_t: the eye is at rotation * position.
    """

    parameters: Float32
    orthogonal: bool = False
    right_handed: bool = False
    first_r_then_t: bool = False

    def __post_init__(self) -> None:
        parameters = float32_array("parameters", self.parameters, ("8 | 10 | 11 | 13",))
        if len(parameters) not in PULSAR_LENGTHS:
            raise InvalidArgument.of(
                "parameters",
                f"expected 8, 10, 11 or 13 values (position, rotation, focal length, sensor width, offset), "
                f"got {len(parameters)}",
            )
        vars(self).update(parameters=parameters)

    @property
    def _six_d(self) -> bool:
        return len(self.parameters) in (11, 13)

    @property
    def focal_length(self) -> float:
        """The focal length, scene units."""
        return float(self.parameters[9 if self._six_d else 6])

    @property
    def rotation(self) -> Float64:
        """The rotation matrix [3, 3] of the parameters."""
        values = self.parameters[3 : 9 if self._six_d else 6].astype(np.float64)
        return six_d_rotation(values) if self._six_d else axis_angle_rotation(values)

    @property
    def eye(self) -> Float64:
        """The camera's position [3] in the world, scene units."""
        position = self.parameters[:3].astype(np.float64)
        return self.rotation @ position if self.first_r_then_t else position


@dataclass(frozen=True, eq=False)
class OpenCVModel:
    """OpenCV's camera: x right, y down, z forward; `x_camera = rotation @ x_world + translation`.

    Attributes:
        fx: focal length in x, pixels; pixels per scene unit if orthographic.
        fy: focal length in y, in the unit of `fx`.
        cx: principal point in x, pixels; the centre of the first pixel is at 0.5.
        cy: principal point in y, pixels.
        rotation: [3, 3] world to camera. Gaussians accept any matrix, with the eye at -R^T t; spheres only rotations.
        translation: [3] world to camera, scene units.
        projection: "pinhole", "orthographic" or "fisheye" (equidistant). Spheres support only "pinhole".
        distortion: for a pinhole: empty, or k1 k2 p1 p2 [k3 [k4 k5 k6]] in OpenCV's order. Spheres support none.
    """

    fx: float
    fy: float
    cx: float
    cy: float
    rotation: Float64
    translation: Float64
    projection: Projection = "pinhole"
    distortion: tuple[float, ...] = ()
    # Unlike Pulsar's camera, a pinhole has no film in front of the eye that hides closer objects.
    focal_length: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        for name in ("fx", "fy"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise InvalidArgument.of(name, f"expected a focal length in pixels > 0, got {getattr(self, name)}")
        for name in ("cx", "cy"):
            if not math.isfinite(getattr(self, name)):
                raise InvalidArgument.of(name, f"expected a finite number of pixels, got {getattr(self, name)}")
        for name, shape in (("rotation", (3, 3)), ("translation", (3,))):
            vars(self)[name] = float64_array(name, getattr(self, name), shape)
        one_of("model", self.projection, get_args(Projection))
        vars(self)["distortion"] = _distortion(self.distortion, self.projection)

    def check_for_spheres(self) -> None:
        """Raises InvalidArgument for a model that only Gaussians support."""
        if self.projection != "pinhole":
            raise InvalidArgument.of("model", f'expected "pinhole" for spheres, got {self.projection!r}')
        if self.distortion:
            raise InvalidArgument.of(
                "distortion", f"expected none for spheres, got {len(self.distortion)} coefficients; undistort it"
            )
        if self._why_no_rotation:
            raise InvalidArgument.of(
                "rotation",
                f"expected an orthonormal matrix with determinant 1, {self._why_no_rotation}; "
                "for OpenGL or Blender cameras negate the second and third rows first",
            )

    @cached_property
    def _why_no_rotation(self) -> str:
        return why_no_rotation(self.rotation)

    @cached_property
    def eye(self) -> Float64:
        """The camera's position [3] in the world, scene units."""
        return np.asarray(-self.rotation.T @ self.translation)


@dataclass(frozen=True, eq=False)
class InriaModel:
    """The camera of diff-gaussian-rasterization, for Gaussians only; x right, y down, z forward.

    Its matrices are for row vectors: `(x, y, z, 1) @ view_matrix`.

    Attributes:
        view_matrix: [4, 4] world to camera, scene units.
        full_projection: [4, 4] world to normalised device coordinates.
        eye: [3] the camera's position in the world, scene units.
        tan_fov_x: tangent of half the horizontal field of view.
        tan_fov_y: tangent of half the vertical field of view.
    """

    view_matrix: Float64
    full_projection: Float64
    eye: Float64
    tan_fov_x: float
    tan_fov_y: float
    focal_length: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        for name, shape in (("view_matrix", (4, 4)), ("full_projection", (4, 4)), ("eye", (3,))):
            label = "position" if name == "eye" else name
            vars(self)[name] = float64_array(label, getattr(self, name), shape)
        for name in ("tan_fov_x", "tan_fov_y"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise InvalidArgument.of(name, f"expected the tangent of half an angle, > 0, got {getattr(self, name)}")


@dataclass(frozen=True, eq=False)
class SensorModel:
    """A real camera or a lidar (`SpinningLidar`), for Gaussians only, which are projected by sigma points.

    Axes of a camera: x right, y down, z forward.

    Attributes:
        lens: the lens, or the lidar.
        rotation: [3, 3] world to camera when the first row or column is exposed; a rotation.
        translation: [3] world to camera at that time, scene units.
        shutter: "global", or the order in which rows or columns are exposed.
        end_rotation: [3, 3] world to camera when the last row or column is exposed; None with a global shutter.
        end_translation: [3] world to camera at that time, scene units; None with a global shutter.
        row_time: the exposure time of a point seen at a pixel: "continuous": a smooth function of the pixel;
            "staircase": that of the whole row or column, as in gsplat.
        windshield: glass in front of the lens; not with an orthographic lens or a lidar.
        rays: [H, W, 6] for `response="ray"`: origin and direction, of any nonzero length, for each pixel, world frame.
            They replace the rays of lens and pose, which still determine what is visible.
    """

    lens: Lens
    rotation: Float64
    translation: Float64
    shutter: Shutter = "global"
    end_rotation: Float64 | None = None
    end_translation: Float64 | None = None
    row_time: RowTime = "continuous"
    windshield: Windshield | None = None
    rays: Float32 | None = None
    focal_length: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        instance("lens", self.lens, get_args(Lens), "pass a lens")
        one_of("shutter", self.shutter, get_args(Shutter), quote='"')
        one_of("row_time", self.row_time, get_args(RowTime), quote='"')
        if self.windshield is not None:
            instance("windshield", self.windshield, (Windshield,), "or leave it out")
            if isinstance(self.lens, OrthographicLens | SpinningLidar):
                kind = "an orthographic lens" if isinstance(self.lens, OrthographicLens) else "a lidar"
                raise InvalidArgument.of("windshield", f"expected none with {kind}, got one")
        if self.rays is not None:
            vars(self)["rays"] = float32_array("rays", self.rays, ("H", "W", 6))
        rolling = self.shutter != "global"
        for name, shape in (("rotation", (3, 3)), ("translation", (3,))):
            vars(self)[name] = float64_array(name, getattr(self, name), shape)
            end = f"end_{name}"
            if (getattr(self, end) is not None) != rolling:
                expected = f"a value with the shutter {self.shutter}" if rolling else "None with a global shutter"
                raise InvalidArgument.of(end, f"expected {expected}, got {'None' if rolling else 'one'}")
            if rolling:
                vars(self)[end] = float64_array(end, getattr(self, end), shape)

    @property
    def eye(self) -> Float64:
        """The camera's position [3] in the world, scene units; with a rolling shutter the mean of start and end."""
        start = -self.rotation.T @ self.translation
        if self.end_rotation is None or self.end_translation is None:
            return np.asarray(start)
        return np.asarray((start - self.end_rotation.T @ self.end_translation) / 2)


def _distortion(values: object, projection: Projection) -> tuple[float, ...]:
    coefficients = to_numpy("distortion", values)
    numbers = coefficients.dtype.kind in "fiu" and bool(np.isfinite(coefficients).all())
    if not numbers or coefficients.ndim != 1 or len(coefficients) not in DISTORTION_LENGTHS:
        raise InvalidArgument.of(
            "distortion",
            "expected no coefficients, or 4, 5 or 8 finite ones (k1 k2 p1 p2 [k3 [k4 k5 k6]]), "
            f"got {array_text(coefficients)}",
        )
    if len(coefficients) and projection != "pinhole":
        raise InvalidArgument.of(
            "distortion", f'expected none for model="{projection}", which does not support distortion'
        )
    return tuple(float(value) for value in coefficients)
