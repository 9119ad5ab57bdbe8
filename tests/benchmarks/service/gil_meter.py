"""Processor time of another process, and the part of it during which its threads hold the GIL."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("gil_meter.c")
_FOLDER = "GIL_METER_FOLDER"
# Fields as in the source: is_on, takes, held_ns, reading_ns.
_SUMS = struct.Struct("=4q")
# Linux's number for the processor clock of a whole process, including threads that have ended.
_SCHEDULED = 2


class Unknown(Exception):
    """No meter exists for this interpreter; the text says why."""


@dataclass(frozen=True)
class Spent:
    """Nanoseconds of a process; `held` counts those with the GIL, and `takes` how often it was taken."""

    processor: float
    held: float = 0.0
    takes: float = 0.0

    def __sub__(self, before: Spent) -> Spent:
        return Spent(self.processor - before.processor, self.held - before.held, self.takes - before.takes)


class GilMeter:
    """A library that is preloaded into processes to measure their GIL."""

    def __init__(self, folder: Path) -> None:
        """Compiles the library in `folder` with the headers of this interpreter.

        Raises:
            Unknown: There is no compiler, there are no headers, or the interpreter has no meter.
        """
        self._folder, library = folder, folder / "gil_meter.so"
        folder.mkdir(parents=True, exist_ok=True)
        headers = sysconfig.get_path("include")
        command = (os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", f"-I{headers}", f"-I{headers}/internal")
        try:
            done = subprocess.run(
                [*command, "-o", library, SOURCE, "-ldl"], capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise Unknown(f"no time with the GIL is measured: {error}") from None
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error:" in line]
            raise Unknown(f"no time with the GIL is measured: {(errors or [done.stderr])[0][:300]}")
        self.environment = {"LD_PRELOAD": str(library.resolve()), _FOLDER: str(folder.resolve())}

    def watch(self, pid: int) -> GilWatch:
        """Watches a process that runs with `environment`.

        Raises:
            Unknown: The process does not run with the meter.
        """
        path = self._folder / str(pid)
        if not path.exists():
            raise Unknown(f"no time with the GIL is measured: process {pid} runs without the meter")
        return GilWatch(pid, path)


class Watch:
    """Reads the processor time of a process from its clock, in nanoseconds."""

    def __init__(self, pid: int) -> None:
        self._clock = (~pid << 3) | _SCHEDULED

    def spent(self) -> Spent:
        """The sums up to now."""
        return Spent(time.clock_gettime_ns(self._clock))

    def turn(self, *, on: bool) -> None:
        """Starts or stops counting the time with the GIL, which slows down taking and dropping it a little."""


class GilWatch(Watch):
    """Also reads the meter of a process, and subtracts the meter's own cost."""

    def __init__(self, pid: int, path: Path) -> None:
        super().__init__(pid)
        with path.open("r+b") as file:
            self._sums = mmap.mmap(file.fileno(), _SUMS.size)

    def spent(self) -> Spent:
        """The sums up to now; a thread that holds the GIL counts once it drops it."""
        _, takes, held, reading = _SUMS.unpack_from(self._sums)
        return Spent(super().spent().processor - 2 * takes * reading, held - takes * reading, takes)

    def turn(self, *, on: bool) -> None:
        """Starts or stops counting."""
        struct.pack_into("=q", self._sums, 0, on)
