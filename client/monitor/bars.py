"""Bars of block characters."""

from __future__ import annotations

from rich.text import Text

_FULL, _EMPTY = "\u2588", "\u2591"
_EIGHTHS = (" ", "\u258f", "\u258e", "\u258d", "\u258c", "\u258b", "\u258a", "\u2589")


def level(share: float, width: int) -> Text:
    """How full something is: calm, then yellow from 70 %, red from 90 %."""
    share = min(max(share, 0.0), 1.0)
    filled = round(share * width)
    style = "red" if share >= 0.9 else "yellow" if share >= 0.7 else "green"
    return Text.assemble((_FULL * filled, style), (_EMPTY * (width - filled), "dim"))


def length(share: float, width: int, style: str) -> Text:
    """How long something is beside others, to an eighth of a character."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    whole, rest = divmod(eighths, 8)
    return Text(_FULL * whole + (_EIGHTHS[rest] if rest else ""), style)
