"""A pytest plugin that keeps writing a run's results into those of gpu-test, so that they survive a kill."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.context import STARTED, read_json, write_json

# Seconds between two writes.
_INTERVAL = 2.0
_MOST_NAMES, _MOST_REASONS = 100, 20


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options that say where to write."""
    parser.addoption("--results", type=Path, help="the results of gpu-test")
    parser.addoption("--part", help="the name of these tests in them")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the plugin, but not in the worker processes of pytest-xdist."""
    if config.getoption("results") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(config.getoption("results"), config.getoption("part")))


class Results:
    """Counts of tests, and the names of those that failed."""

    def __init__(self, file: Path, part: str) -> None:
        self._file, self._part = file, part
        self._failures: dict[str, None] = {}
        self._reasons: set[str] = set()
        self._passed = self._skipped = 0
        self._written = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Counts one of the three reports of each test: setup, call and teardown."""
        if report.failed:
            self._failures[report.nodeid] = None
        elif report.skipped:
            self._skipped += 1
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
            self._reasons.add(str(reason).removeprefix("Skipped: "))
        elif report.when == "call":
            self._passed += 1
        if time.monotonic() - self._written >= _INTERVAL:
            self._write()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Notes a file that cannot be imported, which has no tests."""
        if report.failed:
            self._failures[report.nodeid] = None

    def pytest_sessionfinish(self) -> None:
        """Writes the results, also when the run is interrupted."""
        self._write()

    def _write(self) -> None:
        values: dict[str, Any] = read_json(self._file)
        values.setdefault("tests", {})[self._part] = {
            "status": STARTED,
            "passed": self._passed,
            "failed": len(self._failures),
            "skipped": self._skipped,
            "failures": list(self._failures)[:_MOST_NAMES],
            "skipped_because": sorted(self._reasons)[:_MOST_REASONS],
        }
        write_json(self._file, values)
        self._written = time.monotonic()
