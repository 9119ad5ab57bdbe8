"""A process whose wall clock jumps when a test says so; its monotonic clocks go on."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")


class WallClock:
    """Set by `jump`; processes see it that are started with `environment`."""

    def __init__(self, folder: Path) -> None:
        """Builds what is preloaded, in `folder`."""
        library = folder / "clock.so"
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
        self._file = folder / "offset"
        self.jump(0)
        self.environment = {**os.environ, "LD_PRELOAD": str(library), "CLOCK_OFFSET": str(self._file)}

    def jump(self, seconds: int) -> None:
        """Have the clock be off by so much from now on."""
        with open(self._file, "r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("=q", seconds))
