"""A pytest plugin: where tests run in several processes (`-n 2`), one marked `alone` runs while no other test does.

Such a test measures times, or needs the machine for itself.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# What is locked is only opened to be read, so it can be what is there anyway.
DOOR, ROOM = Path(__file__).parent, Path(__file__)


# The first of all plugins, so that pytest-timeout's clock starts when it is the test's turn.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Runs the test when it is its turn."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    with turn(alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextmanager
def turn(alone: bool, door: Path = DOOR, room: Path = ROOM) -> Iterator[None]:
    """Waits until nobody is in the room, or nobody who is to be alone, and is in it within the `with` block."""
    entrance, inside = os.open(door, os.O_RDONLY), os.open(room, os.O_RDONLY)
    try:
        # Whoever waits for the room holds the door, so that nobody passes who comes later.
        fcntl.flock(entrance, fcntl.LOCK_EX)
        fcntl.flock(inside, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(entrance, fcntl.LOCK_UN)
        yield
    finally:
        # Closing would not be enough where a test has left a fork behind, which has the descriptors too.
        for descriptor in (entrance, inside):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)
