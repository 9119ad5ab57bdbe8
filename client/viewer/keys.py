"""The keys of a page, and the help that lists them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import viser

_MOUSE = (
    ("Drag", "Turn around the point in the middle"),
    ("Right-drag", "Move sideways"),
    ("Scroll", "Move closer or away"),
    ("W A S D, Q E", "Move forward, left, back, right, down, up"),
    ("Arrows", "Look around"),
)


@dataclass(frozen=True)
class Key:
    """A key and what it does.

    Attributes:
        name: as viser names it.
        label: what it does.
        action: does it.
    """

    name: Any
    label: str
    action: Callable[[], None]


def add_keys(browser: viser.ClientHandle, keys: Sequence[Key]) -> None:
    """Gives a page its keys, and a button and the key H that list them."""

    def show_help() -> None:
        rows = [*_MOUSE, *((str(key.name).capitalize(), key.label) for key in keys), ("H", "Show this help")]
        cells = "".join(
            f'<tr><td style="padding:0.15em 1.5em 0.15em 0"><b>{escape(name)}</b></td><td>{escape(label)}</td></tr>'
            for name, label in rows
        )
        with browser.gui.add_modal("Mouse and keys") as modal:
            browser.gui.add_html(f'<table style="font-size:0.9em;margin:0 0.6em 0.6em">{cells}</table>')
            browser.gui.add_button("Close").on_click(lambda event: modal.close())

    for key in keys:
        _bind(browser, key.name, key.label, key.action)
    _bind(browser, "H", "Help", show_help)
    browser.gui.add_button("Help").on_click(lambda event: show_help())


def _bind(browser: viser.ClientHandle, name: Any, label: str, action: Callable[[], None]) -> None:
    command = browser.gui.add_command(label, hotkey=name)
    command.on_trigger(lambda event: action())
