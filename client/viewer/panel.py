"""The panel of the viewer: controls, statistics, messages."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import viser

from lumigrad.client.base.timings import Timings
from lumigrad.client.errors import LumigradError, shortened
from lumigrad.client.viewer.lens import Viewpoint
from lumigrad.client.viewer.modes import Look
from lumigrad.client.viewer.picture import Picture
from lumigrad.client.viewer.stream import Order, Shown

_RECOVERED_S = 6.0


class Notice:
    """A notification in the corner of a page, at most one at a time."""

    def __init__(self, browser: viser.ClientHandle) -> None:
        self._browser = browser
        self._shown: viser.NotificationHandle | None = None
        self._was_away = False

    def show_error(self, error: Exception, *, is_away: bool) -> None:
        """Shows an error; with `is_away` the worker does not answer and the call is retried."""
        body = str(error) if isinstance(error, LumigradError) else shortened(f"{type(error).__name__}: {error}")
        if self._shown is not None and is_away and self._was_away:
            self._shown.body = body
            return
        self._clear()
        title = "The worker does not answer; trying again" if is_away else "No picture"
        self._shown = self._browser.add_notification(
            title, body, loading=is_away, color="red", with_close_button=not is_away
        )
        self._was_away = is_away

    def clear_error(self) -> None:
        """Removes the error after an image has arrived."""
        if self._shown is None:
            return
        self._clear()
        if self._was_away:
            self._browser.add_notification(
                "The worker is back", "It has the scene again.", auto_close_seconds=_RECOVERED_S, color="green"
            )

    def _clear(self) -> None:
        if self._shown is not None:
            self._shown.remove()
            self._shown = None


_KEPT = 2000
# The period of rates, seconds.
_WINDOW_S = 2.0


@dataclass(frozen=True)
class Record:
    """An image that was shown, without its content.

    Attributes:
        moment_s: time of arrival, by `time.monotonic`.
        order: its size, and whether it is sharp.
        timings: timings of the call that rendered it.
        nbytes: size of the files sent to the browser.
        render_ms: time from the request to the image in this process.
        deliver_ms: time from then to the browser's acknowledgement.
    """

    moment_s: float
    order: Order
    timings: Timings
    nbytes: int
    render_ms: float
    deliver_ms: float


class Statistics:
    """The statistics of one browser. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: deque[Record] = deque(maxlen=_KEPT)

    def note(self, shown: Shown[Picture]) -> None:
        """Adds an image."""
        picture, times = shown.picture, (1000 * shown.render_s, 1000 * shown.deliver_s)
        with self._lock:
            self._records.append(Record(time.monotonic(), shown.order, picture.timings, picture.nbytes, *times))

    @property
    def records(self) -> tuple[Record, ...]:
        """The last records, oldest first."""
        with self._lock:
            return tuple(self._records)

    @property
    def rate(self) -> float | None:
        """Images per second while the camera moves; None while the camera is still."""
        newest = time.monotonic() - _WINDOW_S
        moments = [record.moment_s for record in self.records if record.moment_s > newest and not record.order.is_sharp]
        return (len(moments) - 1) / (moments[-1] - moments[0]) if len(moments) > 2 else None

    def html(self) -> str:
        """Returns the statistics as a table for the panel."""
        records = self.records
        if not records:
            return ""
        last, order, rate = records[-1], records[-1].order, self.rate
        rows = {
            "Picture": f"{order.width} x {order.height}, {'at rest' if order.is_sharp else 'moving'}",
            "Frame rate": "-" if rate is None else f"{rate:.1f} / s",
            "File size": f"{last.nbytes / 1000:.0f} kB",
            "Kernel time": f"{last.timings.kernel_ms:.1f} ms",
            "Queue time": f"{last.timings.stages.get('queue', 0.0):.1f} ms",
            "Total render time": f"{last.render_ms:.0f} ms",
            "Time to browser": f"{last.deliver_ms:.0f} ms",
        }
        cells = "".join(
            f'<tr><td style="padding-right:1em;opacity:0.7">{name}</td><td>{value}</td></tr>'
            for name, value in rows.items()
        )
        return f'<table style="font-size:0.8em;margin:0.1em 0.6em 0.6em">{cells}</table>'


