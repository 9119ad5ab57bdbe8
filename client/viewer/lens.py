"""The camera of a browser as a `Camera`, and cameras drawn as frusta."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import viser

from lumigrad.client.base.arrays import Float64
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.robots.chain import matrix_of, poses_of
from lumigrad.client.values.camera import Camera, OpenCVModel


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
    """

    position: Float64
    look_at: Float64
    up: Float64
    fov: float
    aspect: float
    wxyz: Float64

    @staticmethod
    def of(camera: Camera, center: Float64) -> Viewpoint:
        """Returns the viewpoint of a camera; `look_at` is as far away as the scene's centre, if that is in front."""
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


# The size and line width of frusta, relative to the cameras' median distance to the points that they look at.
_SIZE, _LINE = 0.06, 0.0015
_COLOR = (255, 176, 59)


class Frusta:
    """The frusta of one browser; hidden at first."""

    def __init__(
        self, browser: viser.ClientHandle, views: Mapping[str, Viewpoint], jump: Callable[[Viewpoint], None]
    ) -> None:
        distance = float(np.median([np.linalg.norm(view.look_at - view.position) for view in views.values()]))
        self._handles = [self._add(browser, index, view, distance, jump) for index, view in enumerate(views.values())]

    @property
    def is_visible(self) -> bool:
        """Whether they are shown."""
        return self._handles[0].visible

    def show(self, is_visible: bool) -> None:
        """Shows or hides them."""
        for handle in self._handles:
            handle.visible = is_visible

    @staticmethod
    def _add(
        browser: viser.ClientHandle, index: int, view: Viewpoint, distance: float, jump: Callable[[Viewpoint], None]
    ) -> viser.CameraFrustumHandle:
        handle = browser.scene.add_camera_frustum(
            f"/cameras/{index}",
            view.fov,
            view.aspect,
            scale=_SIZE * distance,
            thickness=_LINE * distance,
            color=_COLOR,
            wxyz=view.wxyz,
            position=view.position,
            visible=False,
        )

        @handle.on_click
        def _(event: Any) -> None:
            jump(view)

        return handle
