"""A pytest plugin: the report of a failed test fills a screen at most, whatever it compared.

A falsifying example or a difference of arrays can have millions of characters.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

# Lines of a report, of which the last ones name the error; characters of a line; and lines of each captured output.
_LINES, _FIRST_LINES, _COLUMNS, _OUTPUT_LINES = 60, 15, 240, 30


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shortens the report of a failure."""
    report = yield
    if report.failed:
        text = report.longreprtext
        if (short := shortened(text)) != text:
            report.longrepr = short
        report.sections = [(name, shortened(content, _OUTPUT_LINES, 0)) for name, content in report.sections]
    return report


def shortened(text: str, lines: int = _LINES, first: int = _FIRST_LINES) -> str:
    """The first and the last lines of a text, each cut in its middle, with a note of what was left out."""
    found = text.splitlines()
    if len(found) > lines:
        left_out = len(found) - lines
        found = [*found[:first], f"[... {left_out:,} lines ...]", *found[first + left_out :]]
    return "\n".join(_cut(line) for line in found)


def _cut(line: str) -> str:
    if len(line) <= _COLUMNS:
        return line
    half = _COLUMNS // 2
    return f"{line[:half]} [... {len(line) - 2 * half:,} characters ...] {line[-half:]}"
