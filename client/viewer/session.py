"""Session of one browser: requests images for its camera and choices, and shows them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np
import viser

from lumigrad.client.errors import LumigradError, Unavailable
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.viewer.cameras import CameraPanel
from lumigrad.client.viewer.crop import CropPanel
from lumigrad.client.viewer.keys import Key, add_keys
from lumigrad.client.viewer.lens import Lens, Viewpoint
from lumigrad.client.viewer.modes import Levels
from lumigrad.client.viewer.painter import Painter, View
from lumigrad.client.viewer.panel import Notice, Panel, Statistics
from lumigrad.client.viewer.path import Player
from lumigrad.client.viewer.path_panel import PathPanel
from lumigrad.client.viewer.picture import Picture, png_of, show
from lumigrad.client.viewer.stream import Pace, Shown, Stream

_log = logging.getLogger("lumigrad")
# A browser that does not acknowledge an image within this time shows another tab, or is suspended.
_PATIENCE_S = 5.0
_UPDATE_S = 0.25
# The key of a request whose reply, queued after the image, acknowledges the image; its value is not used.
_KEY = "lumigrad"


class Session:
    """The images of one browser, from its connection to its end.

    Attributes:
        statistics: statistics of the images it has shown.
    """

    def __init__(
        self,
        browser: viser.ClientHandle,
        painter: Painter,
        first: Viewpoint,
        views: Mapping[str, Viewpoint],
        background: tuple[float, float, float],
        *,
        title: str,
        scene: Spheres | Gaussians | None,
        target_s: float,
        is_solid: bool,
    ) -> None:
        """Requests the first image.

        Args:
            browser: the connection.
            painter: renders the images.
            first: initial viewpoint.
            views: cameras of a data set, by name.
            background: background colour, 0 to 1.
            title: name of the files that are saved, without suffix.
            scene: the scene, for a crop box; None: there is no crop box.
            target_s: target time between images, seconds.
            is_solid: whether the browser always draws objects that mix with the scene.
        """
        self.statistics = Statistics()
        self._browser, self._painter, self._is_solid, self._title = browser, painter, is_solid, title
        self._notice, self._player = Notice(browser), Player()
        self._updated_at = 0.0
        self._is_over = threading.Event()
        self._panel = Panel(
            browser, tuple(painter.modes), background, first,
            changed=self.look, reset=lambda: self.jump(first), screenshot=self.screenshot,
        )  # fmt: skip
        self._cameras = (
            CameraPanel(browser, views, first, self._player, jump=self.jump, changed=self.look) if views else None
        )
        self._crop = None if scene is None else CropPanel(browser, scene, self.look)
        self._path = PathPanel(
            browser, self._player, title, here=self._here, jump=self.jump, render=self._levels, fail=self._fail
        )
        add_keys(browser, self._keys(first))
        self._stream = Stream[View, Picture](
            painter.paint, self._deliver, Pace(target_s), note=self._note, fail=self._fail
        )

        # Asynchronous, because in another thread the camera could change while it is read.
        @browser.camera.on_update
        async def _(camera: viser.CameraHandle) -> None:
            self.look()

        self.look()

    def look(self) -> None:
        """Requests an image for the browser's camera."""
        self._stream.request(self._view())

    def refresh(self) -> None:
        """Requests another image of the same view, because the scene has changed."""
        self._stream.refresh()

    def jump(self, view: Viewpoint) -> None:
        """Moves the browser's camera; it replies with its new pose."""
        camera = self._browser.camera
        with self._browser.atomic():
            camera.up_direction = view.up
            camera.position = view.position
            camera.look_at = view.look_at
            camera.fov = view.fov
        self._panel.follow(view.fov)

    def screenshot(self) -> None:
        """Sends the browser the view at full size, as a PNG."""
        try:
            file = png_of(self._painter.levels(self._view()))
        except Exception as error:
            self._fail(error)
            return
        self._browser.send_file_download(f"{self._title}.png", file, save_immediately=True)

    def close(self) -> None:
        """Ends the session after the browser has disconnected."""
        self._is_over.set()
        self._path.close()
        self._stream.close()
        self._painter.close()

    def _view(self) -> View:
        camera, panel, cameras = self._browser.camera, self._panel, self._cameras
        width, height = panel.size(camera.image_width, camera.image_height)
        through = None if cameras is None else cameras.through
        if through is not None:
            share = min(width / through.width, height / through.height)
            width, height = max(1, round(share * through.width)), max(1, round(share * through.height))
        is_solid = through is None and (self._is_solid or (cameras is not None and cameras.is_solid))
        box = None if self._crop is None else self._crop.box
        return View(self._lens, (width, height), panel.mode, panel.look, is_solid, through, box)

    @property
    def _lens(self) -> Lens:
        camera = self._browser.camera
        w, x, y, z = map(float, camera.wxyz)
        return Lens((w, x, y, z), tuple(map(float, camera.position)), camera.fov, camera.aspect)  # type: ignore[arg-type]

    def _here(self) -> Viewpoint:
        """Returns the viewpoint of the browser's camera."""
        camera = self._browser.camera
        position, look_at, up = (
            np.asarray(vector, np.float64) for vector in (camera.position, camera.look_at, camera.up_direction)
        )
        return Viewpoint.looking(position, look_at, up, camera.fov, camera.aspect)

    def _levels(self, viewpoint: Viewpoint) -> Levels:
        """Returns the picture from a viewpoint at full size."""
        view = self._view()
        size = self._panel.size(self._browser.camera.image_width, self._browser.camera.image_height)
        return self._painter.levels(replace(view, lens=viewpoint.lens, size=size, through=None, is_solid=False))

    def _keys(self, first: Viewpoint) -> list[Key]:
        """Returns the keys and what they do."""
        keys = [
            Key("R", "Reset view", lambda: self.jump(first)),
            Key("P", "Save a screenshot", self.screenshot),
            Key("M", "Show the next of colour, depth and alpha", self._panel.show_next),
            Key("K", "Add a key frame", self._path.add),
            Key("space", "Play the camera path, or stop", self._path.play),
        ]
        if self._cameras is not None:
            keys.append(Key("C", "Show or hide all cameras", self._cameras.toggle_all))
            keys.append(Key("N", "Play the cameras, or stop", self._cameras.play))
        return keys

    def _deliver(self, picture: Picture) -> None:
        if self._is_over.is_set():
            return
        show(self._browser, picture)
        # Errors are ignored: the browser has disconnected, is suspended, or lacks such storage.
        with suppress(RuntimeError, TimeoutError):
            self._browser.local_storage.get_item(_KEY, timeout=_PATIENCE_S)

    def _note(self, shown: Shown[Picture]) -> None:
        self.statistics.note(shown)
        self._notice.clear_error()
        now = time.monotonic()
        if self._is_over.is_set() or not (shown.order.is_sharp or now - self._updated_at > _UPDATE_S):
            return
        self._updated_at = now
        self._panel.update(self.statistics, self._painter.modes[self._panel.mode].legend())

    def _fail(self, error: Exception) -> bool:
        """Shows an error; returns whether to retry."""
        if not isinstance(error, LumigradError):
            _log.warning("an error in the viewer", exc_info=error)
        is_away = isinstance(error, Unavailable) and not error.is_lasting
        self._notice.show_error(error, is_away=is_away)
        return is_away
