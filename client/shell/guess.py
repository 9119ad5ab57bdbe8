"""What somebody meant who misspelt a name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def meant(text: str, known: Iterable[str]) -> str:
    """'; did you mean --target?', or nothing if none of those known is close."""
    close = get_close_matches(text, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""
