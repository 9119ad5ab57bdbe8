"""Builds the library that stands in for nvJPEG, and reads its files."""

from __future__ import annotations

import ctypes
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lumigrad.protos.dtypes import Array

SOURCE = Path(__file__).with_suffix(".c")
# The environment variable that names a function of which all calls fail.
FAILS = "LUMIGRAD_TEST_NVJPEG_FAILS"
# The environment variable that names a file: encoders wait while it exists.
HELD_BY = "LUMIGRAD_TEST_NVJPEG_HELD_BY"
_MARK = b"\xff\xd8"
_HEADER = np.dtype([(name, np.int32) for name in ("width", "height", "quality", "sampling", "format")])


def build(folder: Path, name: str = "libnvjpeg.so.13", *options: str) -> Path:
    """Build the library in a folder; returns its path."""
    library = folder / name
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", *options, "-o", str(library), str(SOURCE)], check=True)
    return library


@dataclass(frozen=True)
class StandInFile:
    """A file of the library that stands in: what it was told, and the pixels."""

    quality: int
    are_colors_halved: bool
    levels: Array

    @staticmethod
    def of(file: bytes) -> StandInFile:
        """Read a file; raises an AssertionError for one by another encoder."""
        length = len(_MARK) + _HEADER.itemsize
        assert file.startswith(_MARK), "not a file of the library that stands in"
        (told,) = np.frombuffer(file[len(_MARK) : length], _HEADER)
        shape = told["height"], told["width"], 3
        assert len(file) == length + np.prod(shape), "not a file of the library that stands in"
        return StandInFile(
            int(told["quality"]),
            {0: False, 2: True}[int(told["sampling"])],
            np.frombuffer(file, np.uint8, offset=length).reshape(shape),
        )


class Control:
    """Controls a library that stands in and is loaded into this process."""

    HANDLE, STATE, PARAMETERS = range(3)

    def __init__(self, library: Path) -> None:
        """`library` is its path."""
        self._library = ctypes.CDLL(str(library))

    def fail(self, function: str, count: int = 1) -> None:
        """Make the next calls of a function fail."""
        self._library.stand_in_fail(function.encode(), count)

    def hold(self, hold: bool) -> None:
        """Have encoders wait, for a hundred seconds at the most."""
        self._library.stand_in_hold(int(hold))

    @property
    def alive(self) -> tuple[int, int, int]:
        """The numbers of handles, states and parameters that exist."""
        handles, states, parameters = map(self._library.stand_in_alive, range(3))
        return handles, states, parameters

    @property
    def states_created(self) -> int:
        """The number of states that were ever created."""
        return int(self._library.stand_in_created(self.STATE))

    @property
    def most_together(self) -> int:
        """The most images that were encoded at the same time."""
        return int(self._library.stand_in_created(-1))

    @property
    def encoded(self) -> int:
        """The number of images that were encoded."""
        return int(self._library.stand_in_created(-2))
