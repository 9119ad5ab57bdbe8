"""One worker that is looked at again and again, across its restarts."""

from __future__ import annotations

import dataclasses
import time

from lumigrad.client.errors import LumigradError
from lumigrad.client.monitor.exposition import parse
from lumigrad.client.monitor.reading import sections, started
from lumigrad.client.monitor.report import UNREACHABLE, Report
from lumigrad.client.monitor.snapshot import Interval, Snapshot
from lumigrad.client.monitor.source import Source

# A restart is news for so long.
_NEWS_S = 60.0


class Watch:
    """Compares each look with the one before."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._last: Snapshot | None = None
        self._report = Report(source.address, UNREACHABLE)
        self._state_since = time.monotonic()
        self._restarted = -float("inf")
        # Why the latest look showed nothing.
        self.error: LumigradError | None = None

    def look(self) -> Report:
        """What happened since the last look; at the first one, and after a restart, since the worker started."""
        try:
            now = Snapshot(parse(self._source.read()), time.monotonic())
        except LumigradError as error:
            self.error = error
            report = dataclasses.replace(self._report, state=UNREACHABLE, why=str(error))
        else:
            self.error = None
            told = sections(Interval(self._before(now), now))
            report = Report(self._source.address, **told)
            self._last = now
        if report.state != self._report.state:
            self._state_since = time.monotonic()
        since_restart = time.monotonic() - self._restarted
        self._report = dataclasses.replace(
            report,
            since_s=time.monotonic() - self._state_since,
            restarted_s=since_restart if since_restart < _NEWS_S else None,
        )
        return self._report

    def _before(self, now: Snapshot) -> Snapshot:
        last = self._last
        if last is not None and started(last) == started(now):
            return last
        if last is not None:
            self._restarted = time.monotonic()
        age = max(0.0, time.time() - started(now))
        return Snapshot((), now.moment - age)
