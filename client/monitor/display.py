"""The terminal: a screen of its own that is drawn again and again, or pages one after the other where there is none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from lumigrad.client.monitor.fleet import fleet
from lumigrad.client.monitor.report import Report
from lumigrad.client.monitor.screen import screen


class Display:
    """Shows reports. Use it in a `with` block."""

    def __init__(self, interval_s: float, *, once: bool, console: Console | None = None) -> None:
        """Shows one page without a screen of its own if `once`."""
        self._console = console or Console(highlight=False)
        self._interval_s = interval_s
        self._live: Live | None = None
        if self._console.is_terminal and not once:
            self._live = Live(console=self._console, screen=True, auto_refresh=False)

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, reports: Sequence[Report]) -> None:
        """Draws what there is to say now."""
        if self._live is None:
            self._console.print(page(reports, self._console.width, None))
            return
        width, height = self._console.size
        keys = f"every {self._interval_s:g} s, q ends  {time.strftime('%H:%M:%S')}"
        title = Text.assemble(("lumigrad top", "bold reverse"), keys.rjust(width - len("lumigrad top")))
        self._live.update(Group(title, page(reports, width, height - 1)), refresh=True)


def page(reports: Sequence[Report], width: int, height: int | None) -> RenderableType:
    """One worker in full, several in a line each."""
    return screen(reports[0], width, height) if len(reports) == 1 else fleet(reports)
