"""Writes pictures as an .mp4 file with the ffmpeg that imageio-ffmpeg brings."""

from __future__ import annotations

import subprocess
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from lumigrad.client.base.arrays import Array
from lumigrad.client.base.extras import require
from lumigrad.client.base.replacing import replaced
from lumigrad.client.errors import LumigradError

# Pads to an even size, which 4:2:0 H.264 needs, and converts to the colours that players expect in HD.
_FILTERS = (
    "pad=ceil(iw/2)*2:ceil(ih/2)*2,scale=out_color_matrix=bt709,"
    "setparams=colorspace=bt709:color_primaries=bt709:color_trc=bt709"
)
_OPTIONS = f"-an -c:v libx264 -pix_fmt yuv420p -vf {_FILTERS} -crf 18 -preset medium -movflags +faststart"


class VideoWriter:
    """Writes an .mp4 file (H.264, 4:2:0, visually lossless) picture by picture. Use it in a `with` block."""

    def __init__(self, path: Path, width: int, height: int, frames_per_second: float) -> None:
        """Stores the settings; the first picture starts ffmpeg.

        Args:
            path: the file, in a folder that exists.
            width: width of every picture, pixels.
            height: height of every picture, pixels; odd sizes are padded by a black line.
            frames_per_second: pictures per second.

        Raises:
            MissingPackage: imageio-ffmpeg is not installed.
            FileNotFoundError: the folder does not exist.
        """
        self._ffmpeg = require("imageio_ffmpeg", "video", "writing .mp4 files")
        # Replaces the old file when ffmpeg has succeeded.
        self._file = ExitStack()
        if not path.parent.is_dir():
            raise FileNotFoundError(2, "No such directory", str(path))
        self._path = path
        self._size = width, height
        self._frames_per_second = frames_per_second
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        """Completes the file; after an error, only if no file exists at the path, so that an old file stays intact."""
        if error[0] is not None and self._process is not None and self._path.exists():
            self._discard(*error)
        else:
            self.close()

    def add(self, levels: Array) -> None:
        """Appends a picture, uint8 [H, W, 3]."""
        width, height = self._size
        if levels.dtype != np.uint8 or levels.shape != (height, width, 3):
            raise LumigradError(f"expected a picture of uint8 {[height, width, 3]}, got {levels.dtype} {levels.shape}")
        if self._process is None:
            self._process = self._start()
        try:
            _input(self._process).write(np.ascontiguousarray(levels).data)
        except OSError as error:
            raise self._failure() from error

    def close(self) -> None:
        """Writes the remaining frames and ends ffmpeg; raises LumigradError with ffmpeg's message if it has failed."""
        if self._process is None:
            return
        process, self._process = self._process, None
        with self._file, self._messages:
            # If the process has already ended, its exit status is reported below.
            with suppress(OSError):
                _input(process).close()
            if process.wait() != 0:
                raise self._failure()

    def _discard(self, *error: Any) -> None:
        """Ends ffmpeg, and leaves the old file as it was."""
        assert self._process is not None
        process, self._process = self._process, None
        with self._messages, suppress(OSError):
            process.kill()
            process.wait()
            _input(process).close()
        self._file.__exit__(*error)

    def _start(self) -> subprocess.Popen[bytes]:
        # Messages go to a file, because ffmpeg would block on a pipe that is not read.
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115
        width, height = self._size
        pictures = f"-f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {self._frames_per_second} -i -"
        options = f"-y -loglevel error {pictures} {_OPTIONS}".split()
        with ExitStack() as stack:
            new = stack.enter_context(replaced(self._path))
            process = subprocess.Popen(
                (self._ffmpeg.get_ffmpeg_exe(), *options, str(new)),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._messages,
                # In a session of its own, ffmpeg does not receive this process's interrupts and can finish the file.
                start_new_session=True,
            )
            self._file = stack.pop_all()
        return process

    def _failure(self) -> LumigradError:
        """Returns an error with the first line of ffmpeg's messages; the rest follow from it."""
        self._messages.seek(0)
        lines = [line.strip() for line in self._messages.read().decode(errors="replace").splitlines() if line.strip()]
        return LumigradError(f"ffmpeg could not write {self._path}: {lines[0] if lines else 'it ended early'}")


def _input(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin
