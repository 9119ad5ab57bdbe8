"""The conditions of a soak: nothing grows, and no call fails that may be repeated."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from tests.soak.course import Window
from tests.soak.trend import Trend, fitted

# Growth allowed over all fitted windows, for memory per minute: noise of allocators, and of pools that have not reached
# their full size. A descriptor, region or file that leaks now and then soon exceeds it.
LIMITS = {"rss_mib": 1.0, "descriptors": 4.0, "threads": 4.0, "memfds": 4.0, "shm": 0.5}
SPOOL_FILES, SPOOL_MIB, SCENES = 2.0, 1.0, 0.5


def trends(windows: Sequence[Window]) -> list[Trend]:
    found = []
    for who, over in (("worker", longest_life(windows)), ("client", windows), ("supervisor", windows)):
        for what, limit in LIMITS.items():
            values = [float(getattr(getattr(window, who), what)) for window in over]
            if what == "rss_mib":
                found.append(
                    fitted(f"{who} {what} per minute", values, limit, [window.seconds / 60 for window in over])
                )
            else:
                found.append(fitted(f"{who} {what}", values, limit))
    every: tuple[tuple[str, Callable[[Window], float], float], ...] = (
        ("spool files", lambda window: window.spool_files, SPOOL_FILES),
        ("spool MiB", lambda window: window.spool_mib, SPOOL_MIB),
        ("stored scenes", lambda window: window.scenes, SCENES),
    )
    return found + [fitted(name, [read(window) for window in windows], limit) for name, read, limit in every]


def longest_life(windows: Sequence[Window]) -> list[Window]:
    """The windows of the worker that lived longest."""
    lives = [list(life) for _, life in itertools.groupby(windows, lambda window: window.worker.pid)]
    return max(lives, key=len)
