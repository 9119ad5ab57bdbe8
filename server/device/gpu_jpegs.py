"""JPEG files that a GPU encodes with nvJPEG, where the package of that library is installed."""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from lumigrad.protos.dtypes import Array
from lumigrad.server.core import logs
from lumigrad.server.core.call import Call, held

# Failures in a row after which the library is not used any more: each costs as much as an image.
_MOST_FAILURES = 100
# Images that are encoded at the same time. Each needs memory of the device besides its pixels.
_MOST_TOGETHER = 4


class Encoder(Protocol):
    """Encodes on a device, without the GIL. Thread-safe."""

    def encode(self, levels: Array, quality: int, are_colors_halved: bool) -> bytes:
        """Return the file of an image, uint8 [H, W, 3]; a failure has no effect on other images."""


class GpuJpegs:
    """Encodes JPEG files on a GPU. Thread-safe."""

    def __init__(self, load: Callable[[], Encoder]) -> None:
        """`load` loads the library, when the first image is encoded."""
        self._load = load
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(_MOST_TOGETHER)
        self._encoder: Encoder | None = None
        self._is_unusable = False
        # Failures since the last success.
        self._failures = 0
        self._has_warned = False

    def encode(self, levels: Array, quality: int, call: Call | None, *, are_colors_halved: bool) -> bytes | None:
        """Encode an image, uint8 [H, W, 3]; None if the CPU has to. Only the first failure is logged.

        Waits while as many other images as the device takes are encoded; raises what `Call.check` raises if the call
        ends meanwhile.
        """
        encoder = self._loaded(call)
        if encoder is None:
            return None
        with held(self._places, call):
            try:
                file = encoder.encode(np.ascontiguousarray(levels), quality, are_colors_halved)
            except Exception as error:
                self._warn(error)
                self._count_failure()
                return None
        self._failures = 0
        return file

    def _loaded(self, call: Call | None) -> Encoder | None:
        with held(self._lock, call):
            if self._encoder is None and not self._is_unusable:
                try:
                    self._encoder = self._load()
                except Exception as error:
                    self._is_unusable = True
                    self._warn(error)
            return self._encoder

    def _count_failure(self) -> None:
        with self._lock:
            self._failures += 1
            if self._failures >= _MOST_FAILURES:
                self._encoder, self._is_unusable = None, True

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            why = str(error)
            logs.event("nvJPEG has failed; the CPU encodes JPEG files instead", logging.WARNING, reason=why)


def library_path(cuda_version: str | None) -> Path | None:
    """Return the path of the nvJPEG for a version of CUDA in this Python environment; None if it is not installed."""
    found = importlib.util.find_spec("nvidia")
    if cuda_version is None or found is None:
        return None
    major = cuda_version.split(".")[0]
    places = [
        Path(folder, package, "lib", f"libnvjpeg.so.{major}")
        for folder in found.submodule_search_locations or ()
        for package in (f"cu{major}", "nvjpeg")
    ]
    return next(filter(Path.is_file, places), None)
