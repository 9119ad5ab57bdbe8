"""One browser: requests images for its camera and choices, and shows them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress

import viser

from lumigrad.client.errors import LumigradError, Unavailable
from lumigrad.client.viewer.lens import Frusta, Lens, Viewpoint
from lumigrad.client.viewer.painter import Painter, View
from lumigrad.client.viewer.panel import Notice, Panel, Statistics
from lumigrad.client.viewer.picture import Picture, show
from lumigrad.client.viewer.stream import Pace, Shown, Stream

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
            target_s: target time between images, seconds.
            is_solid: whether the browser always draws objects that mix with the scene.
        """
        self.statistics = Statistics()
        self._browser, self._painter, self._is_solid = browser, painter, is_solid
        self._notice = Notice(browser)
        self._updated_at = 0.0
        self._is_over = threading.Event()
        self._frusta = Frusta(browser, views, self.jump) if views else None
        self._panel = Panel(
            browser, tuple(painter.modes), background, first, views,
            changed=self.look, jump=self.jump, show_cameras=self._show_cameras,
        )  # fmt: skip
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
        camera, panel = self._browser.camera, self._panel
        w, x, y, z = map(float, camera.wxyz)
        lens = Lens((w, x, y, z), tuple(map(float, camera.position)), camera.fov, camera.aspect)  # type: ignore[arg-type]
        size = panel.size(camera.image_width, camera.image_height)
        is_solid = self._is_solid or (self._frusta is not None and self._frusta.is_visible)
        self._stream.request(View(lens, size, panel.mode, panel.look, is_solid))

    def jump(self, view: Viewpoint) -> None:
        """Moves the browser's camera; it replies with its new pose."""
        camera = self._browser.camera
        with self._browser.atomic():
            camera.up_direction = view.up
            camera.position = view.position
            camera.look_at = view.look_at
            camera.fov = view.fov
        self._panel.follow(view.fov)

    def close(self) -> None:
        """Ends the session after the browser has disconnected."""
        self._is_over.set()
        self._stream.close()

    def _show_cameras(self, is_visible: bool) -> None:
        if self._frusta is not None:
            self._frusta.show(is_visible)

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

    def _fail(self, error: LumigradError) -> bool:
        """Shows an error; returns whether to retry."""
        is_away = isinstance(error, Unavailable) and not error.is_lasting
        self._notice.show_error(error, is_away=is_away)
        return is_away
