"""What a browser is told when the worker does not answer, and when it does again."""

from __future__ import annotations

import viser

from lumigrad.client.errors import LumigradError

_GOOD_NEWS_S = 6.0


class Notice:
    """At most one at a time in the corner of a page."""

    def __init__(self, browser: viser.ClientHandle) -> None:
        self._browser = browser
        self._shown: viser.NotificationHandle | None = None
        self._was_away = False

    def trouble(self, error: LumigradError, *, is_away: bool) -> None:
        """Says what is wrong; `is_away`: the worker, which is asked again and again."""
        if self._shown is not None and is_away and self._was_away:
            self._shown.body = str(error)
            return
        self._clear()
        title = "The worker does not answer; trying again" if is_away else "No picture"
        self._shown = self._browser.add_notification(
            title, str(error), loading=is_away, color="red", with_close_button=not is_away
        )
        self._was_away = is_away

    def well(self) -> None:
        """A picture has come."""
        if self._shown is None:
            return
        self._clear()
        if self._was_away:
            self._browser.add_notification(
                "The worker is back", "It has the scene again.", auto_close_seconds=_GOOD_NEWS_S, color="green"
            )

    def _clear(self) -> None:
        if self._shown is not None:
            self._shown.remove()
            self._shown = None
