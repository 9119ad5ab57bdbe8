"""The cameras of a data set in a browser: pyramids that one can click to see what they saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import viser

from lumigrad.client.viewer.lens import Viewpoint

# Of the distance to what they look at.
_SIZE, _LINE = 0.06, 0.0015
_COLOR = (255, 176, 59)


class Frusta:
    """Of one browser; hidden at first."""

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
