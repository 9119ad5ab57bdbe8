"""What one browser offers beside the picture: choices, legend, cameras of a data set, statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import viser

from lumigrad.client.viewer.lens import Viewpoint
from lumigrad.client.viewer.modes import Look
from lumigrad.client.viewer.statistics import Statistics

_WINDOW = "window"
_HEIGHTS = (1440, 1080, 720, 480, 360, 240)
_NARROWEST, _WIDEST = 10.0, 120.0


class Panel:
    """Of one browser. Calls `changed` whenever the picture should be another one."""

    def __init__(
        self,
        browser: viser.ClientHandle,
        modes: Sequence[str],
        background: tuple[float, float, float],
        first: Viewpoint,
        views: Mapping[str, Viewpoint],
        *,
        changed: Callable[[], None],
        jump: Callable[[Viewpoint], None],
        show_cameras: Callable[[bool], None],
    ) -> None:
        """Builds it.

        Args:
            browser: whose it is.
            modes: labels of what pictures can show, the first one first.
            background: the first one, 0 to 1.
            first: where the camera is at first.
            views: cameras of a data set, by their names.
            changed: called when something else was chosen.
            jump: moves the camera.
            show_cameras: shows or hides those of the data set.
        """
        self._browser, self._changed, self._jump = browser, changed, jump
        gui = browser.gui
        self._mode = gui.add_dropdown("show", tuple(modes))
        self._legend = gui.add_html("", visible=False)
        self._is_automatic = gui.add_checkbox("range of the picture", True, visible=False)
        self._range = gui.add_vector2("nearest, farthest", (0.0, 10.0), min=(0.0, 0.0), step=0.01, visible=False)
        self._background = gui.add_rgb("background", _levels(background))
        degrees = min(max(math.degrees(first.fov), _NARROWEST), _WIDEST)
        self._fov = gui.add_slider("field of view, °", _NARROWEST, _WIDEST, 0.5, round(2 * degrees) / 2)
        self._height = gui.add_dropdown(
            "lines at most", (_WINDOW, *map(str, _HEIGHTS)), hint="of pictures at rest; fewer while the camera moves"
        )
        for choice in (self._mode, self._is_automatic, self._range, self._background, self._height):
            choice.on_update(self._on_choice)
        self._fov.on_update(self._on_fov)
        gui.add_button("first view").on_click(lambda event: jump(first))
        if views:
            self._add_views(views, first, show_cameras)
        with gui.add_folder("statistics"):
            self._statistics = gui.add_html("")

    @property
    def mode(self) -> str:
        """The label of what is shown."""
        return self._mode.value

    @property
    def look(self) -> Look:
        """The other choices."""
        red, green, blue = (level / 255.0 for level in self._background.value)
        return Look((red, green, blue), None if self._is_automatic.value else self._range.value)

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Of the sharp picture for a window of this size, pixels."""
        most = height if self._height.value == _WINDOW else min(height, int(self._height.value))
        return max(1, round(width * most / height)), most

    def tell(self, statistics: Statistics, legend: str) -> None:
        """Shows how it goes, and what the colours mean."""
        self._statistics.content = statistics.html()
        if legend != self._legend.content:
            self._legend.content = legend

    def follow(self, fov: float) -> None:
        """Shows a field of view, radians, that was chosen otherwise."""
        degrees = min(max(math.degrees(fov), _NARROWEST), _WIDEST)
        if abs(self._fov.value - degrees) > 0.5:
            self._fov.value = round(2 * degrees) / 2  # type: ignore[misc]

    def _add_views(
        self, views: Mapping[str, Viewpoint], first: Viewpoint, show_cameras: Callable[[bool], None]
    ) -> None:
        gui = self._browser.gui
        with gui.add_folder("cameras"):
            names = gui.add_dropdown("view", tuple(views), initial_value=_closest(views, first))
            names.on_update(lambda event: self._jump(views[names.value]))
            shown = gui.add_checkbox("show all", False, hint="click one to see what it saw")

        @shown.on_update
        def _(event: Any) -> None:
            show_cameras(shown.value)
            self._changed()

    def _on_choice(self, event: Any) -> None:
        is_depth = self._mode.value == "depth"
        self._legend.visible = self._is_automatic.visible = is_depth
        self._range.visible = is_depth and not self._is_automatic.value
        self._changed()

    def _on_fov(self, event: Any) -> None:
        # The browser answers with its camera.
        self._browser.camera.fov = math.radians(self._fov.value)


def _closest(views: Mapping[str, Viewpoint], first: Viewpoint) -> str:
    """The name of the camera that the page begins with."""
    return min(views, key=lambda name: float(np.linalg.norm(views[name].position - first.position)))


def headline(title: str, facts: Sequence[str]) -> str:
    """HTML for the top of the panel."""
    lines = "".join(f'<div style="opacity:0.7">{escape(fact)}</div>' for fact in facts)
    return f'<div style="padding:0 0.6em 0.5em;font-size:0.85em"><b>{escape(title)}</b>{lines}</div>'


def _levels(color: tuple[float, float, float]) -> tuple[int, int, int]:
    red, green, blue = (min(max(round(255 * value), 0), 255) for value in color)
    return red, green, blue
