"""A pytest plugin: the report of a failed test fills a screen or two, and ends with the logs of its workers.

Without it, a falsifying example or a difference of arrays can have millions of characters.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Generator

import pytest
from _pytest._code.code import ExceptionChainRepr, ReprEntry

# Lines of each part of a report, of which the last name the error; characters of a line; parts of a traceback.
_LINES, _FIRST_LINES, _COLUMNS, _ENTRIES = 40, 12, 240, 6
# Workers write the lines of calls ten times a second.
_LOG_SECONDS = 0.5


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shortens the report of a failure."""
    try:
        report = yield
    except SystemError:
        report = _plain(item, call)
    if report.failed:
        # Processes that fixtures started have logs.
        processes = {name: value for name, value in getattr(item, "funcargs", {}).items() if hasattr(value, "log")}
        if processes:
            # The calls of the test itself are written a moment later.
            time.sleep(_LOG_SECONDS)
        logs = {name: process.log for name, process in processes.items()}
        report.sections += [(f"Log of {name}", log) for name, log in logs.items() if isinstance(log, str)]
        report.sections = [(name, shortened(content)) for name, content in report.sections]
        if isinstance(report.longrepr, ExceptionChainRepr):
            _shorten(report.longrepr)
        elif report.longrepr is not None:
            report.longrepr = shortened(report.longreprtext)
    return report


def _plain(item: pytest.Item, call: pytest.CallInfo[None]) -> pytest.TestReport:
    """A report without excerpts of sources: Python 3.11 cannot parse them while another thread parses others."""
    assert call.excinfo is not None
    # Few entries of the traceback, so that the error's first lines are kept.
    entries = traceback.format_tb(call.excinfo.tb)[-3:]
    text = "".join((*entries, call.excinfo.exconly()))
    keywords = dict.fromkeys(item.keywords, 1)
    return pytest.TestReport(item.nodeid, item.location, keywords, "failed", text, call.when, duration=call.duration)


def _shorten(chain: ExceptionChainRepr) -> None:
    for trace, crash, _ in chain.chain:
        entries = trace.reprentries
        trace.reprentries = [*entries[:1], *entries[1:][-_ENTRIES:]]
        for entry in trace.reprentries:
            # The error's own text follows the code.
            error = next((index for index, line in enumerate(entry.lines) if line.startswith("E ")), len(entry.lines))
            parts = entry.lines[:error], entry.lines[error:]
            entry.lines = [line for part in parts for line in shortened("\n".join(part)).splitlines()]
            if isinstance(entry, ReprEntry) and entry.reprlocals is not None:
                entry.reprlocals.lines = shortened("\n".join(entry.reprlocals.lines)).splitlines()
        if crash is not None:
            # The line of the summary.
            crash.message = shortened(crash.message)


def shortened(text: str) -> str:
    """The first and the last lines of a text, each cut in its middle, with a note of what was left out."""
    lines = text.splitlines()
    if len(lines) > _LINES:
        left_out = len(lines) - _LINES
        lines = [*lines[:_FIRST_LINES], f"[... {left_out:,} lines ...]", *lines[_FIRST_LINES + left_out :]]
    return "\n".join(_cut(line) for line in lines)


def _cut(line: str) -> str:
    if len(line) <= _COLUMNS:
        return line
    half = _COLUMNS // 2
    return f"{line[:half]} [... {len(line) - 2 * half:,} characters ...] {line[-half:]}"