_WINDOW = "window"
# Statistics come after the folders that a session adds.
STATISTICS_ORDER = 1e6
_HEIGHTS = (1440, 1080, 720, 480, 360, 240)
_NARROWEST, _WIDEST = 10.0, 120.0


class Panel:
    """The panel of one browser. Calls `changed` whenever a new image is needed."""

    def __init__(
        self,
        browser: viser.ClientHandle,
        modes: Sequence[str],
        background: tuple[float, float, float],
        first: Viewpoint,
        *,
        changed: Callable[[], None],
        reset: Callable[[], None],
        screenshot: Callable[[], None],
    ) -> None:
        """Creates the panel.

        Args:
            browser: the browser that shows it.
            modes: labels of the modes, the default first.
            background: initial background, 0 to 1.
            first: initial viewpoint.
            changed: called after a choice that needs a new image.
            reset: moves the camera to the initial viewpoint.
            screenshot: sends the browser a picture to save.
        """
        self._browser, self._changed = browser, changed
        gui = browser.gui
        self._mode = gui.add_dropdown("Show", tuple(modes))
        self._legend = gui.add_html("", visible=False)
        self._is_automatic = gui.add_checkbox("Automatic range", True, visible=False)
        self._range = gui.add_vector2("Nearest, farthest", (0.0, 10.0), min=(0.0, 0.0), step=0.01, visible=False)
        red, green, blue = (min(max(round(255 * value), 0), 255) for value in background)
        self._background = gui.add_rgb("Background", (red, green, blue))
        degrees = min(max(math.degrees(first.fov), _NARROWEST), _WIDEST)
        self._fov = gui.add_slider("Field of view (°)", _NARROWEST, _WIDEST, 0.5, round(2 * degrees) / 2)
        self._height = gui.add_dropdown(
            "Max resolution",
            (_WINDOW, *map(str, _HEIGHTS)),
            hint="Lines of a picture at rest",
        )
        for choice in (self._mode, self._is_automatic, self._range, self._background, self._height):
            choice.on_update(self._on_choice)
        self._fov.on_update(self._on_fov)
        gui.add_button("Reset view").on_click(lambda event: reset())
        gui.add_button("Screenshot", hint="Save the picture as a PNG").on_click(lambda event: screenshot())
        with gui.add_folder("Statistics", order=STATISTICS_ORDER):
            self._statistics = gui.add_html("")

    @property
    def mode(self) -> str:
        """The label of the chosen mode."""
        return self._mode.value

    def show_next(self) -> None:
        """Chooses the next mode."""
        modes = self._mode.options
        self._mode.value = modes[(modes.index(self._mode.value) + 1) % len(modes)]  # type: ignore[misc]

    @property
    def look(self) -> Look:
        """The choices other than the mode."""
        red, green, blue = (level / 255.0 for level in self._background.value)
        return Look((red, green, blue), None if self._is_automatic.value else self._range.value)

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Returns the size of the sharp image for a window of this size, pixels."""
        most = height if self._height.value == _WINDOW else min(height, int(self._height.value))
        return max(1, round(width * most / height)), most

    def update(self, statistics: Statistics, legend: str) -> None:
        """Shows statistics and the legend."""
        self._statistics.content = statistics.html()
        if legend != self._legend.content:
            self._legend.content = legend

    def follow(self, fov: float) -> None:
        """Shows a field of view, radians, that was not set in the panel."""
        degrees = min(max(math.degrees(fov), _NARROWEST), _WIDEST)
        if abs(self._fov.value - degrees) > 0.5:
            self._fov.value = round(2 * degrees) / 2  # type: ignore[misc]

    def _on_choice(self, event: Any) -> None:
        is_depth = self._mode.value == "depth"
        self._legend.visible = self._is_automatic.visible = is_depth
        self._range.visible = is_depth and not self._is_automatic.value
        self._changed()

    def _on_fov(self, event: Any) -> None:
        # The browser replies with its camera, which requests the image.
        self._browser.camera.fov = math.radians(self._fov.value)


def headline(title: str, facts: Sequence[str]) -> str:
    """Returns HTML for the top of the panel."""
    lines = "".join(f'<div style="opacity:0.7">{escape(fact)}</div>' for fact in facts)
    return f'<div style="padding:0 0.6em 0.5em;font-size:0.85em"><b>{escape(title)}</b>{lines}</div>'
