"""Cameras as values: made from parameters, from matrices, or aimed at something."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lumigrad.client.arguments import number
from lumigrad.client.arrays import Float64, float64_array
from lumigrad.client.camera_models import InriaModel, OpenCVModel, Projection, PulsarModel
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.rotations import look_rotation, orbit_direction


@dataclass(frozen=True, eq=False)
class Camera:
    """A camera and the size of its picture.

    Make one with `look_at`, `orbit`, `opencv`, `from_view_matrix`, `pulsar` or `inria`.

    Attributes:
        width: picture width in pixels.
        height: picture height in pixels.
        model: what maps the world to the picture.
    """

    width: int
    height: int
    model: PulsarModel | OpenCVModel | InriaModel

    def __post_init__(self) -> None:
        for name in ("width", "height"):
            size = number(name, getattr(self, name))
            if not math.isfinite(size) or size != int(size) or size < 1:
                raise InvalidArgument.of(name, f"expected a whole number of pixels >= 1, got {size:g}")
            object.__setattr__(self, name, int(size))

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
        """Pulsar's camera from its parameter vector, see `PulsarModel`."""
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
        """OpenCV's camera from its intrinsics (pixels) and world-to-camera pose, see `OpenCVModel`."""
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
        """OpenCV's camera from its matrices.

        Args:
            view_matrix: [4, 4] world to camera, for column vectors; the last row is 0 0 0 1.
            intrinsics: [3, 3] the matrix K: fx 0 cx, 0 fy cy, 0 0 1; pixels.
            width: picture width in pixels.
            height: picture height in pixels.
            model: "pinhole", "orthographic" or "fisheye".
            distortion: of a pinhole, OpenCV's order, see `OpenCVModel`.
        """
        view = float64_array("view_matrix", view_matrix, (4, 4))
        if not np.allclose(view[3], (0.0, 0.0, 0.0, 1.0), atol=1e-6):
            raise InvalidArgument.of(
                "view_matrix",
                f"expected the last row 0 0 0 1, got {view[3].tolist()}; transpose a matrix that is for row vectors",
            )
        k = float64_array("intrinsics", intrinsics, (3, 3))
        if k[0, 1] or k[1, 0] or not np.allclose(k[2], (0.0, 0.0, 1.0)):
            raise InvalidArgument.of("intrinsics", f"expected fx 0 cx, 0 fy cy, 0 0 1, got {k.tolist()}")
        return Camera.opencv(
            k[0, 0], k[1, 1], k[0, 2], k[1, 2], view[:3, :3], view[:3, 3], width, height,
            model=model, distortion=distortion,
        )  # fmt: skip

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
        """The camera of diff-gaussian-rasterization, see `InriaModel`; usually with an Inria semantics."""
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
        """A pinhole at `eye` that sees `target` in the middle of the picture.

        Args:
            eye: [3] position, world frame, scene units.
            target: [3] the point looked at.
            up: [3] world direction that points up in the picture. Scenes that were fitted to photographs have y down:
                pass (0, -1, 0), as the commands take it for Gaussians.
            fov_degrees: vertical field of view, in (0, 180).
            width: picture width in pixels.
            height: picture height in pixels.
        """
        eye = float64_array("eye", eye, (3,))
        rotation = look_rotation(float64_array("target", target, (3,)) - eye, float64_array("up", up, (3,)))
        if not 0.0 < fov_degrees < 180.0:
            raise InvalidArgument.of("fov_degrees", f"expected an angle in (0, 180), got {fov_degrees}")
        center = number("width", width) / 2, number("height", height) / 2
        focal = center[1] / math.tan(math.radians(fov_degrees) / 2)
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
        """A pinhole on a sphere around `center`, looking at it.

        Args:
            center: [3] the point looked at, world frame.
            distance: from the point, scene units.
            azimuth_degrees: turns around `up`, counter-clockwise seen from above; 0 is the axis that follows `up` in
                the order x, y, z, x, so +z if y is up.
            elevation_degrees: above the horizon, in (-90, 90).
            up: [3] world direction that points up; see `look_at`.
            fov_degrees: vertical field of view, in (0, 180).
            width: picture width in pixels.
            height: picture height in pixels.
        """
        if not -90.0 < elevation_degrees < 90.0:
            raise InvalidArgument.of("elevation_degrees", f"expected an angle in (-90, 90), got {elevation_degrees}")
        if not 0.0 < distance < math.inf:
            raise InvalidArgument.of("distance", f"expected a distance > 0, got {distance}")
        center = float64_array("center", center, (3,))
        direction = orbit_direction(azimuth_degrees, elevation_degrees, float64_array("up", up, (3,)))
        return Camera.look_at(
            center + distance * direction, center, up, fov_degrees=fov_degrees, width=width, height=height
        )
