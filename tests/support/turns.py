"""A pytest plugin: with several worker processes (`-n 2`), a test marked `alone` runs while no other test does.

Such a test measures times, or needs all processors.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# Existing files, which are only locked, never written.
QUEUE_LOCK, RUN_LOCK = Path(__file__).parent, Path(__file__)


# The outermost plugin, so that pytest-timeout starts its clock after the locks are taken.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Runs the test under a shared lock, or under an exclusive one if it is marked `alone`."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    with turn(alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextmanager
def turn(alone: bool, queue_lock: Path = QUEUE_LOCK, run_lock: Path = RUN_LOCK) -> Iterator[None]:
    """Holds `run_lock` within the `with` block, exclusively if `alone`, else shared."""
    queue, run = os.open(queue_lock, os.O_RDONLY), os.open(run_lock, os.O_RDONLY)
    try:
        # Held while waiting for the run lock: otherwise later shared locks would starve an exclusive one.
        fcntl.flock(queue, fcntl.LOCK_EX)
        fcntl.flock(run, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(queue, fcntl.LOCK_UN)
        yield
    finally:
        # Closing is not enough if a test left a forked process, which has inherited the descriptors.
        for descriptor in (queue, run):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)
