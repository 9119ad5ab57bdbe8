"""Pictures one after the other as an .mp4 file, through the ffmpeg that imageio-ffmpeg brings."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from lumigrad.client.errors import LumigradError
from lumigrad.client.extras import require
from lumigrad.client.named_arrays import Array

# Visually without loss. An even size, as this kind of H.264 needs it, and the colours that players expect in HD.
_FILTERS = (
    "pad=ceil(iw/2)*2:ceil(ih/2)*2,scale=out_color_matrix=bt709,"
    "setparams=colorspace=bt709:color_primaries=bt709:color_trc=bt709"
)
_OPTIONS = ("-vf", _FILTERS, "-crf", "18", "-preset", "medium", "-movflags", "+faststart")


class VideoWriter:
    """An .mp4 file (H.264, 4:2:0) that grows by a picture at a time. Use it in a `with` block."""

    def __init__(self, path: Path, width: int, height: int, frames_per_second: float) -> None:
        """Notes how to write; ffmpeg starts with the first picture.

        Args:
            path: the file, in a folder that exists.
            width: of every picture, pixels.
            height: likewise; odd sizes get a black line more.
            frames_per_second: how fast it plays.

        Raises:
            MissingPackage: imageio-ffmpeg is not installed.
            FileNotFoundError: the folder is absent.
        """
        self._ffmpeg = require("imageio_ffmpeg", "video", "writing .mp4 files")
        if not path.parent.is_dir():
            raise FileNotFoundError(2, "No such directory", str(path))
        self._path = path
        self._size = width, height
        self._frames_per_second = frames_per_second
        self._process: Any = None

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def add(self, levels: Array) -> None:
        """Appends a picture, uint8 [H, W, 3]."""
        width, height = self._size
        if levels.dtype != np.uint8 or levels.shape != (height, width, 3):
            raise LumigradError(f"expected a picture of uint8 {[height, width, 3]}, got {levels.dtype} {levels.shape}")
        try:
            if self._process is None:
                self._process = self._start()
            self._process.send(np.ascontiguousarray(levels))
        except (OSError, RuntimeError) as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Writes what is left and ends ffmpeg."""
        try:
            if self._process is not None:
                self._process.close()
        except (OSError, RuntimeError) as error:
            raise self._failure(error) from error

    def _start(self) -> Any:
        process = self._ffmpeg.write_frames(
            str(self._path),
            self._size,
            fps=self._frames_per_second,
            quality=None,
            codec="libx264",
            macro_block_size=1,
            ffmpeg_log_level="error",
            output_params=list(_OPTIONS),
        )
        process.send(None)
        return process

    def _failure(self, error: Exception) -> LumigradError:
        """One line of what ffmpeg says."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return LumigradError(f"ffmpeg could not write {self._path}: {lines[-1] if lines else type(error).__name__}")
