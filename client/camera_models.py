"""What maps the world to a picture: Pulsar's camera, OpenCV's and Inria's, as values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from lumigrad.client.arrays import Float32, Float64, float32_array, float64_array, to_numpy
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.rotations import axis_angle_rotation, six_d_rotation

PULSAR_LENGTHS = (8, 10, 11, 13)
DISTORTION_LENGTHS = (0, 4, 5, 8)
Projection = Literal["pinhole", "orthographic", "fisheye"]


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
        object.__setattr__(self, "parameters", parameters)

    @property
    def _six_d(self) -> bool:
        return len(self.parameters) in (11, 13)

    @property
    def focal_length(self) -> float:
        """Scene units."""
        return float(self.parameters[9 if self._six_d else 6])

    @property
    def rotation(self) -> Float64:
        """[3, 3] the matrix that the rotation parameters stand for."""
        values = self.parameters[3 : 9 if self._six_d else 6].astype(np.float64)
        return six_d_rotation(values) if self._six_d else axis_angle_rotation(values)

    @property
    def eye(self) -> Float64:
        """[3] the camera's position in the world, scene units."""
        position = self.parameters[:3].astype(np.float64)
        return self.rotation @ position if self.first_r_then_t else position


@dataclass(frozen=True, eq=False)
class OpenCVModel:
    """OpenCV's camera: x right, y down, z forward; `x_camera = rotation @ x_world + translation`.

    Attributes:
        fx: focal length in x, pixels; pixels per scene unit if orthographic.
        fy: focal length in y, likewise.
        cx: principal point in x, pixels; the centre of the first pixel is at 0.5.
        cy: principal point in y, pixels.
        rotation: [3, 3] world to camera. Gaussians take any matrix, spheres a rotation.
        translation: [3] world to camera, scene units.
        projection: "pinhole", "orthographic" or "fisheye" (equidistant). Spheres know the pinhole alone.
        distortion: of a pinhole: none, or k1 k2 p1 p2 [k3 [k4 k5 k6]] in OpenCV's order. Spheres take none.
    """

    fx: float
    fy: float
    cx: float
    cy: float
    rotation: Float64
    translation: Float64
    projection: Projection = "pinhole"
    distortion: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("fx", "fy"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise InvalidArgument.of(name, f"expected a focal length in pixels > 0, got {getattr(self, name)}")
        for name in ("cx", "cy"):
            if not math.isfinite(getattr(self, name)):
                raise InvalidArgument.of(name, f"expected a finite number of pixels, got {getattr(self, name)}")
        for name, shape in (("rotation", (3, 3)), ("translation", (3,))):
            object.__setattr__(self, name, float64_array(name, getattr(self, name), shape))
        if self.projection not in get_args(Projection):
            raise InvalidArgument.of(
                "model", f"expected one of {', '.join(get_args(Projection))}, got {self.projection!r}"
            )
        object.__setattr__(self, "distortion", _distortion(self.distortion, self.projection))

    def check_for_spheres(self) -> None:
        """Raises InvalidArgument for what only Gaussians can be seen with."""
        if self.projection != "pinhole":
            raise InvalidArgument.of("model", f'expected "pinhole" for spheres, got {self.projection!r}')
        if self.distortion:
            raise InvalidArgument.of(
                "distortion", f"expected none for spheres, got {len(self.distortion)} coefficients; undistort it"
            )
        deviation, determinant = self._orthonormality
        if deviation > 1e-3 or determinant < 0:
            raise InvalidArgument.of(
                "rotation",
                f"expected an orthonormal matrix with determinant 1, R R^T deviates from the identity by "
                f"{deviation:.3g} and the determinant is {determinant:.3g}; "
                "for OpenGL or Blender cameras negate the second and third rows first",
            )

    @cached_property
    def _orthonormality(self) -> tuple[float, float]:
        """How far R R^T is from the identity, and the determinant of R."""
        deviation = float(np.abs(self.rotation @ self.rotation.T - np.eye(3)).max())
        return deviation, float(np.linalg.det(self.rotation))

    @property
    def focal_length(self) -> float:
        """0: a pinhole has no film in front of the eye that would hide what is closer."""
        return 0.0

    @cached_property
    def eye(self) -> Float64:
        """[3] the camera's position in the world, scene units."""
        return np.asarray(-self.rotation.T @ self.translation)


@dataclass(frozen=True, eq=False)
class InriaModel:
    """The camera of diff-gaussian-rasterization, for Gaussians alone; x right, y down, z forward.

    Its matrices are for row vectors: `(x, y, z, 1) @ view_matrix`.

    Attributes:
        view_matrix: [4, 4] world to camera, scene units.
        full_projection: [4, 4] world to normalised device coordinates.
        eye: [3] the camera's position in the world, scene units.
        tan_fov_x: tangent of half the horizontal field of view.
        tan_fov_y: tangent of half the vertical one.
    """

    view_matrix: Float64
    full_projection: Float64
    eye: Float64
    tan_fov_x: float
    tan_fov_y: float

    def __post_init__(self) -> None:
        for name, shape in (("view_matrix", (4, 4)), ("full_projection", (4, 4)), ("eye", (3,))):
            label = "position" if name == "eye" else name
            object.__setattr__(self, name, float64_array(label, getattr(self, name), shape))
        for name in ("tan_fov_x", "tan_fov_y"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise InvalidArgument.of(name, f"expected the tangent of half an angle, > 0, got {getattr(self, name)}")

    @property
    def focal_length(self) -> float:
        """0, as a pinhole's."""
        return 0.0


def _distortion(values: object, projection: Projection) -> tuple[float, ...]:
    coefficients = to_numpy("distortion", values)
    numbers = coefficients.dtype.kind in "fiu" and bool(np.isfinite(coefficients).all())
    if not numbers or coefficients.ndim != 1 or len(coefficients) not in DISTORTION_LENGTHS:
        raise InvalidArgument.of(
            "distortion",
            "expected no coefficients, or 4, 5 or 8 finite ones (k1 k2 p1 p2 [k3 [k4 k5 k6]]), "
            f"got {coefficients.tolist()}",
        )
    if len(coefficients) and projection != "pinhole":
        raise InvalidArgument.of("distortion", f'expected none for model="{projection}", which knows no distortion')
    return tuple(float(value) for value in coefficients)
