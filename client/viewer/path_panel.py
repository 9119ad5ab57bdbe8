"""The folder of a camera path in the panel: key frames, playing, and export as a video."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import viser

from lumigrad.client.video import VideoWriter
from lumigrad.client.viewer.lens import Viewpoint
from lumigrad.client.viewer.modes import Levels
from lumigrad.client.viewer.path import CameraPath, Player

_FRAMES_PER_SECOND = 30.0


class PathPanel:
    """The camera path of one browser."""

    def __init__(
        self,
        browser: viser.ClientHandle,
        player: Player,
        title: str,
        *,
        here: Callable[[], Viewpoint],
        jump: Callable[[Viewpoint], None],
        render: Callable[[Viewpoint], Levels],
        fail: Callable[[Exception], object],
    ) -> None:
        """Creates the folder, with no key frames.

        Args:
            browser: the browser that shows it.
            player: plays the path.
            title: name of the video, without suffix.
            here: returns the viewpoint of the browser's camera.
            jump: moves that camera.
            render: returns the picture from a viewpoint, all of the same size.
            fail: shows an error.
        """
        self._browser, self._player, self._title = browser, player, title
        self._here, self._jump, self._render, self._fail = here, jump, render, fail
        self._keys: list[Viewpoint] = []
        self._stop_export = threading.Event()
        self._stop_export.set()
        gui = browser.gui
        with gui.add_folder("Camera path", expand_by_default=False):
            self._said = gui.add_html("")
            gui.add_button("Add key frame", hint="The view as it is now").on_click(lambda event: self.add())
            gui.add_button("Remove last key frame").on_click(lambda event: self._remove())
            self._seconds = gui.add_slider("Seconds between key frames", 0.5, 10.0, 0.5, 2.0)
            self._is_loop = gui.add_checkbox("Loop", False, hint="Return to the first key frame, and repeat")
            self._play = gui.add_button("Play path")
            self._play.on_click(lambda event: self.play())
            self._export = gui.add_button("Export video", hint="Render every frame at full size and save the video")
            self._export.on_click(lambda event: self.export())
        self._changed()

    def add(self) -> None:
        """Appends the browser's view as a key frame."""
        self._keys.append(self._here())
        self._changed()

    def play(self) -> None:
        """Moves the camera along the path; stops it if it is moving."""
        if self._player.is_playing:
            self._player.stop()
            return
        path = self._path
        if path is None:
            return

        def step(seconds: float) -> bool:
            self._jump(path.at(seconds))
            return path.is_loop or seconds < path.duration_s

        self._play.label = "Stop"
        self._player.start(step, 1.0 / _FRAMES_PER_SECOND, self._show_stopped)

    def export(self) -> None:
        """Renders the path and sends the browser the file; stops if a video is being rendered."""
        if not self._stop_export.is_set():
            self._stop_export.set()
            return
        path = self._path
        if path is None:
            return
        self._stop_export.clear()
        try:
            views = list(path.frames(_FRAMES_PER_SECOND))
            content = _video(self._pictures(views))
            if not self._stop_export.is_set():
                self._browser.send_file_download(f"{self._title}.mp4", content, save_immediately=True)
        except Exception as error:
            self._fail(error)
        finally:
            self._stop_export.set()
            self._export.label = "Export video"

    def close(self) -> None:
        """Stops playing and rendering."""
        self._player.stop()
        self._stop_export.set()

    @property
    def _path(self) -> CameraPath | None:
        """The path; None, with a notice, if it has less than two key frames."""
        if len(self._keys) < 2:
            self._browser.add_notification(
                "Camera path", "Add two key frames or more: move to a view and press K.", auto_close_seconds=6.0
            )
            return None
        return CameraPath(tuple(self._keys), self._seconds.value, self._is_loop.value)

    def _pictures(self, views: list[Viewpoint]) -> Iterator[Levels]:
        for index, view in enumerate(views):
            if self._stop_export.is_set():
                return
            self._export.label = f"Stop export ({index} of {len(views)})"
            yield self._render(view)

    def _remove(self) -> None:
        del self._keys[-1:]
        self._changed()

    def _changed(self) -> None:
        count = len(self._keys)
        text = f"{count} key frame{'' if count == 1 else 's'}"
        self._said.content = f'<div style="opacity:0.8;padding:0 0.75em 0.3em;font-size:0.8em">{text}</div>'

    def _show_stopped(self) -> None:
        self._play.label = "Play path"


def _video(pictures: Iterator[Levels]) -> bytes:
    """Returns an .mp4 file; empty bytes if the export was stopped before the first picture."""
    first = next(pictures, None)
    if first is None:
        return b""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "path.mp4")
        with VideoWriter(path, first.shape[1], first.shape[0], _FRAMES_PER_SECOND) as video:
            video.add(first)
            for picture in pictures:
                video.add(picture)
        return path.read_bytes()
