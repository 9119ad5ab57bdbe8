"""The camera of a browser as a `Camera`, and the viewpoints that it can take."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lumigrad.client.base.arrays import Float64
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.robots.chain import poses_of
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import OpenCVModel, SensorModel
from lumigrad.client.values.rotations import look_rotation, matrix_of


@dataclass(frozen=True)
class Lens:
    """The pose and field of view of a browser's camera.

    Attributes:
        wxyz: camera to world, a unit quaternion.
        position: world, scene units.
        fov: vertical field of view, radians.
        aspect: width of the window divided by its height.
    """

    wxyz: tuple[float, float, float, float]
    position: tuple[float, float, float]
    fov: float
    aspect: float

    def camera(self, width: int, height: int) -> Camera:
        """Returns the camera of the window's view, for an image of any size."""
        matrix = matrix_of("camera", (*self.position, *self.wxyz))
        rotation = matrix[:3, :3].T
        tangent = math.tan(self.fov / 2)
        fx, fy = width / (2 * self.aspect * tangent), height / (2 * tangent)
        return Camera.opencv(fx, fy, width / 2, height / 2, rotation, -rotation @ matrix[:3, 3], width, height)


@dataclass(frozen=True)
class Viewpoint:
    """A pose for a browser's camera.

    Attributes:
        position: [3] world, scene units.
        look_at: [3] the point that it orbits, on its optical axis.
        up: [3] the up direction of its image, a unit vector.
        fov: vertical field of view, radians.
        aspect: width of its image divided by the height.
        wxyz: camera to world, a unit quaternion.
        camera: the camera of a data set with its own lens; None: a viewpoint of a browser.
    """

    position: Float64
    look_at: Float64
    up: Float64
    fov: float
    aspect: float
    wxyz: Float64
    camera: Camera | None = None

    @property
    def lens(self) -> Lens:
        """The pinhole at this viewpoint."""
        w, x, y, z = map(float, self.wxyz)
        return Lens((w, x, y, z), tuple(map(float, self.position)), self.fov, self.aspect)  # type: ignore[arg-type]

    @staticmethod
    def looking(position: Float64, look_at: Float64, up: Float64, fov: float, aspect: float) -> Viewpoint:
        """Returns the viewpoint that looks at a point, upright."""
        wxyz = np.asarray(poses_of(look_rotation(look_at - position, up).T, np.zeros(3))[3:], np.float64)
        return Viewpoint(position, look_at, up, fov, aspect, wxyz)

    @staticmethod
    def of(camera: Camera, center: Float64) -> Viewpoint:
        """Returns the viewpoint of a camera; `look_at` is as far away as the scene's centre, if that is in front."""
        model = camera.model
        if not isinstance(model, OpenCVModel | SensorModel):
            text = f"expected OpenCV's or a sensor, got {type(model).__name__}; give eye and target"
            raise InvalidArgument.of("camera", text)
        forward, eye = model.rotation[2], model.eye
        fx, fy = camera.paraxial_focal_lengths
        ahead = float((center - eye) @ forward)
        distance = ahead if ahead > 0.0 else max(float(np.linalg.norm(center - eye)), 1e-3)
        return Viewpoint(
            eye,
            eye + distance * forward,
            -model.rotation[1],
            2 * math.atan(camera.height / 2 / fy),
            (camera.width / fx) / (camera.height / fy),
            np.asarray(poses_of(model.rotation.T, np.zeros(3))[3:], np.float64),
            camera,
        )
