"""Between a browser's camera and one that the worker renders with. Both look along z, with x right and y down."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lumigrad.client.arrays import Float64
from lumigrad.client.camera import Camera
from lumigrad.client.camera_models import OpenCVModel
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.robots.transforms import matrix_of, poses_of


@dataclass(frozen=True)
class Lens:
    """Where a browser's camera is, and what part of the window it sees.

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
        """That sees what fills the window, in a picture of any size."""
        matrix = matrix_of("camera", (*self.position, *self.wxyz))
        rotation = matrix[:3, :3].T
        tangent = math.tan(self.fov / 2)
        fx, fy = width / (2 * self.aspect * tangent), height / (2 * tangent)
        return Camera.opencv(fx, fy, width / 2, height / 2, rotation, -rotation @ matrix[:3, 3], width, height)


@dataclass(frozen=True)
class Viewpoint:
    """Where a browser's camera may be placed.

    Attributes:
        position: [3] world, scene units.
        look_at: [3] the point it turns around, which is on its axis.
        up: [3] what is up in its picture, a unit vector.
        fov: vertical field of view, radians.
        aspect: width of its picture divided by the height.
        wxyz: camera to world, a unit quaternion.
    """

    position: Float64
    look_at: Float64
    up: Float64
    fov: float
    aspect: float
    wxyz: Float64

    @staticmethod
    def of(camera: Camera, center: Float64) -> Viewpoint:
        """Of a camera; what it looks at is as far away as the centre of the scene, if that is in front of it."""
        model = camera.model
        if not isinstance(model, OpenCVModel):
            raise InvalidArgument.of("camera", f"expected OpenCV's, got {type(model).__name__}; give eye and target")
        forward, eye = model.rotation[2], model.eye
        ahead = float((center - eye) @ forward)
        distance = ahead if ahead > 0.0 else max(float(np.linalg.norm(center - eye)), 1e-3)
        return Viewpoint(
            eye,
            eye + distance * forward,
            -model.rotation[1],
            2 * math.atan(camera.height / 2 / model.fy),
            (camera.width / model.fx) / (camera.height / model.fy),
            np.asarray(poses_of(model.rotation.T, np.zeros(3))[3:], np.float64),
        )
