"""A process whose wall clock or monotonic clock a test can set forward or back."""

from __future__ import annotations

import struct
from pathlib import Path

from support.preloading import environment_with

SOURCE = Path(__file__).with_name("clock.c")


class WallClock:
    """Set by `jump` and `pass_time`; applies to processes that are started with `environment`."""

    def __init__(self, folder: Path) -> None:
        """Builds the preloaded library in `folder`."""
        self._file = folder / "offset"
        self.jump(0)
        self.environment = environment_with(SOURCE, folder, CLOCK_OFFSET=str(self._file))

    def jump(self, seconds: int) -> None:
        """Set the wall clock off by `seconds` from now on, and the monotonic clock right."""
        self._set(seconds, 0)

    def pass_time(self, seconds: int) -> None:
        """Set both clocks ahead by `seconds` from now on, as if the time had passed.

        The kernel's clock stays: a wait with a time limit that begins afterwards takes that much longer.
        """
        self._set(seconds, seconds)

    def _set(self, wall: int, monotonic: int) -> None:
        with open(self._file, "r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("=qq", wall, monotonic))
