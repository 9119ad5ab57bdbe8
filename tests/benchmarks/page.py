"""Puts a table of measured times between the marks of a page."""

from __future__ import annotations

from pathlib import Path


def insert(name: str, text: str, path: Path) -> None:
    """Replaces the text between `<!-- name -->` and `<!-- /name -->`.

    Raises:
        ValueError: The file does not have these marks, once each and in this order.
    """
    page = path.read_text(encoding="utf-8")
    first, last = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    if page.count(first) != 1 or page.count(last) != 1 or page.index(first) > page.index(last):
        raise ValueError(f"{path}: expected one {first.strip()} and then one {last}")
    start, end = page.index(first) + len(first), page.index(last)
    path.write_text(page[:start] + text.rstrip() + "\n" + page[end:], encoding="utf-8")
