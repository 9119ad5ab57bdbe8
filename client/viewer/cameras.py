"""The cameras of a data set: choose one, look through its lens, play them all, show them as frusta."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import viser

from lumigrad.client.values.camera import Camera
from lumigrad.client.viewer.lens import Viewpoint
from lumigrad.client.viewer.path import Player


class CameraPanel:
    """The folder of cameras in the panel of one browser."""

    def __init__(
        self,
        browser: viser.ClientHandle,
        views: Mapping[str, Viewpoint],
        first: Viewpoint,
        player: Player,
        *,
        jump: Callable[[Viewpoint], None],
        changed: Callable[[], None],
    ) -> None:
        """Creates the folder.

        Args:
            browser: the browser that shows it.
            views: the cameras by name, at least one.
            first: initial viewpoint.
            player: plays them; shared with the camera path, because only one of them may move the camera at a time.
            jump: moves the browser's camera to a viewpoint.
            changed: called after a choice that needs a new image.
        """
        self._views, self._player, self._jump, self._changed = views, player, jump, changed
        self._frusta = Frusta(browser, views, self._choose)
        gui = browser.gui
        with gui.add_folder("Cameras"):
            self._name = gui.add_dropdown("Camera", tuple(views), initial_value=_closest(views, first))
            self._name.on_update(lambda event: self._go())
            self._is_through = gui.add_checkbox(
                "Through its lens", False, hint="The picture of the camera itself: its lens and shutter, where it was"
            )
            self._is_through.on_update(lambda event: self._go())
            self._rate = gui.add_slider("Cameras per second", 0.5, 10.0, 0.5, 2.0)
            self._play = gui.add_button("Play cameras", hint="Show one camera after the other")
            self._play.on_click(lambda event: self.play())
            self._are_shown = gui.add_checkbox("Show all", False, hint="Click one to take its view")
            self._are_shown.on_update(self._on_shown)

    @property
    def through(self) -> Camera | None:
        """The camera that is looked through; None: the browser's own."""
        return self._views[self._name.value].camera if self._is_through.value else None

    @property
    def is_solid(self) -> bool:
        """Whether the browser draws frusta in the scene."""
        return self._frusta.is_visible

    def play(self) -> None:
        """Plays the cameras in their order, from the chosen one; stops them if they are playing."""
        if self._player.is_playing:
            self._player.stop()
            return
        names = list(self._views)
        start = names.index(self._name.value)

        def step(seconds: float) -> bool:
            # The pause between calls is less than exact.
            index = start + round(seconds * self._rate.value)
            self._name.value = names[min(index, len(names) - 1)]  # type: ignore[misc]
            self._go()
            return index < len(names) - 1

        if start == len(names) - 1:
            start = 0
        self._play.label = "Stop"
        self._player.start(step, 1.0 / self._rate.value, self._show_stopped)

    def toggle_all(self) -> None:
        """Shows or hides the frusta."""
        self._are_shown.value = not self._are_shown.value  # type: ignore[misc]

    def _show_stopped(self) -> None:
        self._play.label = "Play cameras"

    def _choose(self, name: str) -> None:
        self._name.value = name  # type: ignore[misc]
        self._go()

    def _go(self) -> None:
        self._jump(self._views[self._name.value])
        self._changed()

    def _on_shown(self, event: Any) -> None:
        self._frusta.show(self._are_shown.value)
        self._changed()


def _closest(views: Mapping[str, Viewpoint], first: Viewpoint) -> str:
    """Returns the name of the view closest to the initial viewpoint."""
    return min(views, key=lambda name: float(np.linalg.norm(views[name].position - first.position)))


# The size and line width of frusta, relative to the cameras' median distance to the points that they look at.
_SIZE, _LINE = 0.06, 0.0015
_COLOR = (255, 176, 59)


class Frusta:
    """The frusta of one browser; hidden at first."""

    def __init__(
        self, browser: viser.ClientHandle, views: Mapping[str, Viewpoint], choose: Callable[[str], None]
    ) -> None:
        distance = float(np.median([np.linalg.norm(view.look_at - view.position) for view in views.values()]))
        self._handles: list[viser.CameraFrustumHandle] = []
        for index, (name, view) in enumerate(views.items()):
            handle = browser.scene.add_camera_frustum(
                f"/cameras/{index}", view.fov, view.aspect, scale=_SIZE * distance, thickness=_LINE * distance,
                color=_COLOR, wxyz=view.wxyz, position=view.position, visible=False,
            )  # fmt: skip
            handle.on_click(partial(lambda name, event: choose(name), name))
            self._handles.append(handle)

    @property
    def is_visible(self) -> bool:
        """Whether they are shown."""
        return self._handles[0].visible

    def show(self, is_visible: bool) -> None:
        """Shows or hides them."""
        for handle in self._handles:
            handle.visible = is_visible
